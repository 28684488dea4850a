"""Offsets inside open transactions: what becomes real, what supersedes what, what can be undone."""

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


def test_a_commit_makes_them_real(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    offsets.add(pending(1, 7, partition=1))
    assert offsets.is_unstable(KEY)
    assert offsets.has_any("g")
    assert offsets.end(end(1)) == [offset(5), offset(7, 1)]
    assert not offsets.is_unstable(KEY)
    assert not offsets.has_any("g")
    assert offsets.end(end(1)) == []


def test_an_abort_drops_them(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    assert offsets.end(end(1, is_commit=False)) == []
    assert not offsets.is_unstable(KEY)


def test_a_later_offset_of_the_same_transaction_wins(offsets: PendingTransactionalOffsets) -> None:
    offsets.add(pending(1, 5))
    offsets.add(pending(1, 6))
    assert offsets.end(end(1)) == [offset(6)]


@pytest.mark.parametrize("value", [9, None])
def test_a_plain_commit_or_a_deletion_supersedes_what_was_pending(
    offsets: PendingTransactionalOffsets, value: int | None
) -> None:
    offsets.add(pending(1, 5))
    offsets.supersede(offset(value))
    assert not offsets.is_unstable(KEY)
    assert offsets.end(end(1)) == []


def test_of_two_transactions_the_later_write_wins_whichever_ends_first(
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


def test_only_the_transaction_of_the_same_epoch_is_known(
    offsets: PendingTransactionalOffsets,
) -> None:
    offsets.add(pending(1, 5))
    assert offsets.is_open(1, 0)
    assert not offsets.is_open(1, 1)
    assert not offsets.is_open(2, 0)


def test_each_end_is_counted_for_its_producer(offsets: PendingTransactionalOffsets) -> None:
    offsets.end(end(1))
    offsets.end(end(1, is_commit=False))
    assert (offsets.ended_count(1), offsets.ended_count(2)) == (2, 0)


def test_a_whole_transaction_that_can_be_taken_back_leaves_them_unstable() -> None:
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


def test_an_end_that_can_be_taken_back_leaves_them_unstable() -> None:
    timeline = Timeline()
    offsets = PendingTransactionalOffsets(timeline)
    offsets.add(pending(1, 5))
    timeline.advance()
    offsets.end(end(1))
    assert offsets.is_unstable(KEY)
    timeline.revert()
    assert offsets.end(end(1)) == [offset(5)]


def test_an_addition_that_was_taken_back_is_not_there() -> None:
    timeline = Timeline()
    offsets = PendingTransactionalOffsets(timeline)
    timeline.advance()
    offsets.add(pending(1, 5))
    timeline.revert()
    assert not offsets.is_unstable(KEY)
    assert offsets.pending_keys("g") == []
    assert offsets.end(end(1)) == []
