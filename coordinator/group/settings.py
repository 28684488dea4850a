"""What the configuration says about groups, typed, with Kafka's defaults.

The shell builds a new one from the metadata image whenever a config changes and hands it to every
shard; nothing else is read from the configuration. Called by everything in this package.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from odradek.coordinator.group.policies import NO_POLICIES, GroupPolicies

UNIFORM: Final = "uniform"
RANGE: Final = "range"


class MigrationPolicy(StrEnum):
    """Between which protocols a group may change while it has members (KIP-848)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        """From classic to consumer."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        """From consumer to classic."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class GroupSettingsOverrides(msgspec.Struct, frozen=True, gc=False):
    """What was set for one group of a newer protocol; None where nothing was."""

    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    assignment_interval_ms: int | None = None


class StreamsGroupSettings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What holds for streams groups, or for one of them (KIP-1071)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    is_interval_fixed: bool = False
    """Whether the interval was set for this group: then it is kept to while nothing happens."""
    size_max: int = 2_147_483_647
    standby_count: int = 0
    initial_rebalance_delay_ms: int = 3_000
    assignment_interval_ms: int = 100


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's keys: group.*, offset.metadata.max.bytes, offsets.retention.*, and groups' own."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2_147_483_647
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    retention_check_interval_ms: int = 600_000
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in JoinGroup before it is taken for gone: fixed in Kafka."""

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_size_max: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = (UNIFORM, RANGE)
    """Those that members may ask for; the first is the default."""
    consumer_assignment_interval_ms: int = 100
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    consumer_overrides: Mapping[str, GroupSettingsOverrides] = {}
    """By group id."""
    streams: StreamsGroupSettings = StreamsGroupSettings()
    streams_overrides: Mapping[str, StreamsGroupSettings] = {}
    """By group id: all settings of a group that has some of its own."""
    rewind_by_commit_groups: frozenset[str] = frozenset()
    """Groups with group.rewind.by.commit.enable: who commits without being a member rewinds."""
    policies: GroupPolicies = NO_POLICIES
    """Of groups of all kinds."""

    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_size_max: int = 200
    share_assignment_interval_ms: int = 100
    share_overrides: Mapping[str, GroupSettingsOverrides] = {}
    """By group id."""

    def streams_of(self, group_id: str) -> StreamsGroupSettings:
        """What holds for the streams group."""
        return self.streams_overrides.get(group_id, self.streams)

    def consumer_session_timeout_ms_of(self, group_id: str) -> int:
        """After how long a silence a member of the consumer group is taken for gone."""
        own = self.consumer_overrides.get(group_id)
        if own is None or own.session_timeout_ms is None:
            return self.consumer_session_timeout_ms
        return own.session_timeout_ms

    def consumer_assignment_interval_ms_of(self, group_id: str) -> int:
        """How long after a target of the consumer group the next one is made at the earliest."""
        own = self.consumer_overrides.get(group_id)
        if own is None or own.assignment_interval_ms is None:
            return self.consumer_assignment_interval_ms
        return own.assignment_interval_ms

    def share_assignment_interval_ms_of(self, group_id: str) -> int:
        """How long after a target of the share group the next one is made at the earliest."""
        own = self.share_overrides.get(group_id)
        if own is None or own.assignment_interval_ms is None:
            return self.share_assignment_interval_ms
        return own.assignment_interval_ms

    def share_session_timeout_ms_of(self, group_id: str) -> int:
        """After how long a silence a member of the share group is taken for gone."""
        own = self.share_overrides.get(group_id)
        if own is None or own.session_timeout_ms is None:
            return self.share_session_timeout_ms
        return own.session_timeout_ms
