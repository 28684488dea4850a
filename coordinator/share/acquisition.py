"""How much of what lies there a member gets: values, and the rules that need no state.

In batch-optimized mode the limit is soft: a batch of the log is acquired as a whole, so that fewer
bytes are sent twice; in record-limit mode it is exact (KIP-1206). Records that have been delivered
often are suspect: fewer of them go together each time, and the last attempt of a record is made
alone, so that one bad record does not spend the attempts of its neighbours. Called by `partition`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from odradek.cluster.metadata.group_settings import ShareGroupSettings


class LogBatch(NamedTuple):
    """The offsets [start, end) of one batch of the log. One that `is_void` (markers, aborted
    transactions) has nothing for members."""

    start: int
    end: int
    is_void: bool = False


class AcquiredRange(NamedTuple):
    """Offsets [start, end) that a member holds now; how often they have been delivered with this
    delivery."""

    start: int
    end: int
    delivery_count: int


class ReadPosition(NamedTuple):
    """Where to read, and where at the latest what is wanted ends (None: as far as the log goes)."""

    offset: int
    end_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOptions:
    """What a member asks for."""

    records_max: int
    batch_size: int = 2**31 - 1
    """Ranges are told in pieces of about that many records, so that they can be acknowledged in
    such; a batch of the log is not torn for it."""
    is_exact: bool = False
    """Whether `records_max` is a limit and not a wish."""


class Acquisition:
    """The ranges of one acquisition as they come together, in order."""

    __slots__ = ("_options", "count", "ranges")

    def __init__(self, options: AcquireOptions) -> None:
        self._options = options
        self.ranges: list[AcquiredRange] = []
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether the member has what it asked for."""
        return self.count >= self._options.records_max

    def room(self, size: int) -> int:
        """How many of `size` records that belong together may still be acquired."""
        return min(size, self._options.records_max - self.count) if self._options.is_exact else size

    def add(self, start: int, end: int, delivery_count: int) -> None:
        """Take [start, end) in."""
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
    """How many records of a batch may go together that have been delivered `delivery_count` times
    already; None if they are above suspicion. Half of the batch at first, half of that next time,
    and one by one at the last attempt."""
    if delivery_count < group_settings.throttle_from:
        return None
    if is_last_attempt(group_settings, delivery_count):
        return 1
    return max(1, batch_size >> (delivery_count - group_settings.throttle_from + 1))


def is_last_attempt(group_settings: ShareGroupSettings, delivery_count: int) -> bool:
    """Whether the next delivery is the last one, and to be made alone. With a limit of two every
    redelivery would be the last."""
    return (
        group_settings.delivery_count_limit > 2
        and delivery_count == group_settings.delivery_count_limit - 1
    )
