"""Coordinators of groups: what is particular to them (see kinds.py).

Their shards read topics, and their members' expressions, from the image that came last; how often
members come is agreed by all shards of the router together. Made by the router's process.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from odradek.cluster.metadata.group_configs import ASSIGNORS
from odradek.cluster.metadata.group_rules import REWIND_BY_COMMIT, RULE_GROUP_CONFIGS
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.ephemeral import GroupVanished
from odradek.coordinator.group.requests import FollowTopics, ForgetTopics, Heartbeat
from odradek.coordinator.group.rules import OwnRules, Rules
from odradek.coordinator.group.settings import (
    ConsumerGroupOverrides,
    GroupSettings,
    MigrationPolicy,
    StreamsSettings,
)
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.topics import TopicCatalog, changed_names
from odradek.coordinator.runtime import Shard
from odradek.node.router.patterns import Patterns
from odradek.node.router.shards.kinds import Errand, TopicPlan
from odradek.node.router.share.state_keeper import StateKeeper
from odradek.protocol.errors import ApiError
from odradek.protocol.messages.groups import JoinGroupRequest
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from odradek.protocol.types import ZERO_UUID, Uuid

log = logging.getLogger(__name__)


class GroupKind:
    """Groups and their offsets, in `__consumer_offsets`. `patterns` are those of their members,
    `states` keeps what share groups know of partitions."""

    topic_name = CONSUMER_OFFSETS

    def __init__(self, patterns: Patterns, states: StateKeeper) -> None:
        self._patterns = patterns
        self._states = states
        self._image = MetadataImage.empty()
        self._topics = TopicCatalog(self._image)
        self._changed: frozenset[str] = frozenset()
        self._told_rules: Rules | None = None
        self._has_new_rules = False
        self.vanished_count = 0
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

    def needs_id(self, request: object) -> bool:
        """Members that join without an id."""
        if type(request) is Heartbeat:
            return not request.request.member_id
        return type(request) is JoinGroupRequest

    def follow(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Consumer groups read topics, and their partitions; rules make groups ephemeral."""
        self._image = new
        self._changed = changed_names(old, new)
        if self._changed:
            self._topics = TopicCatalog(new)
        rules = self._settings.rules
        self._has_new_rules, self._told_rules = rules != self._told_rules, rules
        return bool(self._changed) or self._has_new_rules

    def news(self, shard: Shard[Any]) -> FollowTopics:
        """The topics that have changed."""
        assert isinstance(shard, GroupShard)
        return FollowTopics(self._changed, self._expressions(shard), self._has_new_rules)

    def has_missed_news(self, shard: Shard[Any]) -> bool:
        """See ShardKind."""
        assert isinstance(shard, GroupShard)
        return shard.consumers.needs_topics

    def all_news(self, shard: Shard[Any]) -> FollowTopics:
        """Any topic may have changed."""
        assert isinstance(shard, GroupShard)
        return FollowTopics(None, self._expressions(shard))

    def _expressions(self, shard: GroupShard) -> dict[str, tuple[str, ...]]:
        """What the expressions of the shard's groups stand for now."""
        found = {}
        for regex in shard.consumers.regexes():
            try:
                found[regex] = self._patterns.topics_of(regex, self._image.topics_by_name)
            except ApiError as error:
                # Written by another release: what it stood for stays.
                log.warning("an expression of a group cannot be read: %s", error.message)
        return found

    def changes_members(self, request: object) -> bool:
        """A member of a consumer, share or streams group joins or leaves."""
        if type(request) is Heartbeat:
            return request.request.member_epoch <= 0
        if type(request) is ShareGroupHeartbeatRequest:
            return request.member_epoch <= 0
        return type(request) is StreamsGroupHeartbeatRequest and request.member_epoch <= 0

    def count_members(self, shards: Sequence[Shard[Any]]) -> None:
        """All shards ask their members to come as often as all of them together may."""
        groups = [shard for shard in shards if isinstance(shard, GroupShard)]
        count = 1 + sum(
            shard.consumers.member_count + shard.shares.member_count + shard.streams.member_count
            for shard in groups
        )
        for shard in groups:
            shard.crowd_count = count

    def set_lateness(self, shards: Sequence[Shard[Any]], lateness_ms: int) -> None:
        """Members of a process that is late are asked to come less often."""
        for shard in shards:
            assert isinstance(shard, GroupShard)
            shard.lateness_ms = lateness_ms

    def topic_plan(self, settings: BrokerSettings) -> TopicPlan:
        """See ShardKind."""
        return TopicPlan(
            settings.offsets_topic_num_partitions,
            settings.offsets_topic_replication_factor,
            (
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
            ),
        )

    def after_deletion(self, topics: tuple[tuple[str, Uuid], ...]) -> ForgetTopics:
        """Their offsets go."""
        return ForgetTopics(topics)

    def sweep_interval_ms(self) -> int:
        """See ShardKind."""
        return self._settings.retention_check_interval_ms

    def missed_deletions(self, shard: Shard[Any], image: MetadataImage) -> ForgetTopics | None:
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
        return ForgetTopics(gone) if gone else None

    def carry_out(self, instruction: object, errand: Errand) -> None:
        """Tell of ephemeral groups that are gone; have states of share groups made or deleted."""
        if not isinstance(instruction, GroupVanished):
            self._states.carry_out(instruction, errand)
            return
        self.vanished_count += 1
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
        rewound_by_commit=frozenset(
            resource.name
            for resource, configs in image.configs.items()
            if resource.type == ConfigResourceType.GROUP
            and REWIND_BY_COMMIT in configs
            and RULE_GROUP_CONFIGS[REWIND_BY_COMMIT].parse(configs[REWIND_BY_COMMIT]) is True
        ),
        rules=Rules(
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


def streams_settings(settings: BrokerSettings, configs: Mapping[str, str]) -> StreamsSettings:
    """What holds for streams groups, or for the one that has these configs of its own."""
    interval = "streams.heartbeat.interval.ms"
    return StreamsSettings(
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


def _own_rules(configs: Mapping[str, str]) -> OwnRules | None:
    """What the group's configs say of who is in it and how long it stays; None if nothing."""
    told = {
        key: RULE_GROUP_CONFIGS[key].parse(configs[key])
        for key in RULE_GROUP_CONFIGS
        if key in configs
    }
    is_ephemeral = told.get("group.ephemeral")
    ttl_ms = told.get("group.ttl.ms")
    protocols = told.get("group.protocol.allow")
    return (
        OwnRules(
            is_ephemeral=is_ephemeral if isinstance(is_ephemeral, bool) else None,
            ttl_ms=ttl_ms if isinstance(ttl_ms, int) else None,
            protocols=frozenset(protocols) if isinstance(protocols, tuple) else None,
        )
        if told
        else None
    )


def _overrides(protocol: str, image: MetadataImage) -> dict[str, ConsumerGroupOverrides]:
    """What was set for groups of a newer protocol, by group id."""
    return {
        resource.name: _overrides_of(protocol, configs)
        for resource, configs in image.configs.items()
        if resource.type == ConfigResourceType.GROUP and configs
    }


def _overrides_of(protocol: str, configs: Mapping[str, str]) -> ConsumerGroupOverrides:
    """Values have been checked when they were set."""

    def own(key: str) -> int | None:
        value = configs.get(f"{protocol}.{key}")
        return None if value is None else int(value)

    return ConsumerGroupOverrides(
        session_timeout_ms=own("session.timeout.ms"),
        heartbeat_interval_ms=own("heartbeat.interval.ms"),
        assignment_interval_ms=own("assignment.interval.ms"),
    )
