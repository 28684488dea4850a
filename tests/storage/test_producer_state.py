"""Idempotent producers: rows on disk, sequences that wrap, entries that never change in place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.control_records import ControlType, EndTransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, BatchHeader
from odradek.protocol.types import NO_OFFSET
from odradek.storage.producer_state import (
    BATCHES_REMEMBERED,
    SEQUENCE_MAX,
    BatchMetadata,
    ProducerStateEntry,
    check_sequence,
    describe_producers,
    entry_after_batch,
    entry_after_marker,
    find_duplicate,
    is_expired,
)
from tests.support.stores import header_of

_int64 = st.integers(-(2**63), 2**63 - 1)
_sequence = st.integers(0, SEQUENCE_MAX)


@given(
    st.builds(
        ProducerStateEntry,
        st.integers(-1, 2**15 - 1),
        st.integers(-1, 2**31 - 1),
        _int64,
        _int64,
        st.lists(
            st.builds(BatchMetadata, _sequence, _int64, st.integers(0, 2**31 - 1), _int64),
            max_size=BATCHES_REMEMBERED,
        ).map(tuple),
    )
)
def test_an_entry_is_decoded_from_its_row(entry: ProducerStateEntry) -> None:
    row = entry.encode()
    assert len(row) <= 143
    assert ProducerStateEntry.decode(row) == entry


def batch(
    epoch: int, sequence: int = -1, *, count: int = 1, timestamp: int = 5, attributes: int = 0
) -> BatchHeader:
    return header_of(
        count=count,
        timestamp=timestamp,
        attributes=attributes,
        producer_id=44,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def marker(coordinator_epoch: int) -> EndTransactionMarker:
    return EndTransactionMarker(ControlType.ABORT, coordinator_epoch)


def entry_of(*batches: tuple[int, int], epoch: int = 0) -> ProducerStateEntry:
    entry = None
    offset = 0
    for sequence, count in batches:
        entry = entry_after_batch(entry, batch(epoch, sequence, count=count), offset)
        offset += count
    assert entry is not None
    return entry


def test_at_most_five_batches_are_remembered() -> None:
    entry = entry_of(*[(i, 1) for i in range(8)])
    assert [batch.last_sequence for batch in entry.batches] == [3, 4, 5, 6, 7]
    assert find_duplicate(entry, batch(0, 2, count=1)) is None
    known = find_duplicate(entry, batch(0, 3, count=1))
    assert known is not None
    assert (known.base_offset, known.last_offset) == (3, 3)


def test_a_duplicate_has_the_epoch_the_first_and_the_last_sequence_of_the_original() -> None:
    entry = entry_of((SEQUENCE_MAX - 1, 4))
    assert find_duplicate(entry, batch(0, SEQUENCE_MAX - 1, count=4)) == entry.batches[0]
    assert entry.last_sequence == 1
    assert find_duplicate(entry, batch(0, SEQUENCE_MAX - 1, count=3)) is None
    assert find_duplicate(entry, batch(0, SEQUENCE_MAX, count=3)) is None
    assert find_duplicate(entry, batch(1, SEQUENCE_MAX - 1, count=4)) is None


@pytest.mark.parametrize(
    ("epoch", "sequence", "code"),
    [
        (1, 4, ErrorCode.NONE),
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 0, ErrorCode.NONE),
        (2, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_the_next_batch_continues_the_last_or_starts_a_new_epoch_at_0(
    epoch: int, sequence: int, code: ErrorCode
) -> None:
    entry = entry_of((0, 4), epoch=1)
    assert check_sequence(entry, batch(epoch, sequence)) is code


def test_after_a_marker_that_raised_the_epoch_sequences_start_at_0() -> None:
    entry = entry_after_marker(entry_of((0, 4)), batch(1, timestamp=6), marker(9))
    assert (entry.producer_epoch, entry.batches, entry.last_sequence) == (1, (), -1)
    assert check_sequence(entry, batch(1, 0)) is ErrorCode.NONE
    assert check_sequence(entry, batch(1, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    same = entry_after_marker(entry_of((0, 4)), batch(0, timestamp=6), marker(9))
    assert check_sequence(same, batch(0, 4)) is ErrorCode.NONE


def test_a_transaction_starts_with_its_first_batch_and_ends_with_its_marker() -> None:
    first = entry_after_batch(None, batch(0, 0, count=2, attributes=TRANSACTIONAL), 10)
    second = entry_after_batch(
        first, batch(0, 2, count=2, timestamp=6, attributes=TRANSACTIONAL), 20
    )
    assert first.transaction_first_offset == second.transaction_first_offset == 10
    assert check_sequence(second, batch(0, 4)) is ErrorCode.INVALID_TXN_STATE
    assert check_sequence(second, batch(0, 4, attributes=TRANSACTIONAL)) is ErrorCode.NONE
    ended = entry_after_marker(second, batch(0, timestamp=7), marker(3))
    assert ended.transaction_first_offset == NO_OFFSET
    (shown,) = describe_producers({44: ended})
    assert shown == (44, 0, 3, 7, 3, -1)


def test_an_idle_producer_expires_but_not_within_a_transaction() -> None:
    idle = entry_after_batch(None, batch(0, 0, timestamp=1_000), 0)
    busy = entry_after_batch(None, batch(0, 0, timestamp=1_000, attributes=TRANSACTIONAL), 0)
    assert not is_expired(idle, now_ms=1_099, expiration_ms=100)
    assert is_expired(idle, now_ms=1_100, expiration_ms=100)
    assert not is_expired(busy, now_ms=9_999, expiration_ms=100)
