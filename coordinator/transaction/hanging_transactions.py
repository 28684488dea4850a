"""Finds hanging transactions: open in a partition, with no coordinator to end them (KIP-664,
KIP-890).

A hanging transaction holds the last stable offset of its partition, so that read_committed
consumers stop there. It comes from a batch that arrives after the end of its transaction: from a
client that adds partitions itself without verification, or from a defect of another broker.

It is proven by two examinations of the partition, each followed by a request to all coordinators:

    open in the partition, without a batch for longer than any transaction may take
    -> no coordinator has an unfinished transaction of its producer in that partition
    -> still open there, and nothing was added to it
    -> again no coordinator has one

A coordinator completes a transaction only after its markers are written. So a transaction that was
open before and after the coordinator was asked, and unknown to it, has no coordinator. The second
request covers a shard that was moving during the first one. This module is pure:
node/router/transactions/watchdog.py does the I/O; the command line uses the same rules.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from odradek.coordinator.transaction.transaction_metadata import Partition

EXAMINED_COUNT_MAX: Final = 200
"""Partitions that are examined in one round; others follow in the next."""
MARGIN_MS: Final = 300_000
"""The time beyond its timeout that a transaction may take until all markers are written: Kafka's
value for the metric PartitionsWithLateTransactionsCount."""


class OpenPartitionTransaction(NamedTuple):
    """An open transaction of a partition, as its leader describes it. Two descriptions are equal if
    nothing was added in between."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


Unfinished = Mapping[int, Collection[Partition]]
"""The partitions of unfinished transactions by producer id, from all coordinators."""


def is_late(found: OpenPartitionTransaction, *, now_ms: int, limit_ms: int) -> bool:
    """Whether its last batch is older than any transaction may take."""
    return now_ms - found.last_timestamp_ms > limit_ms


def is_unknown(found: OpenPartitionTransaction, unfinished: Unfinished) -> bool:
    """Whether no coordinator will end it. One with a later epoch does, in its partitions."""
    return found.partition not in unfinished.get(found.producer_id, ())


class HangingTransactionDetector:
    """The state between the rounds of examination."""

    def __init__(self) -> None:
        self.hanging: dict[OpenPartitionTransaction, None] = {}
        """The proven ones, the oldest finding first."""
        self._held_back: dict[Partition, int] = {}
        self._suspected: set[OpenPartitionTransaction] = set()
        self._last_examined: Partition = ("", -1)

    def begin_round(self, held_back: Mapping[Partition, int]) -> list[Partition]:
        """Begin a round, given the last stable offsets of the partitions that a transaction holds.
        Returns the partitions to examine: those whose offset has not moved for a round, at most
        EXAMINED_COUNT_MAX. Partitions that are no longer held are dropped."""
        stuck = sorted(
            partition
            for partition, offset in held_back.items()
            if self._held_back.get(partition) == offset
        )
        self._held_back = dict(held_back)
        for known in [known for known in self.hanging if known.partition not in held_back]:
            del self.hanging[known]
        self._suspected = {known for known in self._suspected if known.partition in held_back}
        if len(stuck) > EXAMINED_COUNT_MAX:
            after = [partition for partition in stuck if partition > self._last_examined]
            stuck = (after + stuck)[:EXAMINED_COUNT_MAX]
            self._last_examined = stuck[-1]
        return stuck

    def end_round(
        self,
        examined: Collection[Partition],
        late: Iterable[OpenPartitionTransaction],
        unfinished: Unfinished,
    ) -> list[OpenPartitionTransaction]:
        """End a round, given the late open transactions of the examined partitions, and the
        coordinators' unfinished ones after that. Returns the newly proven ones."""
        unknown = {found for found in late if is_unknown(found, unfinished)}
        proven = unknown & self._suspected
        new = sorted(proven - self.hanging.keys())
        for known in [known for known in self.hanging if known.partition in examined]:
            if known not in proven:
                del self.hanging[known]
        self.hanging.update(dict.fromkeys(new))
        elsewhere = {known for known in self._suspected if known.partition not in examined}
        self._suspected = elsewhere | unknown
        return new

    def ended(self, known: OpenPartitionTransaction) -> None:
        """Its marker is written."""
        self.hanging.pop(known, None)
        self._suspected.discard(known)
