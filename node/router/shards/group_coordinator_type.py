"""The type of the group coordinator (see coordinator_type.py): shards of `__consumer_offsets`.

Shards get topics, and the topics that members' regexes match, from the newest image. The heartbeat
interval depends on the number of members in all shards of the broker together.
"""

from collections.abc import Callable, Sequence
from typing import Any

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.administration.ephemeral_groups import EphemeralGroupExpired
from odradek.coordinator.group.policies import GroupPolicies
from odradek.coordinator.group.requests import ConsumerHeartbeat, DropTopicOffsets, UpdateTopics
from odradek.coordinator.group.settings import group_settings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.topics import TopicCatalog, changed_topic_names
from odradek.node.router.patterns import TopicPatterns
from odradek.node.router.shards.coordinator_type import EffectContext, InternalTopicConfig
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError
from odradek.protocol.messages.groups import JoinGroupRequest
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from odradek.protocol.types import ZERO_UUID, Uuid

log = get_logger(__name__)


class GroupCoordinatorType:
    """Groups and their offsets. `run_share_effect` runs the effects on share states."""

    topic_name = CONSUMER_OFFSETS

    def __init__(
        self, patterns: TopicPatterns, run_share_effect: Callable[[Any, EffectContext], None]
    ) -> None:
        self.members = self
        self._patterns = patterns
        self._run_share_effect = run_share_effect
        self._image = MetadataImage.empty()
        self._topics = TopicCatalog(self._image)
        self._changed: frozenset[str] = frozenset()
        self._known_policies: GroupPolicies | None = None
        self._has_new_policies = False
        self.deleted_ephemeral_count = 0
        """Ephemeral groups that were deleted here."""

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See CoordinatorType."""
        self._settings = group_settings(settings, image.configs)
        self.sweep_interval_ms = self._settings.retention_check_interval_ms
        if not self._image.offset:
            self.apply_image(self._image, image)

    def new_shard(self) -> GroupShard:
        """See CoordinatorType."""
        return GroupShard(self._settings, self._topics)

    def update(self, shard: GroupShard) -> None:
        """See CoordinatorType."""
        shard.settings = self._settings
        shard.topics = self._topics

    def is_new_id_needed(self, request: object) -> bool:
        """For members that join without an id."""
        if type(request) is ConsumerHeartbeat:
            return not request.request.member_id
        return type(request) is JoinGroupRequest

    def apply_image(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Shards need new topics and partitions, and new policies."""
        self._image = new
        self._changed = changed_topic_names(old, new)
        if self._changed:
            self._topics = TopicCatalog(new)
        policies = self._settings.policies
        self._has_new_policies, self._known_policies = policies != self._known_policies, policies
        return bool(self._changed) or self._has_new_policies

    def metadata_update(self, shard: GroupShard) -> UpdateTopics:
        """With the topics that have changed."""
        return UpdateTopics(self._changed, self._expressions(shard), self._has_new_policies)

    def has_missed_updates(self, shard: GroupShard) -> bool:
        """See CoordinatorType."""
        return shard.consumers.needs_topics

    def full_metadata_update(self, shard: GroupShard) -> UpdateTopics:
        """Any topic may have changed."""
        return UpdateTopics(None, self._expressions(shard))

    def _expressions(self, shard: GroupShard) -> dict[str, tuple[str, ...]]:
        """The topics that the regexes of the shard's groups match now."""
        expressions = {}
        for regex in shard.consumers.regexes():
            try:
                expressions[regex] = self._patterns.matching_topics(
                    regex, self._image.topics_by_name
                )
            except ApiError as error:
                # Written by another release: the topics it matched stay.
                log.warning("the topic regex of a group is not valid", reason=error.message)
        return expressions

    def is_membership_change(self, request: object) -> bool:
        """Heartbeats of consumer, share and streams groups that join or leave."""
        if type(request) is ConsumerHeartbeat:
            return request.request.member_epoch <= 0
        if type(request) is ShareGroupHeartbeatRequest:
            return request.member_epoch <= 0
        return type(request) is StreamsGroupHeartbeatRequest and request.member_epoch <= 0

    def update_member_counts(self, shards: Sequence[GroupShard]) -> None:
        """The heartbeat interval depends on the members of all shards together."""
        count = 1 + sum(
            shard.consumers.member_count + shard.shares.member_count + shard.streams.member_count
            for shard in shards
        )
        for shard in shards:
            shard.member_count_total = count

    def set_loop_delay(self, shards: Sequence[GroupShard], loop_delay_ms: int) -> None:
        """Members of an overloaded broker get a longer heartbeat interval."""
        for shard in shards:
            shard.loop_delay_ms = loop_delay_ms

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """See CoordinatorType."""
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
        """Their offsets are deleted."""
        return DropTopicOffsets(topics)

    def missed_topic_deletions(
        self, shard: GroupShard, image: MetadataImage
    ) -> DropTopicOffsets | None:
        """For topics that have offsets or share states, but do not exist."""
        deleted = tuple(
            (name, topic_id)
            for name, topic_id in shard.offsets.topics() | shard.shares.topics()
            if (
                name not in image.topics_by_name
                if topic_id == ZERO_UUID
                else topic_id not in image.topics_by_id
            )
        )
        return DropTopicOffsets(deleted) if deleted else None

    def run_effect(self, effect: object, context: EffectContext) -> None:
        """Log the deletion of an ephemeral group, or change share states."""
        if not isinstance(effect, EphemeralGroupExpired):
            self._run_share_effect(effect, context)
            return
        self.deleted_ephemeral_count += 1
        log.info(
            "an ephemeral group was Empty for its time to live and has been deleted with its"
            " offsets",
            group=effect.group_id,
            duration_ms=effect.ttl_ms,
        )
