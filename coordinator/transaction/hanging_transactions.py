"""Finds transactions that hang: open in a partition, and ended by nobody, ever (KIP-664, KIP-890).

A partition's last stable offset stays at the first of them, and whoever reads what is committed
waits there for good. One is made by a batch that arrives behind the end of its transaction: by a
client that enlists partitions itself where nobody verifies that it did, or by another broker's
defect.

It is proven in two looks at the partition with a question to all coordinators after each:

    open in the partition, silent for longer than any transaction may take
    -> no coordinator has an unfinished transaction of its producer in that partition
    -> still open there, and nothing was added to it
    -> again no coordinator has

A coordinator calls a transaction complete only after its markers are written; so one that it did
not know and that was open before and after it was asked is known to nobody. The second question is
for a shard that was just moving when it was asked. What is here is pure;
node/router/transactions/watchdog.py looks and asks, and the command line uses the same judgement.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from odradek.coordinator.transaction.transaction_metadata import Partition

EXAMINED_COUNT_MAX: Final = 200
"""Partitions whose producers are looked at in one round; others get their turn in the next."""
MARGIN_MS: Final = 300_000
"""What a transaction may take beyond its timeout until its markers are everywhere: Kafka's own for
its gauge of partitions with late transactions."""


class OpenPartitionTransaction(NamedTuple):
    """A transaction that is open in a partition, as the partition's leader knows it. Two looks at
    one to which nothing was added in between are equal."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


Unfinished = Mapping[int, Collection[Partition]]
"""The partitions of the unfinished transaction of each producer id, as all coordinators tell."""


def is_late(found: OpenPartitionTransaction, *, now_ms: int, limit_ms: int) -> bool:
    """Whether nothing was heard of it for longer than any transaction may take."""
    return now_ms - found.last_timestamp_ms > limit_ms


def is_unknown(found: OpenPartitionTransaction, unfinished: Unfinished) -> bool:
    """Whether no coordinator is going to end it. One of a later epoch would, in its partitions."""
    return found.partition not in unfinished.get(found.producer_id, ())


class HangingTransactionDetector:
    """What rounds of looking have to remember of each other."""

    def __init__(self) -> None:
        self.hanging: dict[OpenPartitionTransaction, None] = {}
        """Those that are proven, the one found first at the beginning."""
        self._held_back: dict[Partition, int] = {}
        self._suspected: set[OpenPartitionTransaction] = set()
        self._last_examined: Partition = ("", -1)

    def begin_round(self, held_back: Mapping[Partition, int]) -> list[Partition]:
        """Begin a round, given the last stable offsets of those partitions that are held back by a
        transaction: those where it has not moved for a round, and no more than may be examined at
        once. What is held back no longer is forgotten."""
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
        """End a round, given what was open and late in the examined partitions, and what the
        coordinators said afterwards. Returns what was proven just now."""
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
