"""Retention: the new log start offset by retention.ms and retention.bytes.

Kafka deletes whole segment files. Here many partitions share a file, so the log start moves from
batch to batch, and the space is freed when a whole file is dead (rewrite.py). The log start never
exceeds the high watermark and never moves back.

All searches are generators that yield every few thousand headers and return an offset, because a
log may have millions of batches. Called by maintenance.py."""

from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import NamedTuple

from odradek.storage.cursors import batches_from, last_delta_and_timestamp
from odradek.storage.layout import STAMP_SIZE
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment import Extent, Segment
from odradek.storage.timestamps import first_to_reach

OpenSegment = Callable[[int], Segment]
Slices = Generator[bool, None, int]
"""Work in slices of a few milliseconds that returns an offset. Each slice yields True."""

_HEADERS_PER_SLICE = 2_000


class BatchSize(NamedTuple):
    """The size of one batch. Its offsets are [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    byte_count: int
    max_timestamp: int


def read_sizes(segment: Segment, number: int, offset: int, *, count: int) -> list[BatchSize]:
    """At most `count` batches of a partition in one segment, starting with the one that contains
    `offset` (or the next one). Reads headers only, in one short transaction."""
    with segment.begin() as transaction:
        found = batches_from(transaction, segment.batches, number, offset)
        return [_size_of(base_offset, value) for base_offset, value in islice(found, count)]


def offset_by_time(
    extents: Sequence[Extent],
    open_segment: OpenSegment,
    *,
    number: int,
    log_start_offset: int,
    timestamp_min: int,
) -> Slices:
    """The log start if all batches before the first one with timestamp `timestamp_min` or later are
    deleted. The end of the log if there is no such batch.

    `extents` are all of the partition's, including that of the active segment.
    """
    offset = log_start_offset
    for extent in extents:
        if extent.end_offset <= offset:
            continue
        if extent.max_timestamp < timestamp_min:
            offset = extent.end_offset
            continue
        segment = open_segment(extent.segment_id)
        with segment.begin() as transaction:
            reached = first_to_reach(
                transaction, segment.batches, segment.timestamps, number, timestamp_min
            )
        if reached is not None and reached >= offset:
            return min(reached, extent.end_offset)
        # A batch below the log start reached it first. Scan the headers of the others.
        at = offset
        latest = -1
        while sizes := read_sizes(segment, number, at, count=_HEADERS_PER_SLICE):
            for size in sizes:
                if size.max_timestamp >= timestamp_min:
                    return max(offset, min(size.base_offset, extent.end_offset))
                latest = max(latest, size.max_timestamp)
            at = sizes[-1].end_offset
            yield True
        if latest < 0:
            return offset  # no batch has a timestamp: the extent's timestamp counts
        offset = extent.end_offset
    return offset


class CountedPrefix(NamedTuple):
    """`byte_count` bytes of the extent are below `offset`. Cached for the next search."""

    segment_id: int
    offset: int
    byte_count: int


def offset_by_bytes(
    extents: Sequence[Extent],
    open_segment: OpenSegment,
    *,
    number: int,
    log_start_offset: int,
    bytes_min: int,
    known: dict[int, CountedPrefix],
) -> Slices:
    """The log start if the oldest batches are deleted as long as at least `bytes_min` remain.

    `known` is the caller's cache, by partition number. Each store needs its own.
    """
    excess = sum(e.byte_count for e in extents if e.end_offset > log_start_offset) - bytes_min
    offset = log_start_offset
    for extent in extents:
        if excess <= 0:
            break
        if extent.end_offset <= offset:
            continue
        if offset <= extent.first_offset and extent.byte_count <= excess:
            excess -= extent.byte_count
            offset = extent.end_offset
            continue
        # The extent's byte count includes batches below the log start.
        segment_id = extent.segment_id
        segment = open_segment(segment_id)
        below = known.get(number)
        if below is None or below.segment_id != segment_id or below.offset > offset:
            below = CountedPrefix(segment_id, extent.first_offset, 0)
        at, passed = below.offset, below.byte_count
        excess -= passed
        is_done = False
        while not is_done and (sizes := read_sizes(segment, number, at, count=_HEADERS_PER_SLICE)):
            for size in sizes:
                is_done = size.end_offset > offset and size.byte_count > excess
                if is_done or size.end_offset > extent.end_offset:
                    break
                passed += size.byte_count
                excess -= size.byte_count
                at = size.end_offset
            else:
                yield True
                continue
            break
        offset = max(offset, at)
        known[number] = CountedPrefix(segment_id, at, passed)
        if is_done:
            break
    return offset


def retained_offset(
    log: PartitionLog,
    extents: Sequence[Extent],
    open_segment: OpenSegment,
    *,
    now_ms: int,
    known: dict[int, CountedPrefix],
) -> Slices:
    """The log start by retention.ms and retention.bytes, at most the high watermark. Unchanged if
    cleanup.policy has no `delete`."""
    settings = log.settings
    if not settings.cleanup_delete:
        return log.log_start_offset
    return (
        yield from expired_offset(
            log,
            extents,
            open_segment,
            age_ms_max=settings.retention_ms,
            bytes_max=settings.retention_bytes,
            now_ms=now_ms,
            known=known,
        )
    )


def expired_offset(
    log: PartitionLog,
    extents: Sequence[Extent],
    open_segment: OpenSegment,
    *,
    age_ms_max: int,
    bytes_max: int,
    now_ms: int,
    known: dict[int, CountedPrefix],
) -> Slices:
    """The log start if nothing is older than `age_ms_max`, and what is above `bytes_max` goes (-1:
    no limit). At most the high watermark."""
    offset = log.log_start_offset
    if age_ms_max >= 0:
        offset = yield from offset_by_time(
            extents,
            open_segment,
            number=log.number,
            log_start_offset=offset,
            timestamp_min=now_ms - age_ms_max,
        )
    if bytes_max >= 0:
        offset = yield from offset_by_bytes(
            extents,
            open_segment,
            number=log.number,
            log_start_offset=offset,
            bytes_min=bytes_max,
            known=known,
        )
    return max(log.log_start_offset, min(offset, log.high_watermark))


def live_bytes(extent: Extent, log_start_offset: int) -> int:
    """Bytes of an extent at or above the log start, estimated by the share of offsets if the log
    start is inside the extent."""
    if extent.first_offset >= log_start_offset:
        return extent.byte_count
    if extent.end_offset <= log_start_offset:
        return 0
    offsets = extent.end_offset - extent.first_offset
    return extent.byte_count * (extent.end_offset - log_start_offset) // offsets


def _size_of(base_offset: int, value: memoryview) -> BatchSize:
    last_offset_delta, max_timestamp = last_delta_and_timestamp(value)
    end_offset = base_offset + last_offset_delta + 1
    return BatchSize(base_offset, end_offset, len(value) - STAMP_SIZE, max_timestamp)
