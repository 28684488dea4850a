"""The settings of groups.

The host makes new settings from the metadata image when a config changes, and replaces those of
every shard.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final, TypeVar

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import Copied, copies, copy_of
from odradek.cluster.metadata.group_settings import (
    ConsumerGroupSettings,
    GroupPolicySettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from odradek.cluster.metadata.image import ConfigResourceType, ConfigsImage
from odradek.cluster.metadata.settings import of_group, own_values
from odradek.coordinator.group.policies import NO_POLICIES, GroupPolicies, GroupPolicyOverrides

S = TypeVar("S")

copied: Final = Copied(BrokerSettings)


@copies
class GroupSettings:
    """The broker's keys for classic groups and offsets, and the settings of the newer groups."""

    session_timeout_min_ms: int = copied(lambda broker: broker.group_min_session_timeout_ms)
    session_timeout_max_ms: int = copied(lambda broker: broker.group_max_session_timeout_ms)
    initial_rebalance_delay_ms: int = copied(lambda broker: broker.group_initial_rebalance_delay_ms)
    size_max: int = copied(lambda broker: broker.group_max_size)
    offset_metadata_bytes_max: int = copied(lambda broker: broker.offset_metadata_max_bytes)
    offsets_retention_ms: int = copied(lambda broker: broker.offsets_retention_minutes * 60_000)
    retention_check_interval_ms: int = copied(
        lambda broker: broker.offsets_retention_check_interval_ms
    )
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in JoinGroup before it is removed: fixed in Kafka."""

    consumer: ConsumerGroupSettings = copied(lambda broker: broker.consumer)
    """Of groups without own values; `consumer_overrides` has the others by group id."""
    consumer_overrides: Mapping[str, ConsumerGroupSettings] = field(default_factory=dict)
    share: ShareGroupSettings = copied(lambda broker: broker.share)
    share_overrides: Mapping[str, ShareGroupSettings] = field(default_factory=dict)
    streams: StreamsGroupSettings = copied(lambda broker: broker.streams)
    streams_overrides: Mapping[str, StreamsGroupSettings] = field(default_factory=dict)
    rewind_by_commit_groups: frozenset[str] = frozenset()
    """Groups with group.rewind.by.commit.enable: a commit by a client that is no member rewinds."""
    policies: GroupPolicies = NO_POLICIES
    """Of groups of all kinds."""

    def consumer_of(self, group_id: str) -> ConsumerGroupSettings:
        """The settings of the consumer group."""
        return self.consumer_overrides.get(group_id, self.consumer)

    def share_of(self, group_id: str) -> ShareGroupSettings:
        """The settings of the share group."""
        return self.share_overrides.get(group_id, self.share)

    def streams_of(self, group_id: str) -> StreamsGroupSettings:
        """The settings of the streams group."""
        return self.streams_overrides.get(group_id, self.streams)


def group_settings(broker: BrokerSettings, configs: ConfigsImage) -> GroupSettings:
    """The settings of shards, from those of the broker and the configs of groups."""
    own_configs = {
        resource.name: own
        for resource, own in configs.items()
        if resource.type == ConfigResourceType.GROUP and own
    }

    def overrides(defaults: S) -> dict[str, S]:
        settings = (
            (group_id, of_group(defaults, own, broker.group_bounds))
            for group_id, own in own_configs.items()
        )
        return {group_id: own for group_id, own in settings if own is not defaults}

    policies = {
        group_id: own_values(GroupPolicySettings, own) for group_id, own in own_configs.items()
    }
    rewinding = {group_id for group_id, own in policies.items() if own.pop("rewinds_by_commit", 0)}
    return copy_of(
        GroupSettings,
        broker,
        consumer_overrides=overrides(broker.consumer),
        share_overrides=overrides(broker.share),
        streams_overrides=overrides(broker.streams),
        rewind_by_commit_groups=frozenset(rewinding),
        policies=GroupPolicies(
            ephemeral_patterns=broker.policies.ephemeral_patterns,
            ephemeral_ttl_ms=broker.policies.ttl_ms,
            own={
                group_id: GroupPolicyOverrides(**own) for group_id, own in policies.items() if own
            },
        ),
    )
