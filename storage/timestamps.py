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
    *,
    end_offset: int,
) -> tuple[int, int] | None:
    """The largest timestamp of the partition's batches in the segment below `end_offset`, and the
    base offset of the first batch with it. None if none has a timestamp."""
    cursor = transaction.cursor(timestamps)
    entry = _last_entry(cursor, number, end_offset)
    if entry is None:
        return None
    latest, first_offset = entry
    seen_bytes = 0
    for base_offset, value in batches_from(transaction, batches, number, first_offset):
        if base_offset >= end_offset:
            break
        timestamp = last_delta_and_timestamp(value)[1]
        if timestamp > latest:
            latest, first_offset = timestamp, base_offset
        seen_bytes += len(value) - STAMP_SIZE
        if seen_bytes >= INDEX_INTERVAL_BYTES:
            break
    return latest, first_offset


def _last_entry(
    cursor: "lmdb.Cursor[memoryview]", number: int, end_offset: int
) -> tuple[int, int] | None:
    """(timestamp, base offset) of the partition's last entry below `end_offset`. Timestamps and
    offsets grow together: the entries are bisected by timestamp."""

    def current() -> tuple[int, int] | None:
        at_number, timestamp = KEY.unpack(cursor.key())
        return (timestamp, OFFSET.unpack(cursor.value())[0]) if at_number == number else None

    if not (cursor.prev() if cursor.set_range(KEY.pack(number + 1, 0)) else cursor.last()):
        return None
    last = current()
    if last is None or last[1] < end_offset:
        return last
    found: tuple[int, int] | None = None
    low, high = 0, last[0]
    while low < high:
        middle = (low + high) // 2
        cursor.set_range(KEY.pack(number, middle))
        entry = current()
        assert entry is not None, "the last entry is not below the middle"
        if entry[1] < end_offset:
            found = entry
            low = entry[0] + 1
        else:
            high = middle
    return found
