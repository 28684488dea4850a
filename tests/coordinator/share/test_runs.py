"""Runs: split where records part ways, joined where they meet again."""

from odradek.coordinator.share.runs import Run, Runs, Target
from odradek.coordinator.share.state_batches import RecordState


def runs_of(*sizes: int) -> Runs:
    runs = Runs(10)
    for size in sizes:
        runs.append(Run(runs.end_offset, runs.end_offset + size))
    return runs


def bounds(runs: Runs) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in runs]


def test_a_range_is_carved_out_at_both_of_its_ends() -> None:
    runs = runs_of(10)
    assert [(run.start, run.end) for run in runs.split_out(12, 15)] == [(12, 15)]
    assert bounds(runs) == [(10, 12), (12, 15), (15, 20)]


def test_a_range_is_clipped_to_what_there_is() -> None:
    runs = runs_of(10)
    assert [(run.start, run.end) for run in runs.split_out(0, 99)] == [(10, 20)]
    assert runs.split_out(20, 30) == []
    assert runs.overlapping(0, 10) == []


def test_a_split_run_keeps_all_that_is_known_of_it_on_both_sides() -> None:
    runs = Runs(0)
    run = runs.append(Run(0, 10, RecordState.ACQUIRED, 3, "a", 7, Target(RecordState.ARCHIVED)))
    runs.split_out(4, 6)
    for part in runs:
        assert (part.state, part.delivery_count, part.member_id) == (RecordState.ACQUIRED, 3, "a")
        assert part.deadline_ms == 7
        assert part.target == run.target


def test_neighbours_that_fare_alike_become_one() -> None:
    runs = runs_of(2, 2, 2, 2)
    list(runs)[3].delivery_count = 1
    runs.join(12, 14)
    assert bounds(runs) == [(10, 16), (16, 18)]


def test_a_run_in_transition_is_joined_with_nothing() -> None:
    runs = runs_of(2, 2)
    next(iter(runs)).target = Target(RecordState.ACKNOWLEDGED)
    runs.join(10, 14)
    assert bounds(runs) == [(10, 12), (12, 14)]


def test_what_is_done_with_is_joined_however_often_it_was_delivered() -> None:
    runs = runs_of(2, 2)
    for count, run in enumerate(runs):
        run.state, run.delivery_count = RecordState.ACKNOWLEDGED, count
    runs.join(10, 14)
    assert bounds(runs) == [(10, 14)]


def test_what_lies_below_an_offset_is_forgotten() -> None:
    runs = runs_of(4, 4)
    assert [(run.start, run.end) for run in runs.drop_before(15)] == [(10, 14), (14, 15)]
    assert bounds(runs) == [(15, 18)]
    runs.drop_before(40)
    assert (runs.start_offset, runs.end_offset, len(list(runs))) == (40, 40, 0)


def test_walking_begins_with_the_run_that_contains_the_offset() -> None:
    runs = runs_of(4, 4, 4)
    assert [run.start for run in runs.from_offset(15)] == [14, 18]
