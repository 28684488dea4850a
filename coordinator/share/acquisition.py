"""The limits of an acquisition: values and rules without state.

In batch-optimized mode the limit is soft: a batch of the log is acquired as a whole, so that fewer
bytes are sent twice; in record-limit mode it is exact (KIP-1206). Records with many deliveries are
throttled: fewer of them are acquired together each time, and the last delivery of a record is made
alone, so that one bad record does not use up the deliveries of others. Called by `partition`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from odradek.cluster.metadata.group_settings import ShareGroupSettings


class LogBatch(NamedTuple):
    """The offsets [start, end) of one batch of the log. One that `is_void` (markers, aborted
    transactions) has no records for members."""

    start: int
    end: int
    is_void: bool = False


class AcquiredRange(NamedTuple):
    """Acquired offsets [start, end), with their delivery count including this delivery."""

    start: int
    end: int
    delivery_count: int


class ReadPosition(NamedTuple):
    """Where to read, and the end of the wanted offsets (None: the end of the log)."""

    offset: int
    end_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOptions:
    """The limits of a ShareFetch."""

    records_max: int
    batch_size: int = 2**31 - 1
    """Acquired ranges have about that many records, so that they can be acknowledged separately; a
    batch of the log is not split for it."""
    is_exact: bool = False
    """Whether `records_max` is exact (record-limit mode)."""


class Acquisition:
    """Collects the ranges of one acquisition, in order."""

    __slots__ = ("_options", "count", "ranges")

    def __init__(self, options: AcquireOptions) -> None:
        self._options = options
        self.ranges: list[AcquiredRange] = []
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether `records_max` is reached."""
        return self.count >= self._options.records_max

    def room(self, size: int) -> int:
        """How many of `size` records of one batch may still be acquired."""
        return min(size, self._options.records_max - self.count) if self._options.is_exact else size

    def add(self, start: int, end: int, delivery_count: int) -> None:
        """Add [start, end)."""
        self.count += end - start
        if self.ranges:
            last = self.ranges[-1]
            is_short = self._options.is_exact or last.end - last.start < self._options.batch_size
            if last.end == start and last.delivery_count == delivery_count and is_short:
                self.ranges[-1] = last._replace(end=end)
                return
        self.ranges.append(AcquiredRange(start, end, delivery_count))


def throttled_records_max(
    group_settings: ShareGroupSettings, delivery_count: int, batch_size: int
) -> int | None:
    """How many records of a batch with this delivery count may be acquired together; None for no
    limit. Half of the batch at first, half of that next time, one at the last attempt."""
    if delivery_count < group_settings.throttle_from:
        return None
    if is_last_attempt(group_settings, delivery_count):
        return 1
    return max(1, batch_size >> (delivery_count - group_settings.throttle_from + 1))


def is_last_attempt(group_settings: ShareGroupSettings, delivery_count: int) -> bool:
    """Whether the next delivery is the last one, which is made alone. Not with a limit of two,
    where every redelivery would be the last."""
    return (
        group_settings.delivery_count_limit > 2
        and delivery_count == group_settings.delivery_count_limit - 1
    )
