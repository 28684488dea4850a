"""The timestamp index of a segment: where a partition's largest timestamp grew.

An entry says: the batch at this base offset was the first of its segment to reach this timestamp.
The index is sparse by one rule that writer and lookup share: growth within `INDEX_INTERVAL_BYTES`
after an entry goes unwritten, growth beyond it is always written. So a lookup reads at most so many
bytes of headers, even where a partition's timestamps stand still for gigabytes.

Written by append.py within a turn and by SegmentWriter outside of one; read by reader.py.
"""

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
