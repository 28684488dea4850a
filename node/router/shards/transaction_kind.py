"""Coordinators of transactional ids: what is particular to them (see kinds.py).

They ask for one thing outside of themselves: markers at the end of transactions. Made by the
router's process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.cluster.metadata.features import TRANSACTION_VERSION
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.runtime import Shard
from odradek.coordinator.transaction.requests import WriteMarkers
from odradek.coordinator.transaction.settings import TransactionSettings
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.router.shards.kinds import SWEEP_MS_MAX, Errand, TopicPlan
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.protocol.types import Uuid


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

    def needs_id(self, _request: object) -> bool:
        """Clients name themselves."""
        return False

    def follow(self, _old: MetadataImage, _new: MetadataImage) -> bool:
        """Nothing of an image matters but what `configure` takes."""
        return False

    def news(self, _shard: Shard[Any]) -> None:
        """There are none."""

    def has_missed_news(self, _shard: Shard[Any]) -> bool:
        """There are none."""
        return False

    def all_news(self, _shard: Shard[Any]) -> None:
        """There are none."""

    def changes_members(self, _request: object) -> bool:
        """There are no members."""
        return False

    def count_members(self, _shards: Sequence[Shard[Any]]) -> None:
        """There are no members."""


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
