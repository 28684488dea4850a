"""On which terms a share group gets records: its configs, or the broker's where it has none.

Plain values, given to the machine with every call, so that a change of the configs takes effect
with the image that brings it. Computed once per `ConfigsImage` and group, and kept there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.settings import BrokerSettings, broker_settings
from odradek.cluster.metadata.share_record_configs import DURATION_PREFIX, duration_ms

_DELAY_MS_MAX: Final = 86_400_000
"""A day: a steep backoff must not put a record off for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """The configs of one share group that its partitions' leaders act upon (KIP-932)."""

    lock_duration_ms: int = 30_000
    """share.record.lock.duration.ms"""
    delivery_count_limit: int = 5
    """share.delivery.count.limit: how often a record is delivered before it is given up."""
    record_locks_max: int = 2_000
    """share.partition.max.record.locks: records of a partition that may be under way at a time."""
    redelivery_delay_ms: int = 0
    """share.redelivery.delay.ms: how long a record rests that was released or whose lock ended."""
    redelivery_backoff: float = 1.0
    """share.redelivery.backoff.factor: by how much that delay grows with each delivery."""
    is_read_committed: bool = False
    """share.isolation.level"""
    may_renew: bool = True
    """share.renew.acknowledge.enable"""
    begins_earliest: bool = False
    """share.auto.offset.reset=earliest; else at the latest offset, unless there is a time."""
    begins_before_ms: int | None = None
    """share.auto.offset.reset=by_duration: at the first record of so long ago."""
    dead_letter_topic: str = ""
    """errors.deadletterqueue.topic.name: what is given up is written there (KIP-1191)."""
    copies_dead_letters: bool = False
    """errors.deadletterqueue.copy.record.enable: with key and value."""

    def delay_ms(self, delivery_count: int) -> int:
        """How long a record rests that has been delivered this often."""
        if not self.redelivery_delay_ms or delivery_count <= 0:
            return 0
        delay = self.redelivery_delay_ms * self.redelivery_backoff ** (delivery_count - 1)
        return int(min(delay, _DELAY_MS_MAX))

    def redelivery_ms(self, delivery_count: int, now_ms: int) -> int:
        """When a record released now is available again; 0 for at once."""
        delay_ms = self.delay_ms(delivery_count)
        return now_ms + delay_ms if delay_ms else 0

    @property
    def throttle_from(self) -> int:
        """Delivered this often, a record is suspect and comes with few others, or alone."""
        return max(2, (self.delivery_count_limit + 1) // 2)


def share_group_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str], group_id: str
) -> ShareGroupSettings:
    """What holds for the group, whether it has configs of its own or not."""
    configs = image.configs
    own = configs.of(ConfigResourceType.GROUP, group_id)
    key = (ShareGroupSettings, node_id, group_id if own else "")
    settings = broker_settings(image, node_id, static)
    remembered = configs.cache.get(key)
    if isinstance(remembered, tuple) and remembered[0] is settings:
        group_settings = remembered[1]
        assert isinstance(group_settings, ShareGroupSettings)
        return group_settings
    group_settings = _terms(own, settings)
    configs.cache[key] = (settings, group_settings)
    return group_settings


def _terms(own: Mapping[str, str], settings: BrokerSettings) -> ShareGroupSettings:
    """Values have been checked when they were set; what the brokers allow may be less by now."""
    reset = own.get("share.auto.offset.reset", "latest")
    ago = reset.removeprefix(DURATION_PREFIX) if reset.startswith(DURATION_PREFIX) else None
    return ShareGroupSettings(
        lock_duration_ms=_within(
            own.get("share.record.lock.duration.ms"),
            settings.group_share_record_lock_duration_ms,
            settings.group_share_min_record_lock_duration_ms,
            settings.group_share_max_record_lock_duration_ms,
        ),
        delivery_count_limit=_within(
            own.get("share.delivery.count.limit"),
            settings.group_share_delivery_count_limit,
            settings.group_share_min_delivery_count_limit,
            settings.group_share_max_delivery_count_limit,
        ),
        record_locks_max=_within(
            own.get("share.partition.max.record.locks"),
            settings.group_share_partition_max_record_locks,
            settings.group_share_min_partition_max_record_locks,
            settings.group_share_max_partition_max_record_locks,
        ),
        redelivery_delay_ms=int(own.get("share.redelivery.delay.ms", "0")),
        redelivery_backoff=float(own.get("share.redelivery.backoff.factor", "1")),
        is_read_committed=own.get("share.isolation.level") == "read_committed",
        may_renew=own.get("share.renew.acknowledge.enable", "true").lower() == "true",
        begins_earliest=reset == "earliest",
        begins_before_ms=None if ago is None else duration_ms(ago),
        dead_letter_topic=own.get("errors.deadletterqueue.topic.name", ""),
        copies_dead_letters=(
            own.get("errors.deadletterqueue.copy.record.enable", "").lower() == "true"
        ),
    )


def _within(own: str | None, default: int, least: int, most: int) -> int:
    return default if own is None else min(max(int(own), least), most)
