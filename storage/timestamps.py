"""The timestamp index of a segment: where a partition's largest timestamp grew.

An entry says: the batch at this base offset was the first of its segment to reach this timestamp.
The index is sparse by one rule that writer and lookup share: growth within `INDEX_INTERVAL_BYTES`
after an entry goes unwritten, growth beyond it is always written. So a lookup reads at most so many
bytes of headers, even where a partition's timestamps stand still for gigabytes.

Written by append.py within a turn and by SegmentWriter outside of one; read by reader.py.
"""

from collections.abc import Iterator
from struct import Struct

import lmdb

from storage.layout import KEY, OFFSET, STAMP_SIZE

INDEX_INTERVAL_BYTES = 64 << 10


class TimestampIndexer:
    """What is known of one partition's timestamps in one segment while it is written."""

    __slots__ = ("max_timestamp", "unindexed_bytes")

    def __init__(self, max_timestamp: int = -1) -> None:
        self.max_timestamp = max_timestamp
        # Full from the start: the first growth after opening a segment is always written.
        self.unindexed_bytes = INDEX_INTERVAL_BYTES

    def note(self, max_timestamp: int, size: int) -> bool:
        """Take notice of the next batch; True if it needs an entry."""
        unindexed_bytes = self.unindexed_bytes
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            if unindexed_bytes >= INDEX_INTERVAL_BYTES:
                self.unindexed_bytes = size
                return True
        self.unindexed_bytes = unindexed_bytes + size
        return False


_HEADER_FIELDS = Struct(">i8xq")  # last offset delta, max timestamp
_HEADER_FIELDS_AT = STAMP_SIZE + 23


def first_to_reach(
    transaction: "lmdb.Transaction[memoryview]",
    batches: "lmdb._Database",
    timestamps: "lmdb._Database",
    number: int,
    timestamp: int,
) -> int | None:
    """The base offset of the first batch of the segment whose max timestamp is `timestamp` or
    later; None if there is none."""
    cursor = transaction.cursor(timestamps)
    key = KEY.pack(number, max(timestamp, 0))
    indexed: int | None = None
    if cursor.set_range(key):
        if KEY.unpack(cursor.key())[0] == number:
            indexed = OFFSET.unpack(cursor.value())[0]
        has_before = cursor.prev()
    else:
        has_before = cursor.last()
    if not has_before or KEY.unpack(cursor.key())[0] != number:
        return indexed
    # Between the entry before and the one found only so many bytes can have grown unwritten.
    start = OFFSET.unpack(cursor.value())[0]
    seen_bytes = 0
    for base_offset, value in batches_from(transaction, batches, number, start):
        if _HEADER_FIELDS.unpack_from(value, _HEADER_FIELDS_AT)[1] >= timestamp:
            return base_offset
        seen_bytes += len(value) - STAMP_SIZE
        if seen_bytes >= INDEX_INTERVAL_BYTES:
            break
    return indexed


def largest(
    transaction: "lmdb.Transaction[memoryview]",
    batches: "lmdb._Database",
    timestamps: "lmdb._Database",
    number: int,
) -> int:
    """The largest max timestamp of the partition's batches in the segment, -1 if there is none."""
    cursor = transaction.cursor(timestamps)
    found = cursor.prev() if cursor.set_range(KEY.pack(number + 1, 0)) else cursor.last()
    if not found:
        return -1
    indexed_number, timestamp = KEY.unpack(cursor.key())
    if indexed_number != number:
        return -1
    result: int = timestamp
    seen_bytes = 0
    start = OFFSET.unpack(cursor.value())[0]
    for _, value in batches_from(transaction, batches, number, start):
        result = max(result, _HEADER_FIELDS.unpack_from(value, _HEADER_FIELDS_AT)[1])
        seen_bytes += len(value) - STAMP_SIZE
        if seen_bytes >= INDEX_INTERVAL_BYTES:
            break
    return result


def batches_from(
    transaction: "lmdb.Transaction[memoryview]",
    batches: "lmdb._Database",
    number: int,
    offset: int,
) -> Iterator[tuple[int, memoryview]]:
    """(base offset, stamped value) of the partition's batches from the one that contains `offset`,
    or follows it, on. Valid inside the transaction."""
    cursor = transaction.cursor(batches)
    found = cursor.set_range(KEY.pack(number, offset))
    if not found or KEY.unpack(cursor.key()) != (number, offset):
        # The batch before may contain the offset.
        if cursor.prev() if found else cursor.last():
            before, base_offset = KEY.unpack(cursor.key())
            if before != number or base_offset + _last_delta(cursor.value()) < offset:
                found = cursor.next()
            else:
                found = True
        else:
            found = cursor.first()
    if not found:
        return
    for key, value in cursor.iternext():
        row_number, base_offset = KEY.unpack(key)
        if row_number != number:
            return
        yield base_offset, value


def _last_delta(value: memoryview) -> int:
    delta: int = _HEADER_FIELDS.unpack_from(value, _HEADER_FIELDS_AT)[0]
    return delta
