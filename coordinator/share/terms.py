"""On which terms a share group gets records: its configs, or the broker's where it has none.

Plain values for the machine, which is given them with every call, so that a change of the
configs takes effect with the image that brings it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
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
    has_dead_letters: bool = False
    """Whether what is given up is to be written to a dead-letter topic (KIP-1191)."""

    def delay_ms(self, delivery_count: int) -> int:
        """How long a record rests that has been delivered this often."""
        if not self.redelivery_delay_ms or delivery_count <= 0:
            return 0
        delay = self.redelivery_delay_ms * self.redelivery_backoff ** (delivery_count - 1)
        return int(min(delay, _DELAY_MS_MAX))

    @property
    def throttle_from(self) -> int:
        """Delivered this often, a record is suspect and comes with few others, or alone."""
        return max(2, (self.delivery_count_limit + 1) // 2)


_DELAY_MS_MAX = 86_400_000
"""A day: a steep backoff must not put a record off for ever."""
