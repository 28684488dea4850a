"""The type of the share coordinator (see coordinator_type.py): shards of `__share_group_state`.

The log of a shard is not compacted: from time to time the shard writes all states again and has the
records before deleted (coordinator/share/shard.py).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import copy_of
from odradek.cluster.metadata.image import MetadataImage, TopicImage
from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.coordinator.share.requests import Checkpoint, DropLog, ForgetTopicStates, MeasureLog
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.bus.messages import UNSENT, DeleteRecords, DeleteRecordsReply
from odradek.node.bus.reply import Reply
from odradek.node.router.logs import LocatedLog, Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_type import (
    SWEEP_MS_MAX,
    EffectContext,
    InternalTopicConfig,
)
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid

log = get_logger(__name__)

DELETE_RECORDS_TIMEOUT_MS: Final = 5_000
"""How long replicas may take to delete records; they do it later if they cannot now."""


class ShareCoordinatorType:
    """Share states: the persisted states of share partitions."""

    topic_name = SHARE_GROUP_STATE
    members = None
    sweep_interval_ms = SWEEP_MS_MAX

    def __init__(self, metadata: MetadataCache, logs: Logs, worker_client: WorkerClient) -> None:
        self._metadata = metadata
        self._logs = logs
        self._worker_client = worker_client
        self._topics: Mapping[Uuid, TopicImage] = metadata.image.topics_by_id

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See CoordinatorType."""
        self._settings = copy_of(ShareStateSettings, settings)
        self._topics = image.topics_by_id

    def new_shard(self) -> ShareStateShard:
        """See CoordinatorType."""
        return ShareStateShard(self._settings, self._topics)

    def update(self, shard: ShareStateShard) -> None:
        """See CoordinatorType."""
        shard.settings = self._settings
        shard.topics = self._topics

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """As in Kafka: records do not expire; the shards delete them."""
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
        """The states of their partitions are deleted."""
        return ForgetTopicStates(frozenset(topic_id for _, topic_id in topics))

    def missed_topic_deletions(
        self, shard: ShareStateShard, image: MetadataImage
    ) -> ForgetTopicStates | None:
        """For topics that have share states, but do not exist."""
        topic_ids = {key.topic_id for key, _ in shard.states.items()}
        deleted = frozenset(topic_ids - image.topics_by_id.keys())
        return ForgetTopicStates(deleted) if deleted else None

    def run_effect(self, effect: MeasureLog | DropLog, context: EffectContext) -> None:
        """Measure a shard's log, or delete the records that are not needed any more."""
        located = self._open_log(context.shard)
        if located is None:
            return
        reader, store, number = located
        if isinstance(effect, MeasureLog):
            context.call_shard(Checkpoint(reader.status.log_end_offset(number)))
        elif context.is_current():
            reply = self._worker_client.send(
                DeleteRecords(UNSENT, store, number, effect.end_offset, DELETE_RECORDS_TIMEOUT_MS)
            )
            reply.on_done(partial(self._on_deleted, context.shard, reply))

    def _on_deleted(self, shard: int, reply: Reply[DeleteRecordsReply]) -> None:
        """After a failure the next attempt deletes more."""
        error_code = reply.result().error_code
        if error_code:
            log.info(
                "the first records of a shard were not deleted",
                topic=self.topic_name,
                partition=shard,
                error_code=ErrorCode(error_code).name,
            )

    def _open_log(self, shard: int) -> LocatedLog | None:
        topic = self._metadata.image.topics_by_name.get(self.topic_name)
        return self._logs.open(topic.topic_id, shard) if topic is not None else None

    def apply_image(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Shards refuse partitions that do not exist."""
        self._topics = new.topics_by_id
        return old.topics_by_id is not new.topics_by_id
