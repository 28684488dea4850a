"""The number of records before a reader, against a simple count, and the bound of its work."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.records import TRANSACTIONAL, iter_records, read_header
from odradek.storage.backlog import BATCHES_WALKED_MAX, UNFOLDED_BYTES_MAX, Backlog
from odradek.storage.reader import StoreReader
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import NOW_MS, append, append_now, batch_of, create, open_store, read_all


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def reader(store: Store) -> Iterator[StoreReader]:
    reader = StoreReader(store.directory)
    yield reader
    reader.close()


def end_of(reader: StoreReader, number: int) -> int:
    return reader.status.log_end_offset(number)


def counted(reader: StoreReader, number: int, offset: int) -> Backlog:
    """The simple model: it reads everything."""
    batches = [
        batch
        for batch in read_all(reader, number, 0)
        if read_header(batch).base_offset + read_header(batch).last_offset_delta >= offset
    ]
    records = [
        record for batch in batches for record in iter_records(batch) if record.offset >= offset
    ]
    first = records[0].timestamp if records else -1
    byte_count = 0
    for batch in batches:
        offsets = [record.offset for record in iter_records(batch)]
        byte_count += len(batch) * sum(found >= offset for found in offsets) // len(offsets)
    return Backlog(len(records), byte_count, False, first)


def test_bytes_shrink_with_every_record_and_are_none_at_the_end(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, batch_of(10, size=100), batch_of(10, size=100))
    found = [reader.backlog(number, offset, 20).byte_count for offset in range(21)]
    assert all(before > after for before, after in pairwise(found))
    assert found[-1] == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_short_backlog_equals_a_simple_count(
    store: Store, reader: StoreReader, seed: int
) -> None:
    chance = random.Random(seed)
    number, other = create(store), create(store, 1)
    clock = NOW_MS
    for _ in range(60):
        count = chance.randrange(1, 9)
        stamps = [clock + chance.randrange(-5, 6) for _ in range(count)]
        clock += chance.randrange(0, 50)
        size = chance.choice([1, 10, 3_000])
        codec = chance.choice([Codec.NONE, Codec.ZSTD])
        append_now(store, number, batch_of(count, timestamps=stamps, size=size, codec=codec))
        append_now(store, other, batch_of(2))
        if chance.random() < 0.05:
            store.roll(NOW_MS)
    end = end_of(reader, number)
    for offset in [0, end - 1, end, *(chance.randrange(end) for _ in range(20))]:
        assert reader.backlog(number, offset, end) == counted(reader, number, offset)


def test_transaction_markers_do_not_count(store: Store, reader: StoreReader) -> None:
    number = create(store)
    producer = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL}
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of(3, base_sequence=0, **producer))  # type: ignore[arg-type]
    marker = build_end_transaction_batch(
        EndTransactionMarker(ControlType.COMMIT, 0),
        timestamp_ms=NOW_MS,
        producer_id=7,
        producer_epoch=0,
    )
    append(turn, number, marker, origin=AppendOrigin.COORDINATOR)
    turn.commit()
    assert end_of(reader, number) == 4
    assert reader.backlog(number, 0, 4).record_count == 3
    behind = reader.backlog(number, 3, 4)
    assert (behind.record_count, behind.byte_count, behind.first_timestamp) == (0, 0, -1)


def test_whole_segments_beyond_the_read_batches_are_counted_by_their_extents(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    for _ in range(3):
        append_now(store, number, *(batch_of(2, size=50) for _ in range(BATCHES_WALKED_MAX)))
        store.roll(NOW_MS)
    end = end_of(reader, number)
    assert reader.backlog(number, 0, end) == counted(reader, number, 0)


def test_parts_of_segments_beyond_the_read_batches_are_estimated(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, *(batch_of(2, size=50) for _ in range(4 * BATCHES_WALKED_MAX)))
    end = end_of(reader, number)
    exact, told = counted(reader, number, 100), reader.backlog(number, 100, end)
    assert told.is_estimate
    assert told.record_count == exact.record_count
    assert told.byte_count == pytest.approx(exact.byte_count, rel=0.01)


def test_no_more_batches_are_read_than_allowed(store: Store, reader: StoreReader) -> None:
    """Markers beyond the bound count as records, because they are not read."""
    number = create(store)
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    producer = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL}
    for at in range(BATCHES_WALKED_MAX // 2 + 5):
        turn = store.begin(NOW_MS)
        append(turn, number, batch_of(base_sequence=at, **producer))  # type: ignore[arg-type]
        octets = build_end_transaction_batch(
            marker, timestamp_ms=NOW_MS, producer_id=7, producer_epoch=0
        )
        append(turn, number, octets, origin=AppendOrigin.COORDINATOR)
        turn.commit()
    end = end_of(reader, number)
    assert reader.backlog(number, 0, end).record_count == end - BATCHES_WALKED_MAX // 2


def test_a_large_batch_is_not_decompressed_for_a_timestamp(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    large = batch_of(2, timestamps=[NOW_MS, NOW_MS + 9], size=UNFOLDED_BYTES_MAX)
    append_now(store, number, large, batch_of(2, timestamps=[NOW_MS, NOW_MS + 9]))
    assert reader.backlog(number, 1, 4).first_timestamp == NOW_MS
    assert reader.backlog(number, 3, 4).first_timestamp == NOW_MS + 9
