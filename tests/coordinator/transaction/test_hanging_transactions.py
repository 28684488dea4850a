"""What proves that a transaction hangs, and what does not."""

from odradek.coordinator.transaction.hanging_transactions import (
    EXAMINED_COUNT_MAX,
    HangingTransactionDetector,
    OpenPartitionTransaction,
    is_late,
    is_unknown,
)
from odradek.coordinator.transaction.transaction_metadata import Partition

P: Partition = ("t", 0)
Q: Partition = ("t", 1)


def found(
    partition: Partition = P, *, producer_id: int = 5, epoch: int = 0, heard_ms: int = 1_000
) -> OpenPartitionTransaction:
    return OpenPartitionTransaction(partition, producer_id, epoch, 3, 40, heard_ms)


def after_one_look(late: OpenPartitionTransaction) -> HangingTransactionDetector:
    """It was open and unknown once."""
    watch = HangingTransactionDetector()
    assert watch.begin_round({late.partition: 40}) == []
    assert watch.begin_round({late.partition: 40}) == [late.partition]
    assert watch.end_round([late.partition], [late], {}) == []
    assert not watch.hanging
    return watch


def test_late_is_what_is_silent_for_longer_than_any_transaction_may_take() -> None:
    assert not is_late(found(heard_ms=1_000), now_ms=1_500, limit_ms=500)
    assert is_late(found(heard_ms=1_000), now_ms=1_501, limit_ms=500)


def test_known_is_what_a_coordinator_will_end_in_that_very_partition() -> None:
    assert not is_unknown(found(), {5: {P, Q}})
    assert is_unknown(found(), {5: {Q}})
    assert is_unknown(found(), {6: {P}})


def test_only_partitions_that_stand_still_for_a_round_are_examined() -> None:
    watch = HangingTransactionDetector()
    assert watch.begin_round({P: 40, Q: 7}) == []
    assert watch.begin_round({P: 40, Q: 8}) == [P]
    assert watch.begin_round({P: 41, Q: 8}) == [Q]
    assert watch.begin_round({}) == []
    assert watch.begin_round({P: 41}) == []


def test_it_takes_two_looks_to_prove_that_a_transaction_hangs() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == [found()]
    assert list(watch.hanging) == [found()]
    # It is told once.
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []
    assert list(watch.hanging) == [found()]


def test_what_a_coordinator_comes_to_know_is_not_suspected_any_more() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {5: {P}}) == []
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == [found()]


def test_what_was_added_to_meanwhile_is_another_suspect() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found(heard_ms=1_001)], {}) == []
    assert not watch.hanging


def test_a_round_without_an_end_proves_nothing_and_forgets_nothing() -> None:
    """A coordinator did not answer."""
    watch = after_one_look(found())
    assert watch.begin_round({P: 40}) == [P]
    assert watch.begin_round({P: 40}) == [P]
    assert watch.end_round([P], [found()], {}) == [found()]


def test_what_ends_by_itself_hangs_no_longer() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.begin_round({P: 41})
    assert list(watch.hanging) == [found()]
    watch.begin_round({P: 41})
    assert watch.end_round([P], [], {}) == []
    assert not watch.hanging


def test_what_is_held_back_no_longer_is_forgotten_at_once() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.begin_round({})
    assert not watch.hanging
    watch.begin_round({P: 40})
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []


def test_what_was_ended_is_neither_shown_nor_suspected() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.ended(found())
    assert not watch.hanging
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []


def test_no_round_examines_too_many_and_all_get_their_turn() -> None:
    held_back = {("t", index): 0 for index in range(2 * EXAMINED_COUNT_MAX + 10)}
    watch = HangingTransactionDetector()
    watch.begin_round(held_back)
    seen: set[Partition] = set()
    for _ in range(3):
        examined = watch.begin_round(held_back)
        assert len(examined) == EXAMINED_COUNT_MAX
        seen.update(examined)
    assert seen == held_back.keys()


def test_suspects_wait_for_the_next_turn_of_their_partition() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40, Q: 1})
    watch.end_round([Q], [], {})
    watch.begin_round({P: 40, Q: 1})
    assert watch.end_round([P], [found()], {}) == [found()]
