"""The replicas of all brokers while a plan is made, and which of them to move between two brokers.

One invariant: only `ReplicaDistribution.move` changes anything. For each pair of brokers that was
asked about, the replicas that the first has and the second has not are kept sorted by size, so that
one of about the wanted size is found without looking at all. Among replicas of about one size the
one that costs the fewest copies is chosen (one that the plan has moved already costs none), then
the one that leaves its topic spread best.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.cluster.balance.model import Partition, RegisteredBroker

WINDOW: Final = 48
"""How many replicas of about the wanted size are compared. With 10,000 partitions a choice takes
about 0.1 ms."""


class SizedReplica(NamedTuple):
    """A replica, ordered by size; replicas of one size alternate between topics."""

    byte_count: int
    number: int
    topic: str
    partition_index: int
    """The index of its partition among all of the plan."""


class ReplicaDistribution:
    """The replicas of all partitions, as the plan leaves them.

    Fenced and draining brokers are not balanced. A partition without an in-sync replica on a broker
    that is not fenced cannot move; it counts where it is.
    """

    def __init__(self, nodes: Sequence[RegisteredBroker], partitions: Sequence[Partition]) -> None:
        self.partitions = partitions
        self.racks: Mapping[int, str | None] = {node.node_id: node.rack for node in nodes}
        available = {node.node_id for node in nodes if not node.is_fenced}
        self.members = sorted(node.node_id for node in nodes if _is_participant(node))
        """The brokers that are balanced."""
        self.receivers = sorted(
            node.node_id for node in nodes if _is_participant(node) and not node.is_cordoned
        )
        """The brokers that may get replicas."""
        self.replicas = [target_replicas(partition) for partition in partitions]
        self.original = [frozenset(partition.replicas) for partition in partitions]
        """The brokers that have the partition, or are getting it, without this plan."""
        self.is_movable = [not available.isdisjoint(p.in_sync) for p in partitions]
        self.counts = dict.fromkeys(self.members, 0)
        self.bytes = dict.fromkeys(self.members, 0)
        self._held: dict[int, set[SizedReplica]] = {member: set() for member in self.members}
        """By broker, in no order."""
        self._pairs: dict[int, dict[int, list[SizedReplica]]] = {
            member: {} for member in self.members
        }
        """By source and target: what the target has not, sorted; computed on demand."""
        self._topics: dict[int, Counter[str]] = {member: Counter() for member in self.members}
        for index, partition in enumerate(partitions):
            for node in self.replicas[index]:
                self._count(index, node, 1)
                if node in self._held and self.is_movable[index]:
                    self._held[node].add(_held(index, partition))
        sizes = [partition.byte_count for partition in partitions]
        self._same_size = sum(sizes) // (10 * len(sizes)) if sizes else 0

    def can_move(self, index: int, source: int, target: int) -> bool:
        """Whether a move is allowed: no broker has two, and racks are shared no more."""
        replicas = self.replicas[index]
        return target not in replicas and self.rack_change(index, source, target) <= 0

    def rack_change(self, index: int, source: int, target: int) -> int:
        """How a move changes the spread over racks (half of the change of the sum of squares):
        less than 0 is better, 0 as good as before."""
        racks = self.racks
        from_rack, to_rack = racks.get(source), racks.get(target)
        if from_rack == to_rack:
            return 0
        used = [racks.get(node) for node in self.replicas[index]]
        return used.count(to_rack) - used.count(from_rack) + 1

    def move(self, index: int, source: int, target: int) -> None:
        """Replace the source by the target in the partition's replicas."""
        replica = _held(index, self.partitions[index])
        replicas = self.replicas[index]
        assert self.is_movable[index]
        assert target not in replicas
        self._count(index, source, -1)
        for candidates in self._pairs.get(source, {}).values():
            _discard(candidates, replica)
        for other in replicas:
            pairs = self._pairs.get(other)
            if pairs is not None and other != source:
                if target in pairs:
                    _discard(pairs[target], replica)
                if source in pairs:
                    insort(pairs[source], replica)
        at = replicas.index(source)
        replicas = self.replicas[index] = (*replicas[:at], target, *replicas[at + 1 :])
        self._count(index, target, 1)
        for other, candidates in self._pairs.get(target, {}).items():
            if other not in replicas:
                insort(candidates, replica)
        if source in self._held:
            self._held[source].discard(replica)
        if target in self._held:
            self._held[target].add(replica)

    def best_replica(self, source: int, target: int, *, wanted: float, limit: float) -> int | None:
        """The partition whose replica should move from source to target; None if none can.

        It has about `wanted` bytes and at most `limit`. If all are larger, it is the smallest.
        """
        near: list[SizedReplica] = []
        for replica in _closest_first(self._candidates(source, target), wanted, limit):
            if self.rack_change(replica.partition_index, source, target) <= 0:
                if near and abs(replica.byte_count - near[0].byte_count) > self._same_size:
                    break
                near.append(replica)
                if len(near) == WINDOW:
                    break
        if not near:
            return self.smallest_replica(source, target)
        topics_here, topics_there = self._topics[source], self._topics[target]
        chosen = min(
            near,
            key=lambda replica: (
                self.copy_cost(replica.partition_index, source, target),
                topics_there[replica.topic] - topics_here[replica.topic],
                abs(replica.byte_count - wanted),
                replica,
            ),
        )
        return chosen.partition_index

    def smallest_replica(self, source: int, target: int) -> int | None:
        """The smallest replica that can move from source to target."""
        return next(self.movable_replicas(source, target), None)

    def movable_replicas(self, source: int, target: int) -> Iterator[int]:
        """The replicas that can move from source to target, the smallest first."""
        for replica in self._candidates(source, target):
            if self.rack_change(replica.partition_index, source, target) <= 0:
                yield replica.partition_index

    def copy_cost(self, index: int, source: int, target: int) -> int:
        """How many copies more a move makes: 1, 0 or -1."""
        original = self.original[index]
        return (target not in original) - (source not in original)

    def _candidates(self, source: int, target: int) -> list[SizedReplica]:
        """The replicas that the source has and the target has not, the smallest first."""
        pairs = self._pairs[source]
        found = pairs.get(target)
        if found is None:
            replicas = self.replicas
            found = pairs[target] = sorted(
                replica
                for replica in self._held[source]
                if target not in replicas[replica.partition_index]
            )
        return found

    def _count(self, index: int, node: int, sign: int) -> None:
        if node in self.counts:
            partition = self.partitions[index]
            self.counts[node] += sign
            self.bytes[node] += sign * partition.byte_count
            self._topics[node][partition.topic] += sign


def _closest_first(
    sizes: Sequence[SizedReplica], wanted: float, limit: float
) -> Iterator[SizedReplica]:
    """Those not larger than the limit, the closest to the wanted size first."""
    end = bisect_left(sizes, (limit + 1,))
    above = min(bisect_left(sizes, (wanted,)), end)
    below = above - 1
    while below >= 0 or above < end:
        if above == end or (
            below >= 0 and wanted - sizes[below].byte_count <= sizes[above].byte_count - wanted
        ):
            yield sizes[below]
            below -= 1
        else:
            yield sizes[above]
            above += 1


def _discard(sizes: list[SizedReplica], replica: SizedReplica) -> None:
    at = bisect_left(sizes, replica)
    if at < len(sizes) and sizes[at] == replica:
        del sizes[at]


def target_replicas(partition: Partition) -> tuple[int, ...]:
    """The replicas that the partition has, or will have when its reassignment is done."""
    return tuple(node for node in partition.replicas if node not in partition.removing)


def _is_participant(node: RegisteredBroker) -> bool:
    return not node.is_fenced and not node.is_draining


def _held(index: int, partition: Partition) -> SizedReplica:
    return SizedReplica(partition.byte_count, partition.number, partition.topic, index)
