"""Detection of hanging transactions."""

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
    """After one examination it is suspected."""
    watch = HangingTransactionDetector()
    assert watch.begin_round({late.partition: 40}) == []
    assert watch.begin_round({late.partition: 40}) == [late.partition]
    assert watch.end_round([late.partition], [late], {}) == []
    assert not watch.hanging
    return watch


def test_a_transaction_is_late_after_the_maximal_timeout() -> None:
    assert not is_late(found(heard_ms=1_000), now_ms=1_500, limit_ms=500)
    assert is_late(found(heard_ms=1_000), now_ms=1_501, limit_ms=500)


def test_a_transaction_is_known_if_a_coordinator_has_it_in_that_partition() -> None:
    assert not is_unknown(found(), {5: {P, Q}})
    assert is_unknown(found(), {5: {Q}})
    assert is_unknown(found(), {6: {P}})


def test_only_partitions_whose_offset_did_not_move_are_examined() -> None:
    watch = HangingTransactionDetector()
    assert watch.begin_round({P: 40, Q: 7}) == []
    assert watch.begin_round({P: 40, Q: 8}) == [P]
    assert watch.begin_round({P: 41, Q: 8}) == [Q]
    assert watch.begin_round({}) == []
    assert watch.begin_round({P: 41}) == []


def test_a_hanging_transaction_is_proven_by_two_examinations() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == [found()]
    assert list(watch.hanging) == [found()]
    # It is returned once.
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []
    assert list(watch.hanging) == [found()]


def test_a_transaction_that_a_coordinator_knows_is_not_suspected() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {5: {P}}) == []
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == [found()]


def test_a_transaction_with_new_batches_is_suspected_again() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found(heard_ms=1_001)], {}) == []
    assert not watch.hanging


def test_an_unfinished_round_changes_nothing() -> None:
    """A coordinator did not respond."""
    watch = after_one_look(found())
    assert watch.begin_round({P: 40}) == [P]
    assert watch.begin_round({P: 40}) == [P]
    assert watch.end_round([P], [found()], {}) == [found()]


def test_a_transaction_that_ends_is_not_hanging() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.begin_round({P: 41})
    assert list(watch.hanging) == [found()]
    watch.begin_round({P: 41})
    assert watch.end_round([P], [], {}) == []
    assert not watch.hanging


def test_partitions_without_open_transactions_are_dropped() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.begin_round({})
    assert not watch.hanging
    watch.begin_round({P: 40})
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []


def test_an_ended_transaction_is_neither_hanging_nor_suspected() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40})
    watch.end_round([P], [found()], {})
    watch.ended(found())
    assert not watch.hanging
    watch.begin_round({P: 40})
    assert watch.end_round([P], [found()], {}) == []


def test_partitions_are_examined_in_turn_within_the_limit() -> None:
    held_back = {("t", index): 0 for index in range(2 * EXAMINED_COUNT_MAX + 10)}
    watch = HangingTransactionDetector()
    watch.begin_round(held_back)
    seen: set[Partition] = set()
    for _ in range(3):
        examined = watch.begin_round(held_back)
        assert len(examined) == EXAMINED_COUNT_MAX
        seen.update(examined)
    assert seen == held_back.keys()


def test_suspected_transactions_are_kept_until_their_partition_is_examined_again() -> None:
    watch = after_one_look(found())
    watch.begin_round({P: 40, Q: 1})
    watch.end_round([Q], [], {})
    watch.begin_round({P: 40, Q: 1})
    assert watch.end_round([P], [found()], {}) == [found()]
