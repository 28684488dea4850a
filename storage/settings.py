"""The options of a store, and the settings of each partition's log.

`LogSettings` are the topic configs that storage uses, typed and resolved by the caller. The catalog
has them, so that a store that has just been opened does not clean logs by the defaults.
"""

from enum import StrEnum

import msgspec

from odradek.protocol.types import NEVER


class Durability(StrEnum):
    """When an append is acknowledged."""

    INTERVAL = "interval"
    """The operating system has it; the disk within `sync_interval_ms`."""

    COMMIT = "commit"
    """The disk has it: fdatasync before the turn's commit returns."""


class TimestampType(StrEnum):
    """message.timestamp.type."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configs of one partition's log. Defaults are Kafka's (4.x), -1 means no limit."""

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
    """The options of one store; every store of a node gets the same ones."""

    durability: Durability = Durability.INTERVAL
    sync_interval_ms: int = 1_000
    segment_bytes: int = 1 << 30
    segment_bytes_min: int = 1 << 20
    """A topic's segment.bytes below this does not roll the segment all partitions share."""
    segment_dead_bytes_max: int = 4 << 20
    """The active segment is sealed, so that its file can be given back, when this much of it and at
    least half can be read no more: its partitions were deleted, or their log starts have passed."""
    segment_map_bytes: int = 0
    """Virtual size of a segment's memory map; 0 takes twice `segment_bytes` plus room for the
    largest turn. It costs address space, not memory or disk."""
    catalog_map_bytes: int = 4 << 30
    status_slots: int = 1 << 18
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_ms: int = 600_000
    retention_check_interval_ms: int = 300_000
    """Kafka's log.retention.check.interval.ms."""
    cleaner_backoff_ms: int = 15_000
    """Kafka's log.cleaner.backoff.ms."""
    compaction_keys_max: int = 400_000
    """Keys that one compaction pass remembers: about 60 MB while it runs."""
    checkpoint_batches: int = 128
    """After so many batches of a partition its state is written beside them, which bounds what
    opening the store after a kill has to read."""

    def map_bytes(self) -> int:
        """The virtual size of a new segment's map."""
        return self.segment_map_bytes or 2 * self.segment_bytes + (512 << 20)
