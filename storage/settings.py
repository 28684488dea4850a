"""The options of a store, and the settings of each partition's log.

`LogSettings` are the topic configs that storage uses, typed and resolved by the caller. They are
stored in the catalog, so that a store does not apply the defaults after it was opened.
"""

from enum import StrEnum
from typing import Final

import msgspec

from odradek.protocol.types import NEVER

ARCHIVE_MAX_MS: Final = 30 * 86_400_000
"""So long a log waits by default for the group of its archive: a month."""


class Durability(StrEnum):
    """When an append is acknowledged."""

    INTERVAL = "interval"
    """When the operating system has it. The disk has it within `sync_interval_ms`."""

    COMMIT = "commit"
    """When the disk has it: fdatasync before the turn's commit returns."""


class TimestampType(StrEnum):
    """message.timestamp.type."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configs of one partition's log. Defaults are Kafka's (4.x), -1 means no limit."""

    archive_group: str = ""
    """The group that has to commit records before they are deleted; empty: none has to."""
    archive_max_bytes: int = -1
    archive_max_ms: int = ARCHIVE_MAX_MS
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    max_compaction_lag_ms: int = NEVER
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = 3_600_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a store. All stores of a node have the same."""

    durability: Durability = Durability.INTERVAL
    sync_interval_ms: int = 1_000
    segment_bytes: int = 1 << 30
    segment_bytes_min: int = 1 << 20
    """A topic's segment.bytes counts as at least this much, as partitions share segments."""
    segment_dead_bytes_max: int = 4 << 20
    """The active segment is sealed when this much of it, and at least half, is dead: its partitions
    were deleted, or it is below their log starts. Only a sealed segment can be dropped."""
    segment_map_bytes: int = 0
    """Virtual size of a segment's memory map. 0: twice `segment_bytes` plus room for the largest
    turn. It takes address space, not memory or disk."""
    catalog_map_bytes: int = 4 << 30
    status_slots: int = 1 << 18
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_ms: int = 600_000
    retention_check_interval_ms: int = 300_000
    """Kafka's log.retention.check.interval.ms."""
    cleaner_backoff_ms: int = 15_000
    """Kafka's log.cleaner.backoff.ms."""
    compaction_keys_max: int = 400_000
    """Keys in the offset map of a compaction pass: about 60 MB while it runs. More are in a
    file."""
    checkpoint_batches: int = 128
    """After this many batches of a partition its state is written into the segment, which limits
    what is read when the store is opened after a kill."""

    def map_bytes(self) -> int:
        """The virtual size of a new segment's map."""
        return self.segment_map_bytes or 2 * self.segment_bytes + (512 << 20)
