"""Coordinators of groups: what is particular to them (see coordinator_type.py).

Their shards read topics, and their members' expressions, from the image that came last; how often
members come is agreed by all shards of the router together. Made by the router's process.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from odradek.cluster.metadata.group_configs import ASSIGNORS
from odradek.cluster.metadata.group_policy_configs import POLICY_GROUP_CONFIGS, REWIND_BY_COMMIT
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.administration.ephemeral_groups import EphemeralGroupExpired
from odradek.coordinator.group.policies import GroupPolicies, GroupPolicyOverrides
from odradek.coordinator.group.requests import ConsumerHeartbeat, DropTopicOffsets, UpdateTopics
from odradek.coordinator.group.settings import (
    GroupSettings,
    GroupSettingsOverrides,
    MigrationPolicy,
    StreamsGroupSettings,
)
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.topics import TopicCatalog, changed_topic_names
from odradek.coordinator.runtime import Shard
from odradek.node.router.patterns import TopicPatterns
from odradek.node.router.shards.coordinator_type import EffectContext, InternalTopicConfig
from odradek.node.router.share.state_effects import ShareStateEffects
from odradek.protocol.errors import ApiError
from odradek.protocol.messages.groups import JoinGroupRequest
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from odradek.protocol.types import ZERO_UUID, Uuid

log = logging.getLogger(__name__)


class GroupCoordinatorType:
    """Groups and their offsets, in `__consumer_offsets`. `patterns` are those of their members,
    `states` keeps what share groups know of partitions."""

    topic_name = CONSUMER_OFFSETS

    def __init__(self, patterns: TopicPatterns, states: ShareStateEffects) -> None:
        self._patterns = patterns
        self._states = states
        self._image = MetadataImage.empty()
        self._topics = TopicCatalog(self._image)
        self._changed: frozenset[str] = frozenset()
        self._known_policies: GroupPolicies | None = None
        self._has_new_policies = False
        self.deleted_ephemeral_count = 0
        """Ephemeral groups that have come to their end here."""

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See ShardKind."""
        self._settings = group_settings(settings, image)
        if not self._image.offset:
            self.follow(self._image, image)

    def new_shard(self) -> GroupShard:
        """See ShardKind."""
        return GroupShard(self._settings, self._topics)

    def update(self, shard: Shard[Any]) -> None:
        """See ShardKind."""
        assert isinstance(shard, GroupShard)
        shard.settings = self._settings
        shard.topics = self._topics

    def is_new_id_needed(self, request: object) -> bool:
        """Members that join without an id."""
        if type(request) is ConsumerHeartbeat:
            return not request.request.member_id
        return type(request) is JoinGroupRequest

    def follow(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Consumer groups read topics, and their partitions; rules make groups ephemeral."""
        self._image = new
        self._changed = changed_topic_names(old, new)
        if self._changed:
            self._topics = TopicCatalog(new)
        policies = self._settings.policies
        self._has_new_policies, self._known_policies = policies != self._known_policies, policies
        return bool(self._changed) or self._has_new_policies

    def metadata_update(self, shard: Shard[Any]) -> UpdateTopics:
        """The topics that have changed."""
        assert isinstance(shard, GroupShard)
        return UpdateTopics(self._changed, self._expressions(shard), self._has_new_policies)

    def has_missed_updates(self, shard: Shard[Any]) -> bool:
        """See ShardKind."""
        assert isinstance(shard, GroupShard)
        return shard.consumers.needs_topics

    def full_metadata_update(self, shard: Shard[Any]) -> UpdateTopics:
        """Any topic may have changed."""
        assert isinstance(shard, GroupShard)
        return UpdateTopics(None, self._expressions(shard))

    def _expressions(self, shard: GroupShard) -> dict[str, tuple[str, ...]]:
        """What the expressions of the shard's groups stand for now."""
        found = {}
        for regex in shard.consumers.regexes():
            try:
                found[regex] = self._patterns.matching_topics(regex, self._image.topics_by_name)
            except ApiError as error:
                # Written by another release: what it stood for stays.
                log.warning("an expression of a group cannot be read: %s", error.message)
        return found

    def is_membership_change(self, request: object) -> bool:
        """A member of a consumer, share or streams group joins or leaves."""
        if type(request) is ConsumerHeartbeat:
            return request.request.member_epoch <= 0
        if type(request) is ShareGroupHeartbeatRequest:
            return request.member_epoch <= 0
        return type(request) is StreamsGroupHeartbeatRequest and request.member_epoch <= 0

    def update_member_counts(self, shards: Sequence[Shard[Any]]) -> None:
        """All shards ask their members to come as often as all of them together may."""
        groups = [shard for shard in shards if isinstance(shard, GroupShard)]
        count = 1 + sum(
            shard.consumers.member_count + shard.shares.member_count + shard.streams.member_count
            for shard in groups
        )
        for shard in groups:
            shard.member_count_total = count

    def set_loop_delay(self, shards: Sequence[Shard[Any]], loop_delay_ms: int) -> None:
        """Members of a process that is late are asked to come less often."""
        for shard in shards:
            assert isinstance(shard, GroupShard)
            shard.loop_delay_ms = loop_delay_ms

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """See ShardKind."""
        return InternalTopicConfig(
            settings.offsets_topic_num_partitions,
            settings.offsets_topic_replication_factor,
            (
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
            ),
        )

    def topics_deleted(self, topics: tuple[tuple[str, Uuid], ...]) -> DropTopicOffsets:
        """Their offsets go."""
        return DropTopicOffsets(topics)

    def sweep_interval_ms(self) -> int:
        """See ShardKind."""
        return self._settings.retention_check_interval_ms

    def missed_topic_deletions(
        self, shard: Shard[Any], image: MetadataImage
    ) -> DropTopicOffsets | None:
        """Topics of which something is kept (offsets, share states) and that are no more."""
        assert isinstance(shard, GroupShard)
        gone = tuple(
            (name, topic_id)
            for name, topic_id in shard.offsets.topics() | shard.shares.topics()
            if (
                name not in image.topics_by_name
                if topic_id == ZERO_UUID
                else topic_id not in image.topics_by_id
            )
        )
        return DropTopicOffsets(gone) if gone else None

    def run_effect(self, instruction: object, context: EffectContext) -> None:
        """Tell of ephemeral groups that are gone; have states of share groups made or deleted."""
        if not isinstance(instruction, EphemeralGroupExpired):
            self._states.run_effect(instruction, context)
            return
        self.deleted_ephemeral_count += 1
        log.info(
            "group %s is ephemeral, was Empty for %d ms and has been deleted with its offsets",
            instruction.group_id,
            instruction.ttl_ms,
        )


def group_settings(settings: BrokerSettings, image: MetadataImage) -> GroupSettings:
    """What shards need of the broker's configuration, and of that of groups."""
    return GroupSettings(
        session_timeout_min_ms=settings.group_min_session_timeout_ms,
        session_timeout_max_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        size_max=settings.group_max_size,
        offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_size_max=settings.group_consumer_max_size,
        consumer_assignors=settings.group_consumer_assignors or ASSIGNORS,
        consumer_assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
        migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        consumer_overrides=_overrides("consumer", image),
        share_session_timeout_ms=settings.group_share_session_timeout_ms,
        share_heartbeat_interval_ms=settings.group_share_heartbeat_interval_ms,
        share_size_max=settings.group_share_max_size,
        share_assignment_interval_ms=settings.group_share_assignment_interval_ms,
        share_overrides=_overrides("share", image),
        streams=streams_settings(settings, {}),
        streams_overrides={
            resource.name: streams_settings(settings, configs)
            for resource, configs in image.configs.items()
            if resource.type == ConfigResourceType.GROUP and configs
        },
        rewind_by_commit_groups=frozenset(
            resource.name
            for resource, configs in image.configs.items()
            if resource.type == ConfigResourceType.GROUP
            and REWIND_BY_COMMIT in configs
            and POLICY_GROUP_CONFIGS[REWIND_BY_COMMIT].parse(configs[REWIND_BY_COMMIT]) is True
        ),
        policies=GroupPolicies(
            ephemeral_patterns=settings.group_ephemeral_patterns,
            ephemeral_ttl_ms=settings.group_ephemeral_ttl_ms,
            own={
                resource.name: own
                for resource, configs in image.configs.items()
                if resource.type == ConfigResourceType.GROUP
                and (own := _own_rules(configs)) is not None
            },
        ),
    )


def streams_settings(settings: BrokerSettings, configs: Mapping[str, str]) -> StreamsGroupSettings:
    """What holds for streams groups, or for the one that has these configs of its own."""
    interval = "streams.heartbeat.interval.ms"
    return StreamsGroupSettings(
        session_timeout_ms=int(
            configs.get("streams.session.timeout.ms", settings.group_streams_session_timeout_ms)
        ),
        heartbeat_interval_ms=int(
            configs.get(interval, settings.group_streams_heartbeat_interval_ms)
        ),
        is_interval_fixed=interval in configs,
        size_max=settings.group_streams_max_size,
        standby_count=int(
            configs.get("streams.num.standby.replicas", settings.group_streams_num_standby_replicas)
        ),
        initial_rebalance_delay_ms=int(
            configs.get(
                "streams.initial.rebalance.delay.ms",
                settings.group_streams_initial_rebalance_delay_ms,
            )
        ),
        assignment_interval_ms=int(
            configs.get(
                "streams.assignment.interval.ms", settings.group_streams_assignment_interval_ms
            )
        ),
    )


def _own_rules(configs: Mapping[str, str]) -> GroupPolicyOverrides | None:
    """What the group's configs say of who is in it and how long it stays; None if nothing."""
    told = {
        key: POLICY_GROUP_CONFIGS[key].parse(configs[key])
        for key in POLICY_GROUP_CONFIGS
        if key in configs
    }
    is_ephemeral = told.get("group.ephemeral")
    ttl_ms = told.get("group.ttl.ms")
    protocols = told.get("group.protocol.allow")
    return (
        GroupPolicyOverrides(
            is_ephemeral=is_ephemeral if isinstance(is_ephemeral, bool) else None,
            ttl_ms=ttl_ms if isinstance(ttl_ms, int) else None,
            protocols=frozenset(protocols) if isinstance(protocols, tuple) else None,
        )
        if told
        else None
    )


def _overrides(protocol: str, image: MetadataImage) -> dict[str, GroupSettingsOverrides]:
    """What was set for groups of a newer protocol, by group id."""
    return {
        resource.name: _overrides_of(protocol, configs)
        for resource, configs in image.configs.items()
        if resource.type == ConfigResourceType.GROUP and configs
    }


def _overrides_of(protocol: str, configs: Mapping[str, str]) -> GroupSettingsOverrides:
    """Values have been checked when they were set."""

    def own(key: str) -> int | None:
        value = configs.get(f"{protocol}.{key}")
        return None if value is None else int(value)

    return GroupSettingsOverrides(
        session_timeout_ms=own("session.timeout.ms"),
        heartbeat_interval_ms=own("heartbeat.interval.ms"),
        assignment_interval_ms=own("assignment.interval.ms"),
    )
