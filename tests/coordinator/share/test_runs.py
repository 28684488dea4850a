"""Runs: split where records get different states, joined where they have the same."""

from odradek.coordinator.share.runs import Run, Runs, Target
from odradek.coordinator.share.state_batches import RecordState


def runs_of(*sizes: int) -> Runs:
    runs = Runs(10)
    for size in sizes:
        runs.append(Run(runs.end_offset, runs.end_offset + size))
    return runs


def bounds(runs: Runs) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in runs]


def test_a_range_is_split_out_at_both_ends() -> None:
    runs = runs_of(10)
    assert [(run.start, run.end) for run in runs.split_out(12, 15)] == [(12, 15)]
    assert bounds(runs) == [(10, 12), (12, 15), (15, 20)]


def test_a_range_is_clipped_to_the_runs() -> None:
    runs = runs_of(10)
    assert [(run.start, run.end) for run in runs.split_out(0, 99)] == [(10, 20)]
    assert runs.split_out(20, 30) == []
    assert runs.overlapping(0, 10) == []


def test_both_parts_of_a_split_run_have_its_state() -> None:
    runs = Runs(0)
    run = runs.append(Run(0, 10, RecordState.ACQUIRED, 3, "a", 7, Target(RecordState.ARCHIVED)))
    runs.split_out(4, 6)
    for part in runs:
        assert (part.state, part.delivery_count, part.member_id) == (RecordState.ACQUIRED, 3, "a")
        assert part.deadline_ms == 7
        assert part.target == run.target


def test_adjacent_runs_in_the_same_state_are_joined() -> None:
    runs = runs_of(2, 2, 2, 2)
    list(runs)[3].delivery_count = 1
    runs.join(12, 14)
    assert bounds(runs) == [(10, 16), (16, 18)]


def test_a_run_in_transition_is_not_joined() -> None:
    runs = runs_of(2, 2)
    next(iter(runs)).target = Target(RecordState.ACKNOWLEDGED)
    runs.join(10, 14)
    assert bounds(runs) == [(10, 12), (12, 14)]


def test_runs_in_final_states_are_joined_whatever_their_delivery_count() -> None:
    runs = runs_of(2, 2)
    for count, run in enumerate(runs):
        run.state, run.delivery_count = RecordState.ACKNOWLEDGED, count
    runs.join(10, 14)
    assert bounds(runs) == [(10, 14)]


def test_runs_below_an_offset_are_dropped() -> None:
    runs = runs_of(4, 4)
    assert [(run.start, run.end) for run in runs.drop_before(15)] == [(10, 14), (14, 15)]
    assert bounds(runs) == [(15, 18)]
    runs.drop_before(40)
    assert (runs.start_offset, runs.end_offset, len(list(runs))) == (40, 40, 0)


def test_iteration_starts_with_the_run_that_contains_the_offset() -> None:
    runs = runs_of(4, 4, 4)
    assert [run.start for run in runs.from_offset(15)] == [14, 18]
