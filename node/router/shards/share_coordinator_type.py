"""Coordinators of share states: what is particular to them (see coordinator_type.py).

The log of a shard is not compacted: the shard writes it anew from time to time, and has what lies
before dropped (coordinator/share/shard.py).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import MetadataImage, TopicImage
from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.coordinator.runtime import Shard
from odradek.coordinator.share.requests import Checkpoint, DropLog, ForgetTopicStates, MeasureLog
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.bus.reply import drive
from odradek.node.router.logs import Logs
from odradek.node.router.shards.coordinator_type import (
    SWEEP_MS_MAX,
    EffectContext,
    InternalTopicConfig,
)
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

log = logging.getLogger(__name__)

DELETE_RECORDS_TIMEOUT_MS: Final = 5_000
"""How long replicas may take to drop what nobody needs; they do so later if they cannot now."""


class Surroundings(Protocol):
    """What the kind needs of its router: Services has it."""

    image: MetadataImage
    worker_client: WorkerClient
    logs: Logs


class ShareCoordinatorType:
    """What share groups durably know of partitions, in `__share_group_state`."""

    topic_name = SHARE_GROUP_STATE

    def __init__(self, services: Surroundings) -> None:
        self._services = services
        self._topics: Mapping[Uuid, TopicImage] = services.image.topics_by_id

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See ShardKind."""
        self._settings = ShareStateSettings(
            updates_per_snapshot=settings.share_coordinator_snapshot_update_records_per_snapshot
        )
        self._topics = image.topics_by_id

    def new_shard(self) -> ShareStateShard:
        """See ShardKind."""
        return ShareStateShard(self._settings, self._topics)

    def update(self, shard: Shard[Any]) -> None:
        """See ShardKind."""
        assert isinstance(shard, ShareStateShard)
        shard.settings = self._settings
        shard.topics = self._topics

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """As Kafka's: nothing expires, and what is dropped is dropped by the shards."""
        return InternalTopicConfig(
            settings.share_coordinator_state_topic_num_partitions,
            settings.share_coordinator_state_topic_replication_factor,
            (
                ("cleanup.policy", "delete"),
                ("compression.type", "producer"),
                ("min.insync.replicas", str(settings.share_coordinator_state_topic_min_isr)),
                ("retention.bytes", "-1"),
                ("retention.ms", "-1"),
                ("segment.bytes", str(settings.share_coordinator_state_topic_segment_bytes)),
                ("unclean.leader.election.enable", "false"),
            ),
        )

    def topics_deleted(self, topics: tuple[tuple[str, Uuid], ...]) -> ForgetTopicStates:
        """What is known of their partitions goes."""
        return ForgetTopicStates(frozenset(topic_id for _, topic_id in topics))

    def sweep_interval_ms(self) -> int:
        """See ShardKind."""
        return SWEEP_MS_MAX

    def missed_topic_deletions(
        self, shard: Shard[Any], image: MetadataImage
    ) -> ForgetTopicStates | None:
        """Topics of whose partitions something is known, and that are no more."""
        assert isinstance(shard, ShareStateShard)
        known = {key.topic_id for key, _ in shard.states.items()}
        gone = frozenset(known - image.topics_by_id.keys())
        return ForgetTopicStates(gone) if gone else None

    def run_effect(self, instruction: object, context: EffectContext) -> None:
        """Measure a shard's log, or drop what nobody needs of it."""
        if isinstance(instruction, MeasureLog):
            location = self._location(context.shard)
            reader = self._services.logs.reader(location[0]) if location is not None else None
            if location is not None and reader is not None:
                context.call_shard(Checkpoint(reader.status.log_end_offset(location[1])))
        else:
            assert isinstance(instruction, DropLog)
            drive(self._delete_records(context, instruction.end_offset), _on_deleted)

    async def _delete_records(self, context: EffectContext, end_offset: int) -> None:
        """The first part of a log; should that fail, the next one takes more away."""
        location = self._location(context.shard)
        if location is None or not context.is_current():
            return
        answer = await self._services.worker_client.delete_records(
            store=location[0],
            number=location[1],
            offset=end_offset,
            timeout_ms=DELETE_RECORDS_TIMEOUT_MS,
        )
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            log.info("%s-%d keeps its beginning: %s", self.topic_name, context.shard, code)

    def _location(self, shard: int) -> tuple[int, int] | None:
        services = self._services
        topic = services.image.topics_by_name.get(self.topic_name)
        return services.logs.locate(topic.topic_id, shard) if topic is not None else None

    def is_new_id_needed(self, _request: object) -> bool:
        """Nobody is given a name here."""
        return False

    def follow(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Shards refuse what concerns no partition."""
        self._topics = new.topics_by_id
        return old.topics_by_id is not new.topics_by_id

    def metadata_update(self, _shard: Shard[Any]) -> None:
        """Shards look for themselves, at what `update` gives them."""

    def has_missed_updates(self, _shard: Shard[Any]) -> bool:
        """There are none."""
        return False

    def full_metadata_update(self, _shard: Shard[Any]) -> None:
        """There are none."""

    def is_membership_change(self, _request: object) -> bool:
        """There are no members."""
        return False

    def update_member_counts(self, _shards: Sequence[Shard[Any]]) -> None:
        """There are no members."""


def _on_deleted(_result: None, error: BaseException | None) -> None:
    if error is not None and not isinstance(error, ApiError):
        log.error("the beginning of a log could not be dropped", exc_info=error)
