"""The timestamp index of a segment: where a partition's largest timestamp increased.

An entry says that the batch at this base offset was the first in the segment with this timestamp or
a later one. The index is sparse: an increase within `INDEX_INTERVAL_BYTES` after an entry gets no
entry, a later one always does. So a lookup reads at most this many bytes of batches.

Written by append.py within a turn and by SegmentWriter outside of one; read by reader.py.
"""

import lmdb

from odradek.storage.cursors import batches_from, last_delta_and_timestamp
from odradek.storage.layout import KEY, OFFSET, STAMP_SIZE

INDEX_INTERVAL_BYTES = 64 << 10


class TimestampIndexer:
    """The timestamps of one partition in a segment that is being written."""

    __slots__ = ("max_timestamp", "unindexed_bytes")

    def __init__(self, max_timestamp: int = -1) -> None:
        self.max_timestamp = max_timestamp
        # The first increase in a segment always gets an entry.
        self.unindexed_bytes = INDEX_INTERVAL_BYTES

    def note(self, max_timestamp: int, size: int) -> bool:
        """Add the next batch. True if it needs an entry."""
        unindexed_bytes = self.unindexed_bytes
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            if unindexed_bytes >= INDEX_INTERVAL_BYTES:
                self.unindexed_bytes = size
                return True
        self.unindexed_bytes = unindexed_bytes + size
        return False


def first_to_reach(
    transaction: "lmdb.Transaction[memoryview]",
    batches: "lmdb._Database",
    timestamps: "lmdb._Database",
    number: int,
    timestamp: int,
) -> int | None:
    """The base offset of the first batch in the segment whose max timestamp is `timestamp` or
    later. None if there is none."""
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
    # An increase without an entry is within this many bytes after the previous entry.
    start = OFFSET.unpack(cursor.value())[0]
    seen_bytes = 0
    for base_offset, value in batches_from(transaction, batches, number, start):
        if last_delta_and_timestamp(value)[1] >= timestamp:
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
    """The largest timestamp of the partition's batches in the segment, -1 if there is none."""
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
        result = max(result, last_delta_and_timestamp(value)[1])
        seen_bytes += len(value) - STAMP_SIZE
        if seen_bytes >= INDEX_INTERVAL_BYTES:
            break
    return result
