"""The type of the transaction coordinator (see coordinator_type.py): `__transaction_state`.

Their only effect is to write the markers of a transaction.
"""

from collections.abc import Callable, Mapping

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import copy_of
from odradek.cluster.metadata.features import TRANSACTION_VERSION
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.transaction.requests import WriteMarkers
from odradek.coordinator.transaction.settings import TransactionSettings
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.router.shards.coordinator_type import (
    SWEEP_MS_MAX,
    EffectContext,
    InternalTopicConfig,
)
from odradek.protocol.types import Uuid


class TransactionCoordinatorType:
    """Transactional ids. `write_markers` runs the shards' effects."""

    topic_name = TRANSACTION_STATE
    members = None
    sweep_interval_ms = SWEEP_MS_MAX

    def __init__(self, write_markers: Callable[[WriteMarkers, EffectContext], None]) -> None:
        self.run_effect = write_markers

    def configure(self, settings: BrokerSettings, image: MetadataImage) -> None:
        """See CoordinatorType."""
        self._settings = transaction_settings(settings, image.features)

    def new_shard(self) -> TransactionShard:
        """See CoordinatorType."""
        return TransactionShard(self._settings)

    def update(self, shard: TransactionShard) -> None:
        """See CoordinatorType."""
        shard.settings = self._settings

    def topic_config(self, settings: BrokerSettings) -> InternalTopicConfig:
        """See CoordinatorType."""
        return InternalTopicConfig(
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

    def topics_deleted(self, _topics: tuple[tuple[str, Uuid], ...]) -> None:
        """Markers for deleted partitions count as written; nothing else depends on topics."""

    def missed_topic_deletions(self, _shard: TransactionShard, _image: MetadataImage) -> None:
        """See `topics_deleted`."""

    def apply_image(self, _old: MetadataImage, _new: MetadataImage) -> bool:
        """`configure` takes over all that matters."""
        return False


def transaction_settings(
    settings: BrokerSettings, features: Mapping[str, int]
) -> TransactionSettings:
    """The settings of transaction shards, from the broker's configuration and the features."""
    version = features.get(TRANSACTION_VERSION, 0)
    return copy_of(TransactionSettings, settings, transaction_version=version)
