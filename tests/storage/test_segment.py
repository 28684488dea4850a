"""Segments on their own: the writer for whole files, iteration, extents."""

from pathlib import Path

import pytest

from odradek.protocol.records import read_header
from odradek.storage.environment import StorageError
from odradek.storage.layout import EPOCH_KEY, OFFSET, STAMP, segment_path
from odradek.storage.segment import Extent, Segment, SegmentWriter
from odradek.storage.transactions import AbortedTransactionRow
from tests.support.stores import NOW_MS, as_stored, batch_of


def has_batches(segment: Segment, number: int) -> bool:
    return any(True for _ in segment.iterate(number, number + 1))


def test_an_extent_is_decoded_from_its_row() -> None:
    extent = Extent(7, 10, 20, 3_000, 4, -1, 99)
    assert Extent.decode(7, extent.encode()) == extent


def test_a_segment_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    """Whoever seals it tries again then."""
    segment = Segment.create(tmp_path, 1, map_bytes=64 << 20)
    assert not segment.has_aborted()
    segment.lmdb.close()
    with pytest.raises(StorageError):
        segment.has_aborted()


def test_a_writer_fills_a_segment_that_reads_back(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=64 << 20)
    writer = SegmentWriter(segment)
    written = []
    for number in (2, 5):
        for i in range(40):
            batch = as_stored(
                batch_of(3, size=90_000 * (i % 2), timestamp=NOW_MS + i), 3 * i, i // 9
            )
            writer.put(number, 3 * i, batch, log_end_before=3 * i, append_ms=NOW_MS)
            written.append((number, 3 * i, batch, 3 * i))
    writer.put_aborted(5, 30, AbortedTransactionRow(1, 2, 30, 31).encode())
    extents = writer.finish()
    del writer
    stored = [
        (found.number, found.base_offset, bytes(found.batch), found.log_end_before)
        for found in segment.iterate()
    ]
    assert stored == written
    size = sum(len(batch) for number, _, batch, _ in written if number == 2)
    assert extents[2] == Extent(1, 0, 120, size, 40, NOW_MS + 39, NOW_MS)
    assert [found.base_offset for found in segment.iterate(5, 6, offset=110)] == [111, 114, 117]
    assert list(segment.iterate(3, 5)) == []
    assert has_batches(segment, 2)
    assert not has_batches(segment, 3)
    with segment.begin() as transaction:
        start = transaction.get(EPOCH_KEY.pack(2, 1), b"", db=segment.epochs)
        assert bytes(start) == OFFSET.pack(27)
        assert transaction.stat(segment.aborted)["entries"] == 1
        assert transaction.stat(segment.timestamps)["entries"] >= 4


def test_every_batch_has_a_stamp_with_its_partition(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    writer = SegmentWriter(segment)
    writer.put(3, 8, as_stored(batch_of(2), 8), log_end_before=5)
    writer.finish()
    with segment.begin() as transaction:
        ((_, value),) = list(transaction.cursor(segment.batches))
        number, turn, log_end_before = STAMP.unpack_from(value)
        assert (number, log_end_before) == (3, 5)
        assert turn == transaction.id() & 0xFFFFFFFF
        assert read_header(value, STAMP.size).base_offset == 8


def test_a_writer_refuses_batches_out_of_order(tmp_path: Path) -> None:
    writer = SegmentWriter(Segment.create(tmp_path, 1, map_bytes=1 << 20))
    writer.put(3, 8, as_stored(batch_of(2), 8), log_end_before=8)
    with pytest.raises(StorageError):
        writer.put(2, 0, as_stored(batch_of(2), 0), log_end_before=0)
    writer.abort()


def test_a_writer_with_a_full_map_raises_a_storage_error(tmp_path: Path) -> None:
    writer = SegmentWriter(Segment.create(tmp_path, 1, map_bytes=1 << 20))

    def fill() -> None:
        for i in range(20):
            writer.put(1, i, as_stored(batch_of(1, size=100_000), i), log_end_before=i)

    with pytest.raises(StorageError):
        fill()
    writer.abort()


def test_a_flush_commits_what_was_put_so_far(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    writer = SegmentWriter(segment)
    writer.put(1, 0, as_stored(batch_of(1), 0), log_end_before=0)
    assert not has_batches(segment, 1)
    writer.flush()
    assert has_batches(segment, 1)
    writer.abort()
    assert has_batches(segment, 1)


def test_a_missing_or_foreign_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Segment.open(tmp_path, 9)
    segment_path(tmp_path, 9).write_bytes(b"no segment" * 1000)
    with pytest.raises(StorageError):
        Segment.open(tmp_path, 9)


def test_a_sealed_segment_is_open_for_reading_only(tmp_path: Path) -> None:
    Segment.create(tmp_path, 1, map_bytes=1 << 20)
    segment = Segment.open(tmp_path, 1)
    with pytest.raises(Exception, match=r"[Rr]ead|EACCES|Permission"):
        segment.begin_write()
