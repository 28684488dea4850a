"""Pending transactional offsets: committed, superseded, reverted."""

import pytest

from odradek.coordinator.group.offsets.pending_offsets import PendingTransactionalOffsets
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.coordinator.timeline import Timeline

KEY = ("g", "t", 0)


def offset(value: int | None, partition: int = 0) -> OffsetCommitRecord:
    committed = None if value is None else CommittedOffset(value)
    return OffsetCommitRecord("g", "t", partition, committed)


def pending(
    producer_id: int, value: int, partition: int = 0
) -> TransactionalRecord[OffsetCommitRecord]:
    return TransactionalRecord(producer_id, 0, offset(value, partition))


def end(producer_id: int, *, is_commit: bool = True) -> TransactionMarker:
    return TransactionMarker(producer_id, 0, 0, is_commit)


@pytest.fixture
def offsets() -> PendingTransactionalOffsets:
    return PendingTransactionalOffsets(Timeline())


def test_a_commit_marker_makes_them_committed_offsets(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    offsets.add(pending(1, 7, partition=1))
    assert offsets.is_unstable(KEY)
    assert offsets.has_any("g")
    assert offsets.end(end(1)) == [offset(5), offset(7, 1)]
    assert not offsets.is_unstable(KEY)
    assert not offsets.has_any("g")
    assert offsets.end(end(1)) == []


def test_an_abort_marker_drops_them(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    assert offsets.end(end(1, is_commit=False)) == []
    assert not offsets.is_unstable(KEY)


def test_a_later_offset_of_the_same_transaction_wins(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    offsets.add(pending(1, 6))
    assert offsets.end(end(1)) == [offset(6)]


@pytest.mark.parametrize("value", [9, None])
def test_an_offset_commit_or_a_deletion_supersedes_pending_offsets(
    offsets: PendingTransactionalOffsets, value: int | None
) -> None:
    offsets.add(pending(1, 5))
    offsets.supersede(offset(value))
    assert not offsets.is_unstable(KEY)
    assert offsets.end(end(1)) == []


def test_of_two_transactions_the_later_write_wins_whatever_the_order_of_markers(
    offsets: PendingTransactionalOffsets,
) -> None:
    offsets.add(pending(1, 5))
    offsets.add(pending(2, 6))
    assert offsets.end(end(2)) == [offset(6)]
    assert offsets.end(end(1)) == []
    offsets.add(pending(1, 5))
    offsets.add(pending(2, 6))
    assert offsets.end(end(1)) == [offset(5)]
    assert offsets.is_unstable(KEY)
    assert offsets.end(end(2)) == [offset(6)]


def test_only_a_transaction_of_the_same_epoch_is_open(
    offsets: PendingTransactionalOffsets,
) -> None:
    offsets.add(pending(1, 5))
    assert offsets.open_epoch(1) == 0
    assert offsets.open_epoch(2) == -1


def test_ended_transactions_are_counted_for_each_producer(
    offsets: PendingTransactionalOffsets,
) -> None:
    offsets.end(end(1))
    offsets.end(end(1, is_commit=False))
    assert (offsets.ended_count(1), offsets.ended_count(2)) == (2, 0)


def test_offsets_are_unstable_while_the_transaction_can_be_reverted() -> None:
    """A coordinator has moved: what its predecessor has written is not committed yet, and the
    transaction has ended. Who asks for stable offsets is not told the one before."""
    timeline = Timeline()
    offsets = PendingTransactionalOffsets(timeline)
    timeline.advance()
    offsets.add(pending(1, 5))
    timeline.advance()
    assert offsets.end(end(1)) == [offset(5)]
    assert offsets.is_unstable(KEY)
    timeline.commit(1)
    assert offsets.is_unstable(KEY)
    timeline.commit(2)
    assert not offsets.is_unstable(KEY)


def test_offsets_are_unstable_while_the_marker_can_be_reverted() -> None:
    timeline = Timeline()
    offsets = PendingTransactionalOffsets(timeline)
    offsets.add(pending(1, 5))
    timeline.advance()
    offsets.end(end(1))
    assert offsets.is_unstable(KEY)
    timeline.revert()
    assert offsets.end(end(1)) == [offset(5)]


def test_a_reverted_offset_is_not_pending() -> None:
    timeline = Timeline()
    offsets = PendingTransactionalOffsets(timeline)
    timeline.advance()
    offsets.add(pending(1, 5))
    timeline.revert()
    assert not offsets.is_unstable(KEY)
    assert offsets.pending_keys("g") == []
    assert offsets.end(end(1)) == []
