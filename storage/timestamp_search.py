"""Finds records of a partition by timestamp, in slices.

The headers of batches and the indexes over them say where the record is, so that hardly more than
the batch that holds it is decompressed. Neither the number of batches nor the size of a batch is
bounded, and a router has other clients: a search is SlicedWork, and decompresses outside of its
slices. Read transactions end within a slice.

A header can claim a timestamp that no record has. Such a batch does not hide others, unless there
are many of them. Of a batch that is not valid, or too large, only the header counts.

Called by reader.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from odradek.protocol.compression import Codec
from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import (
    BatchHeader,
    compression_of,
    decompress_records,
    timestamps_in,
    unpack_header,
)
from odradek.protocol.sliced_work import SlicedWork
from odradek.storage.cursors import batches_from, last_delta_and_timestamp
from odradek.storage.layout import STAMP_SIZE
from odradek.storage.segment import Segment
from odradek.storage.timestamps import first_to_reach, largest

HEADERS_PER_SLICE: Final = 1_000
RECORDS_PER_SLICE: Final = 1_000
"""Both are about a millisecond."""
UNFOLDED_BYTES_MAX: Final = 32 << 20
"""The uncompressed size of the largest batch whose records are searched."""
FALSE_HEADERS_MAX: Final = 8
"""Batches of one search whose header may claim a timestamp that no record has. Two have it by
right: those that the bounds of the search cut."""

SegmentEnd: TypeAlias = tuple[Segment, int]
"""A segment, and the partition's end offset in it. Several are in the order of the log."""


class TimestampAndOffset(NamedTuple):
    """The result of a search."""

    offset: int
    timestamp: int
    leader_epoch: int


class _Batch(NamedTuple):
    """A copy of a batch: no transaction is open while it is searched."""

    header: BatchHeader
    content: bytes


class _Candidate(NamedTuple):
    """What may be the record with the largest timestamp: in the batch at `base_offset`, or (None)
    somewhere in the segment, which has no larger timestamp."""

    timestamp: int
    segment: int
    base_offset: int | None


def first_record(
    segments: Iterable[SegmentEnd], number: int, timestamp: int, *, start: int, end: int
) -> SlicedWork[TimestampAndOffset | None]:
    """The first record in [start, end) with this timestamp or a later one."""
    for segment, segment_end in segments:
        stop = min(end, segment_end)
        with segment.begin() as transaction:
            at = first_to_reach(transaction, segment.batches, segment.timestamps, number, timestamp)
        if at is None:
            continue
        # A batch before `start` may have reached it first. Then the headers are scanned.
        at = max(at, start)
        while True:
            batch = yield from _first_batch(segment, number, at, stop, timestamp)
            if batch is None:
                break
            found = yield from _first_in_batch(batch, timestamp, start=start, end=end)
            if found is not None:
                return found
            at = batch.header.next_offset
        yield None
    return None


def largest_timestamp(
    segments: Sequence[SegmentEnd], number: int, *, start: int, end: int
) -> SlicedWork[TimestampAndOffset | None]:
    """The first record in [start, end) with the largest timestamp there. None if no record has a
    timestamp."""
    candidates: list[_Candidate] = []
    for index, (segment, segment_end) in enumerate(segments):
        with segment.begin() as transaction:
            found = largest(
                transaction,
                segment.batches,
                segment.timestamps,
                number,
                end_offset=min(end, segment_end),
            )
        if found is not None:
            timestamp, base_offset = found
            # The index has no more than the first batch that reached it.
            is_visible = base_offset >= start
            candidates.append(_Candidate(timestamp, index, base_offset if is_visible else None))
    false_headers: set[int] = set()
    records: list[TimestampAndOffset] = []
    while candidates:
        yield None
        best = max(candidates, key=lambda each: (each.timestamp, -each.segment))
        known = max(records, key=lambda each: (each.timestamp, -each.offset), default=None)
        if known is not None and known.timestamp > best.timestamp:
            return known
        candidates.remove(best)
        segment, segment_end = segments[best.segment]
        stop = min(end, segment_end)
        if best.base_offset is None:
            scanned = yield from _largest_header(segment, number, start, stop, false_headers)
            if scanned is not None:
                candidates.append(_Candidate(scanned[0], best.segment, scanned[1]))
            continue
        batch = yield from _first_batch(segment, number, best.base_offset, stop, best.timestamp)
        if batch is None:
            continue
        found_record = yield from _first_in_batch(batch, best.timestamp, start=start, end=end)
        if found_record is not None:
            records.append(found_record)
            continue
        if len(false_headers) == FALSE_HEADERS_MAX:
            continue
        false_headers.add(best.base_offset)
        inner = yield from _largest_in_batch(batch, start=start, end=end)
        if inner is not None:
            records.append(inner)
        candidates.append(best._replace(base_offset=None))
    return max(records, key=lambda each: (each.timestamp, -each.offset), default=None)


def _first_batch(
    segment: Segment, number: int, at: int, end: int, timestamp: int
) -> SlicedWork[_Batch | None]:
    """The first batch in [at, end) whose header has this timestamp or a later one."""
    while True:
        with segment.begin() as transaction:
            batches = batches_from(transaction, segment.batches, number, at)
            for count, (base_offset, value) in enumerate(batches, 1):
                if base_offset >= end:
                    return None
                last_delta, batch_timestamp = last_delta_and_timestamp(value)
                if batch_timestamp >= timestamp:
                    return _Batch(unpack_header(value, STAMP_SIZE), bytes(value[STAMP_SIZE:]))
                at = base_offset + last_delta + 1
                if count == HEADERS_PER_SLICE:
                    break
            else:
                return None
        yield None


def _largest_header(
    segment: Segment, number: int, at: int, end: int, excluded: set[int]
) -> SlicedWork[tuple[int, int] | None]:
    """The largest timestamp of a header in [at, end), with the base offset of its first batch.
    None if none has a timestamp. Those at the `excluded` base offsets are left out."""
    largest_so_far, first_offset = -1, -1
    while True:
        with segment.begin() as transaction:
            batches = batches_from(transaction, segment.batches, number, at)
            for count, (base_offset, value) in enumerate(batches, 1):
                if base_offset >= end:
                    return None if largest_so_far < 0 else (largest_so_far, first_offset)
                last_delta, timestamp = last_delta_and_timestamp(value)
                if timestamp > largest_so_far and base_offset not in excluded:
                    largest_so_far, first_offset = timestamp, base_offset
                at = base_offset + last_delta + 1
                if count == HEADERS_PER_SLICE:
                    break
            else:
                return None if largest_so_far < 0 else (largest_so_far, first_offset)
        yield None


def _first_in_batch(
    batch: _Batch, timestamp: int, *, start: int, end: int
) -> SlicedWork[TimestampAndOffset | None]:
    """The first record in [start, end) with this timestamp or a later one. Of a batch that cannot
    be read only the header counts."""
    header = batch.header
    epoch = header.partition_leader_epoch
    data = yield from _unfolded(batch)
    try:
        for count, (offset, record_timestamp) in enumerate(_records(data, header), 1):
            if record_timestamp >= timestamp and start <= offset < end:
                return TimestampAndOffset(offset, record_timestamp, epoch)
            if count % RECORDS_PER_SLICE == 0:
                yield None
    except ProtocolError:
        return TimestampAndOffset(max(header.base_offset, start), header.max_timestamp, epoch)
    return None


def _largest_in_batch(
    batch: _Batch, *, start: int, end: int
) -> SlicedWork[TimestampAndOffset | None]:
    """The first record of the batch in [start, end) with the largest timestamp there."""
    found: TimestampAndOffset | None = None
    latest = -1
    data = yield from _unfolded(batch)
    try:
        for count, (offset, timestamp) in enumerate(_records(data, batch.header), 1):
            if timestamp > latest and start <= offset < end:
                latest = timestamp
                found = TimestampAndOffset(offset, timestamp, batch.header.partition_leader_epoch)
            if count % RECORDS_PER_SLICE == 0:
                yield None
    except ProtocolError:
        return found
    return found


def _unfolded(batch: _Batch) -> SlicedWork[bytes | None]:
    """The uncompressed records; None if they cannot be read."""
    if batch.header.attributes & 7 == Codec.NONE:
        return _decompress(batch)
    return (yield partial(_decompress, batch))


def _decompress(batch: _Batch) -> bytes | None:
    try:
        compression_of(batch.header.attributes)
        return decompress_records(batch.content, batch.header, limit=UNFOLDED_BYTES_MAX)
    except ProtocolError:
        return None


def _records(data: bytes | None, header: BatchHeader) -> Iterator[tuple[int, int]]:
    if data is None:
        raise ProtocolError("the records of a batch cannot be read")
    return timestamps_in(data, header)
