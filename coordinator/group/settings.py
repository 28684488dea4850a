"""What the configuration says about groups, typed, with Kafka's defaults.

The shell builds a new one from the metadata image whenever a config changes and hands it to every
shard; nothing else is read from the configuration. Called by everything in this package.
"""

import msgspec


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's keys: group.*, offset.metadata.max.bytes, offsets.retention.*."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2_147_483_647
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    retention_check_interval_ms: int = 600_000
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in JoinGroup before it is taken for gone: fixed in Kafka."""
