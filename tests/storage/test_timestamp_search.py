"""Searches by timestamp decompress hardly more than the batch they find, and work in slices.

That they find what a search of all records finds is tested in test_reader.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.records import Record, build_batch
from odradek.protocol.sliced_work import SlicedWork
from odradek.storage import timestamp_search
from odradek.storage.reader import StoreReader
from odradek.storage.store import Store
from odradek.storage.timestamp_search import HEADERS_PER_SLICE, RECORDS_PER_SLICE
from odradek.storage.validation import AppendOrigin
from tests.support.poison_batches import BODIES, raw_batch
from tests.support.stores import NOW_MS, append_now, batch_of, create, open_store

T = TypeVar("T")


class Work(NamedTuple):
    """What a search found, and what it took."""

    offset: int | None
    unfolded_count: int
    slice_count: int


def done(search: SlicedWork[timestamp_search.TimestampAndOffset | None]) -> Work:
    unfolded = slices = 0
    content: bytes | None = None
    while True:
        try:
            task: Callable[[], bytes | None] | None = search.send(content)
        except StopIteration as stop:
            return Work(stop.value and stop.value.offset, unfolded, slices)
        content = None
        if task is None:
            slices += 1
        else:
            unfolded += 1
            content = task()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def reader(store: Store, tmp_path: Path) -> Iterator[StoreReader]:
    reader = StoreReader(tmp_path)
    yield reader
    reader.close()


def fill(store: Store, count: int = 50) -> int:
    """A partition of batches with three records each, the newest in the middle."""
    number = create(store)
    for index in range(count):
        latest = NOW_MS - 1000 + index if index != count // 2 else NOW_MS
        stamps = [latest - 5, latest, latest - 3]
        append_now(store, number, batch_of(3, timestamps=stamps, codec=Codec.ZSTD))
    return number


def append_unchecked(store: Store, number: int, *batches: bytes) -> None:
    """Batches that were written before every record was checked."""
    append_now(store, number, *batches, origin=AppendOrigin.COORDINATOR)


def test_the_largest_timestamp_is_found_in_one_batch(store: Store, reader: StoreReader) -> None:
    number = fill(store)
    assert done(reader.max_timestamp_offset(number, end_offset=150))[:2] == (76, 1)


def test_a_deleted_newest_record_costs_no_more_batches(store: Store, reader: StoreReader) -> None:
    """KIP-734. Every batch was decompressed once, and again with every retry."""
    number = fill(store)
    store.log_starts.delete_records(number, 78)
    assert done(reader.max_timestamp_offset(number, end_offset=150))[:2] == (148, 1)


def test_a_newest_record_above_the_high_watermark_costs_no_more_batches(
    store: Store, reader: StoreReader
) -> None:
    number = fill(store)
    assert done(reader.max_timestamp_offset(number, end_offset=75))[:2] == (73, 1)


def test_bounds_within_batches_cost_one_batch_each(store: Store, reader: StoreReader) -> None:
    number = fill(store)
    store.log_starts.delete_records(number, 77)  # the newest is deleted, its batch is not
    work = done(reader.max_timestamp_offset(number, end_offset=148))
    assert work.offset == 77
    assert work.unfolded_count <= 3


def test_headers_are_read_in_slices(store: Store, reader: StoreReader) -> None:
    number = create(store)
    append_now(store, number, batch_of(timestamp=NOW_MS))
    for _ in range(10):
        append_now(store, number, *[batch_of(timestamp=NOW_MS - 10) for _ in range(500)])
    store.log_starts.delete_records(number, 1)
    work = done(reader.max_timestamp_offset(number, end_offset=5001))
    assert work.offset == 1
    assert work.slice_count >= 5000 // HEADERS_PER_SLICE


def test_records_of_a_large_batch_are_walked_in_slices(store: Store, reader: StoreReader) -> None:
    number = create(store)
    count = 20 * RECORDS_PER_SLICE
    stamps = [NOW_MS - 10] * (count - 1) + [NOW_MS]
    append_now(store, number, batch_of(count, timestamps=stamps, size=1, codec=Codec.ZSTD))
    for search in (
        reader.max_timestamp_offset(number, end_offset=count),
        reader.offset_for_timestamp(number, NOW_MS),
    ):
        work = done(search)
        assert work.offset == count - 1
        assert work.unfolded_count == 1
        assert work.slice_count >= 19


def test_of_a_batch_that_is_too_large_only_the_header_counts(
    store: Store, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamp_search, "UNFOLDED_BYTES_MAX", 1000)
    number = create(store)
    stamps = [NOW_MS - 10, NOW_MS]
    append_now(store, number, batch_of(2, timestamps=stamps, size=2000, codec=Codec.ZSTD))
    assert done(reader.offset_for_timestamp(number, NOW_MS)).offset == 0
    assert done(reader.max_timestamp_offset(number, end_offset=2)).offset == 0


def test_false_headers_do_not_hide_the_largest_timestamp(store: Store, reader: StoreReader) -> None:
    number = create(store)
    false = build_batch([Record(0, NOW_MS - 50, None, b"v")], max_timestamp=NOW_MS)
    append_unchecked(store, number, false, batch_of(timestamp=NOW_MS - 10), false)
    assert done(reader.max_timestamp_offset(number, end_offset=3)).offset == 1


def test_many_false_headers_end_the_search(store: Store, reader: StoreReader) -> None:
    number = create(store)
    false = build_batch([Record(0, NOW_MS - 50, None, b"v")], max_timestamp=NOW_MS)
    append_unchecked(store, number, *[false] * 100)
    work = done(reader.max_timestamp_offset(number, end_offset=100))
    assert work.offset == 0
    assert work.slice_count < 50


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", BODIES)
def test_batches_that_cannot_be_read_end_no_search(
    store: Store, reader: StoreReader, name: str, codec: Codec
) -> None:
    """They were accepted before every record was checked."""
    body = BODIES[name]
    poison = raw_batch(
        b"".join(body.records), body.record_count, base_timestamp=NOW_MS, codec=codec
    )
    number = create(store)
    append_unchecked(store, number, poison, batch_of(timestamp=NOW_MS + 5))
    last = body.record_count
    assert done(reader.offset_for_timestamp(number, NOW_MS + 1)).offset == last
    assert done(reader.offset_for_timestamp(number, NOW_MS)).offset in range(last + 1)
    assert done(reader.max_timestamp_offset(number, end_offset=last + 1)).offset == last
    done(reader.max_timestamp_offset(number, end_offset=last))
