"""The kinds of coordinators: what each keeps in its topic, and what it needs of its router.

`coordinators` hosts the shards of any kind in the same way; what is particular to one is here: the
topic and how it is made, how a shard is made and configured, and what is done outside for it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from cluster.metadata.features import TRANSACTION_VERSION
from cluster.metadata.image import MetadataImage
from cluster.metadata.settings import BrokerSettings
from cluster.metadata.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from coordinator.group.requests import ForgetTopics
from coordinator.group.settings import GroupSettings
from coordinator.group.shard import GroupShard
from coordinator.runtime import Shard
from coordinator.transaction.requests import WriteMarkers
from coordinator.transaction.settings import TransactionSettings
from coordinator.transaction.shard import TransactionShard
from node.router.markers import Errand, MarkerWriter
from protocol.types import ZERO_UUID, Uuid

SWEEP_MS_MAX: Final = 600_000


class TopicPlan(NamedTuple):
    """How a coordinator's topic is made if there is none."""

    partition_count: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class ShardKind(Protocol):
    """See the module's docstring. `configure` comes before anything else, and with every change."""

    topic_name: str

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """Take the newest configuration in, for shards made from now on."""

    def new_shard(self) -> Shard[Any]:
        """A shard for a log to be loaded into."""

    def update(self, shard: Shard[Any]) -> None:
        """Give a shard the newest configuration."""

    def topic_plan(self, settings: BrokerSettings) -> TopicPlan:
        """How to make the topic."""

    def after_deletion(self, topics: tuple[tuple[str, Uuid], ...]) -> object | None:
        """What shards are to be told when topics were deleted, if anything."""

    def sweep_interval_ms(self) -> int:
        """How often to look for what `missed_deletions` finds."""

    def missed_deletions(self, shard: Shard[Any], image: MetadataImage) -> object | None:
        """What a shard is to be told of topics whose deletion it has not heard of, if anything."""

    def carry_out(self, instruction: object, errand: Errand) -> None:
        """Do what a shard asks for (Send)."""


class GroupKind:
    """Groups and their offsets, in `__consumer_offsets`."""

    topic_name = CONSUMER_OFFSETS

    def configure(self, settings: BrokerSettings, _image: MetadataImage) -> None:
        """See ShardKind."""
        self._settings = group_settings(settings)

    def new_shard(self) -> GroupShard:
        """See ShardKind."""
        return GroupShard(self._settings)

    def update(self, shard: Shard[Any]) -> None:
        """See ShardKind."""
        assert isinstance(shard, GroupShard)
        shard.settings = self._settings

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
        """Topics on which offsets are committed and that are no more."""
        assert isinstance(shard, GroupShard)
        gone = tuple(
            (name, topic_id)
            for name, topic_id in shard.offsets.topics()
            if (
                name not in image.topics_by_name
                if topic_id == ZERO_UUID
                else topic_id not in image.topics_by_id
            )
        )
        return ForgetTopics(gone) if gone else None

    def carry_out(self, instruction: object, _errand: Errand) -> None:
        """A group's shard asks for nothing."""
        raise AssertionError(f"a group's shard asks for {instruction}")


class TransactionKind:
    """Transactional ids, in `__transaction_state`; `markers` ends transactions in partitions."""

    topic_name = TRANSACTION_STATE

    def __init__(self, markers: MarkerWriter) -> None:
        self._markers = markers

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See ShardKind."""
        self._settings = transaction_settings(settings, image.features)

    def new_shard(self) -> TransactionShard:
        """See ShardKind."""
        return TransactionShard(self._settings)

    def update(self, shard: Shard[Any]) -> None:
        """See ShardKind."""
        assert isinstance(shard, TransactionShard)
        shard.settings = self._settings

    def topic_plan(self, settings: BrokerSettings) -> TopicPlan:
        """See ShardKind."""
        return TopicPlan(
            settings.transaction_state_log_num_partitions,
            settings.transaction_state_log_replication_factor,
            (
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(settings.transaction_state_log_min_isr)),
                ("segment.bytes", str(settings.transaction_state_log_segment_bytes)),
                ("unclean.leader.election.enable", "false"),
            ),
        )

    def after_deletion(self, _topics: tuple[tuple[str, Uuid], ...]) -> None:
        """Markers for partitions that are no more count as written; nothing else is kept."""

    def sweep_interval_ms(self) -> int:
        """See ShardKind."""
        return SWEEP_MS_MAX

    def missed_deletions(self, _shard: Shard[Any], _image: MetadataImage) -> None:
        """See `after_deletion`."""

    def carry_out(self, instruction: object, errand: Errand) -> None:
        """Write markers."""
        assert isinstance(instruction, WriteMarkers)
        self._markers.write(instruction, errand)


def group_settings(settings: BrokerSettings) -> GroupSettings:
    """What shards of groups need of the broker's configuration."""
    return GroupSettings(
        session_timeout_min_ms=settings.group_min_session_timeout_ms,
        session_timeout_max_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        size_max=settings.group_max_size,
        offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
    )


def transaction_settings(
    settings: BrokerSettings, features: Mapping[str, int]
) -> TransactionSettings:
    """What shards of transactions need of the broker's configuration and the finalised features."""
    return TransactionSettings(
        timeout_max_ms=settings.transaction_max_timeout_ms,
        expiration_ms=settings.transactional_id_expiration_ms,
        expiry_check_interval_ms=(
            settings.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        transaction_version=features.get(TRANSACTION_VERSION, 0),
    )
