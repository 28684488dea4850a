"""The backlog of a consumer: unread records and bytes, and the timestamp of the first one.

The work is bounded for any log: `BATCHES_WALKED_MAX` batches are read one by one, and whole
segments are counted by the catalog's rows. A backlog within these batches is exact. In a longer
one, parts of the first and the last segment are estimated by proportion (`is_estimate`).

Called by reader.py.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, NamedTuple

from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    iter_timestamps,
    unpack_header,
)
from odradek.storage.cursors import seek
from odradek.storage.layout import STAMP_SIZE
from odradek.storage.segment import Extent, Segment

BATCHES_WALKED_MAX: Final = 64
"""Headers read for one backlog, unless the caller asks for fewer."""
UNFOLDED_BYTES_MAX: Final = 64 << 10
"""The largest batch that is decompressed to find the timestamp of a record in its middle."""

_unpack_place = Struct(">I12xq").unpack_from
"""Partition number and base offset of a stamped value."""
_unpack_extent = Struct(">hi").unpack_from
_EXTENT_AT: Final = STAMP_SIZE + ATTRIBUTES_AT
"""Attributes and last offset delta."""
_unpack_count = Struct(">i").unpack_from
_COUNT_AT: Final = STAMP_SIZE + HEADER_BYTES - 4


class Backlog(NamedTuple):
    """The records between an offset and an end (exclusive).

    `record_count` and `byte_count` leave out transaction markers and offsets that compaction
    removed, in the batches that were read. Of the batch that contains the offset, `byte_count` has
    the share of the records from there on, so that it shrinks with every record. `first_timestamp`
    is that of the first record, -1 if it has none or there is no record."""

    record_count: int
    byte_count: int
    is_estimate: bool
    first_timestamp: int


class _Walk:
    """The sums over the batches that are read one by one."""

    __slots__ = (
        "batches_left",
        "byte_count",
        "first_timestamp",
        "has_record",
        "record_count",
        "stored_bytes",
    )

    def __init__(self, batches_max: int) -> None:
        self.batches_left = batches_max
        self.record_count = 0
        self.byte_count = 0
        self.stored_bytes = 0
        """The bytes of all batches that were read, with markers and with records before."""
        self.first_timestamp = -1
        self.has_record = False

    def over(self, segment: Segment, number: int, offset: int, end_offset: int) -> int:
        """Read the batches of [offset, end_offset). Returns the offset reached."""
        transaction = segment.begin()
        try:
            cursor = transaction.cursor(segment.batches)
            if not seek(cursor, number, offset):
                return end_offset
            value: memoryview
            base_offset: int
            for value in cursor.iternext(False, True):
                at_number, base_offset = _unpack_place(value)
                if at_number != number or base_offset >= end_offset:
                    break
                if not self.batches_left:
                    return max(base_offset, offset)
                self.batches_left -= 1
                self._add(value, base_offset, offset)
        finally:
            transaction.abort()
        return end_offset

    def _add(self, value: memoryview, base_offset: int, offset: int) -> None:
        attributes, last_delta = _unpack_extent(value, _EXTENT_AT)
        last_offset = base_offset + last_delta
        batch_bytes = len(value) - STAMP_SIZE
        self.stored_bytes += batch_bytes
        if attributes & CONTROL or last_offset < offset:
            return
        # Of the batch that contains the offset, only the records from there on.
        span = last_offset - max(offset, base_offset) + 1
        (count,) = _unpack_count(value, _COUNT_AT)
        unread = min(count, span)
        self.record_count += unread
        self.byte_count += batch_bytes * unread // count if unread else 0
        if not self.has_record:
            self.has_record = True
            self.first_timestamp = _timestamp_at(value, offset)


def measure(
    extents: Iterable[Extent],
    open_segment: Callable[[int], Segment],
    number: int,
    offset: int,
    end_offset: int,
    batches_max: int,
) -> Backlog:
    """The backlog of [offset, end_offset). The extents must be in the order of the log. Segments
    are opened by id, and only those whose batches are read."""
    walk = _Walk(batches_max)
    record_count = byte_count = 0
    is_estimate = False
    for extent in extents:
        first = max(offset, extent.first_offset)
        end = min(end_offset, extent.end_offset)
        if first >= end:
            continue
        stored_before = walk.stored_bytes
        reached = first
        if walk.batches_left:
            reached = walk.over(open_segment(extent.segment_id), number, first, end)
        if reached >= end:
            continue
        record_count += end - reached
        if first == extent.first_offset and end == extent.end_offset:
            byte_count += extent.byte_count - (walk.stored_bytes - stored_before)
        else:
            offset_count = extent.end_offset - extent.first_offset
            byte_count += extent.byte_count * (end - reached) // offset_count
            is_estimate = True
    return Backlog(
        walk.record_count + record_count,
        walk.byte_count + byte_count,
        is_estimate,
        walk.first_timestamp,
    )


def _timestamp_at(value: memoryview, offset: int) -> int:
    """The timestamp of the batch's first record from `offset` on, or one that is not later."""
    header = unpack_header(value, STAMP_SIZE)
    batch = value[STAMP_SIZE:]
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    is_told_by_header = header.base_offset >= offset and not header.attributes & DELETE_HORIZON
    if is_told_by_header or len(batch) > UNFOLDED_BYTES_MAX:
        return header.base_timestamp
    try:
        for record_offset, timestamp in iter_timestamps(batch, header):
            if record_offset >= offset:
                return timestamp
    except ProtocolError:
        pass  # only the header can be read
    return header.max_timestamp
