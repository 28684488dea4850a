"""Plans which replicas move so that all brokers carry the same load: pure and deterministic.

The goals of a plan, the most important first:

1. A draining broker holds no replica, and no replica is on a broker that is not registered.
2. Racks: no move makes the replicas of a partition share racks more than before. A replica that
   shares a rack moves to a rack that has fewer of the partition.
3. Replica counts: no two brokers differ by more than one, as far as the racks allow. Each move goes
   from a broker with too many replicas to one with too few, so that there are as few as possible.
4. Bytes: no two brokers differ by more than the largest partition or `byte_tolerance` of the
   average, whichever is more, as far as the goals above allow.
5. Preferred leaders: no two brokers differ by more than one (see `preferred_leaders`).

A replica that moves for the counts is chosen so that its target does not get more bytes than it
lacks, if there is such a one: then no more is copied than `ReassignmentPlan.needed_bytes`. At the
end moves that are not needed are undone.

Without `is_full_rebalance` only the replicas of draining brokers move, to where they balance best.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from odradek.cluster.balance.model import (
    BrokerLoad,
    Partition,
    PartitionMove,
    ReassignmentPlan,
    RegisteredBroker,
    UnmovablePartition,
)
from odradek.cluster.balance.preferred_leaders import balance_leaders, shortest_path
from odradek.cluster.balance.replica_distribution import ReplicaDistribution, target_replicas

BYTE_TOLERANCE: Final = 0.1
SWAPPED_MAX: Final = 8
"""How many small replicas are tried in exchange for a larger one."""


def plan_moves(
    nodes: Sequence[RegisteredBroker],
    partitions: Sequence[Partition],
    *,
    is_full_rebalance: bool = True,
    byte_tolerance: float = BYTE_TOLERANCE,
) -> ReassignmentPlan:
    """The plan. It does not depend on the order of the brokers and partitions."""
    nodes = sorted(nodes, key=lambda node: node.node_id)
    partitions = sorted(partitions, key=lambda partition: (partition.topic, partition.number))
    distribution = ReplicaDistribution(nodes, partitions)
    planner = _Planner(distribution, byte_tolerance)
    draining = {node.node_id for node in nodes if node.is_draining}
    registered = {node.node_id for node in nodes}
    planner.evacuate(
        lambda node: node in draining or (is_full_rebalance and node not in registered)
    )
    if is_full_rebalance:
        planner.spread_over_racks()
        planner.balance_counts()
        planner.balance_bytes()
        planner.undo_needless_moves()
    movable = [
        distribution.is_movable[index]
        and (is_full_rebalance or distribution.replicas[index] != target_replicas(partition))
        for index, partition in enumerate(partitions)
    ]
    final = balance_leaders(distribution.replicas, movable, distribution.members)
    moves = [
        move_of(partition, replicas)
        for partition, replicas in zip(partitions, final, strict=True)
        if replicas != target_replicas(partition)
    ]
    node_ids = [node.node_id for node in nodes]
    return ReassignmentPlan(
        moves=tuple(interleave_receivers(moves)),
        unmovable=tuple(planner.unmovable),
        before=broker_loads(
            node_ids,
            partitions,
            [_current_replicas(p) for p in partitions],
            [p.leader for p in partitions],
        ),
        after=broker_loads(node_ids, partitions, final, [replicas[0] for replicas in final]),
        needed_bytes=needed_bytes(distribution.members, partitions),
    )


def needed_bytes(members: Sequence[int], partitions: Sequence[Partition]) -> int:
    """The sum of the bytes that each member has less than the average."""
    held = dict.fromkeys(members, 0)
    total = 0
    for partition in partitions:
        wanted = target_replicas(partition)
        total += partition.byte_count * len(wanted)
        for node in wanted:
            if node in held:
                held[node] += partition.byte_count
    if not members:
        return 0
    share = -(-total // len(members))
    return sum(max(0, share - byte_count) for byte_count in held.values())


def move_of(partition: Partition, after: tuple[int, ...]) -> PartitionMove:
    """The move that gives a partition these replicas."""
    return PartitionMove(
        topic=partition.topic,
        number=partition.number,
        before=_current_replicas(partition),
        after=after,
        adding=tuple(node for node in after if node not in partition.replicas),
        removing=tuple(node for node in partition.replicas if node not in after),
        byte_count=partition.byte_count,
    )


def interleave_receivers(moves: Sequence[PartitionMove]) -> Iterator[PartitionMove]:
    """The moves in the order in which to start them: the largest first, with the receiving brokers
    in turn, so that all of them are busy. Moves that copy nothing come last."""
    waiting: dict[tuple[int, ...], list[PartitionMove]] = {}
    for move in sorted(moves, key=lambda move: (-move.byte_count, move.topic, move.number)):
        waiting.setdefault(move.adding, []).append(move)
    without_copy = waiting.pop((), [])
    queues = [waiting[adding] for adding in sorted(waiting)]
    for turn in range(max((len(queue) for queue in queues), default=0)):
        for queue in queues:
            if turn < len(queue):
                yield queue[turn]
    yield from without_copy


def broker_loads(
    node_ids: Sequence[int],
    partitions: Sequence[Partition],
    assignments: Sequence[Sequence[int]],
    leaders: Sequence[int],
) -> tuple[BrokerLoad, ...]:
    """The load of each broker with these assignments and leaders."""
    counts = dict.fromkeys(node_ids, 0)
    led = dict.fromkeys(node_ids, 0)
    held = dict.fromkeys(node_ids, 0)
    for partition, replicas, leader in zip(partitions, assignments, leaders, strict=True):
        for node in replicas:
            if node in counts:
                counts[node] += 1
                held[node] += partition.byte_count
        if leader in led:
            led[leader] += 1
    return tuple(
        BrokerLoad(node_id=node, replicas=counts[node], leaders=led[node], byte_count=held[node])
        for node in node_ids
    )


def _current_replicas(partition: Partition) -> tuple[int, ...]:
    """The replicas before the reassignment that is in progress, if there is one."""
    return tuple(node for node in partition.replicas if node not in partition.adding)


class _Planner:
    def __init__(self, distribution: ReplicaDistribution, byte_tolerance: float) -> None:
        self._distribution = distribution
        self._partitions = distribution.partitions
        self.unmovable: list[UnmovablePartition] = []
        self._byte_tolerance = byte_tolerance
        self._largest = max((p.byte_count for p in distribution.partitions), default=0)
        self._unusable_pairs: set[tuple[int, int]] = set()
        """Pairs (source, target) between which no replica can move at present."""

    # -- what has to go ----------------------------------------------------------------------------

    def evacuate(self, leaves: Callable[[int], bool]) -> None:
        """Move every replica off the brokers for which `leaves` is true."""
        distribution = self._distribution
        going = [
            (index, node)
            for index in self._by_size()
            for node in distribution.replicas[index]
            if leaves(node)
        ]
        quota = _Quota(distribution, len(going))
        for index, source in going:
            if not distribution.is_movable[index]:
                self._add_unmovable(index, "no in-sync replica is available to copy from")
                continue
            replicas = distribution.replicas[index]
            free = [node for node in distribution.receivers if node not in replicas]
            if not free:
                staying = sum(1 for node in replicas if not leaves(node))
                self._add_unmovable(
                    index,
                    f"it has {len(replicas)} replicas, and only {staying}"
                    f" {'node is' if staying == 1 else 'nodes are'} left to hold one each",
                )
                continue
            target = min(
                free,
                key=lambda node: (
                    distribution.rack_change(index, source, node),
                    quota.is_full(node),
                    distribution.bytes[node],
                    distribution.counts[node],
                    node,
                ),
            )
            distribution.move(index, source, target)

    def _add_unmovable(self, index: int, reason: str) -> None:
        partition = self._partitions[index]
        obstacle = UnmovablePartition(topic=partition.topic, number=partition.number, reason=reason)
        if obstacle not in self.unmovable[-1:]:
            self.unmovable.append(obstacle)

    # -- levelling ---------------------------------------------------------------------------------

    def spread_over_racks(self) -> None:
        """Move replicas that share a rack to racks with fewer replicas of the partition."""
        distribution = self._distribution
        if len({distribution.racks[node] for node in distribution.receivers}) < 2:
            return
        for index in self._by_size():
            while (
                distribution.is_movable[index]
                and (found := self._move_to_freer_rack(index)) is not None
            ):
                distribution.move(index, *found)

    def _move_to_freer_rack(self, index: int) -> tuple[int, int] | None:
        """The move (source, target) that spreads a partition best over the racks, or None."""
        distribution = self._distribution
        counts, bytes_of = distribution.counts, distribution.bytes
        replicas = distribution.replicas[index]
        pairs = [
            (source, target)
            for source in replicas
            if source in counts
            for target in distribution.receivers
            if target not in replicas and distribution.rack_change(index, source, target) < 0
        ]
        return min(
            pairs,
            key=lambda pair: (
                distribution.rack_change(index, *pair),
                counts[pair[1]] - counts[pair[0]],
                bytes_of[pair[1]] - bytes_of[pair[0]],
                pair,
            ),
            default=None,
        )

    def balance_counts(self) -> None:
        """Move from brokers with the most replicas to those with the fewest, over others too."""
        while (path := self._next_path()) is not None:
            for source, target in pairwise(path):
                index = self._replica_for_counts(source, target)
                assert index is not None, "an edge of the path is there until it is used"
                self._move(index, source, target)

    def _next_path(self) -> list[int] | None:
        """The shortest path from a broker to one with at least two replicas fewer; None if the
        counts cannot be balanced better."""
        counts = self._distribution.counts
        bytes_of = self._distribution.bytes
        sources = sorted(counts, key=lambda node: (-counts[node], -bytes_of[node], node))
        targets = sorted(
            self._distribution.receivers, key=lambda node: (counts[node], bytes_of[node], node)
        )
        for source in sources:
            for target in targets:
                if counts[source] - counts[target] < 2:
                    break
                if self._is_edge(source, target):
                    return [source, target]
        for source in sources:
            if not targets or counts[source] - counts[targets[0]] < 2:
                break
            path = shortest_path(source, targets, counts, self._is_edge)
            if path is not None:
                return path
        return None

    def _is_edge(self, source: int, target: int) -> bool:
        if source == target or (source, target) in self._unusable_pairs:
            return False
        if self._distribution.smallest_replica(source, target) is None:
            self._unusable_pairs.add((source, target))
            return False
        return True

    def _replica_for_counts(self, source: int, target: int) -> int | None:
        """The replica to move for the counts: about as large as what the target lacks for each."""
        distribution = self._distribution
        share = self._mean()
        level = sum(distribution.counts.values()) / len(distribution.counts)
        lacking = max(0.0, share - distribution.bytes[target])
        too_much = max(0.0, distribution.bytes[source] - share)
        still_to_come = max(1.0, level - distribution.counts[target])
        still_to_go = max(1.0, distribution.counts[source] - level)
        wanted = min(lacking / still_to_come, too_much / still_to_go)
        return distribution.best_replica(source, target, wanted=wanted, limit=lacking)

    def _move(self, index: int, source: int, target: int) -> None:
        self._distribution.move(index, source, target)
        if self._unusable_pairs:
            touched = {source, target, *self._distribution.replicas[index]}
            self._unusable_pairs = {pair for pair in self._unusable_pairs if pair[0] not in touched}

    def balance_bytes(self) -> None:
        """Move from brokers with the most bytes to those with the fewest: single replicas if the
        counts allow it, else a larger one in exchange for a smaller one."""
        for _ in range(len(self._partitions) + 100):
            if not self._balance_bytes_once():
                return

    def _balance_bytes_once(self) -> bool:
        bytes_of = self._distribution.bytes
        spread_max = self._spread_max()
        heavy = sorted(bytes_of, key=lambda node: (-bytes_of[node], node))
        light = sorted(self._distribution.receivers, key=lambda node: (bytes_of[node], node))
        for source in heavy:
            for target in light:
                difference = bytes_of[source] - bytes_of[target]
                if difference <= spread_max:
                    break
                if self._balance_pair(source, target, difference):
                    return True
        return False

    def _balance_pair(self, source: int, target: int, difference: int) -> bool:
        """Reduce the difference of two brokers in bytes; False if no move does."""
        distribution = self._distribution
        if distribution.counts[source] > distribution.counts[target]:
            index = distribution.best_replica(
                source, target, wanted=difference / 2, limit=difference - 1
            )
            if index is not None and 0 < self._partitions[index].byte_count < difference:
                self._move(index, source, target)
                return True
        if source not in distribution.receivers:
            return False
        exchange: tuple[float, int, int] | None = None
        for tried, back in enumerate(distribution.movable_replicas(target, source)):
            if tried == SWAPPED_MAX:
                break
            size = self._partitions[back].byte_count
            limit = difference + size - 1
            there = distribution.best_replica(
                source, target, wanted=size + difference / 2, limit=limit
            )
            if there is None:
                continue
            gain = self._partitions[there].byte_count - size
            if 0 < gain < difference:
                off = abs(gain - difference / 2) + size
                if exchange is None or (off, there, back) < exchange:
                    exchange = (off, there, back)
        if exchange is None:
            return False
        self._move(exchange[1], source, target)
        self._move(exchange[2], target, source)
        return True

    def undo_needless_moves(self) -> None:
        """Undo moves without which everything is as balanced, the largest first. Then, while more
        is copied than needed, replace moves of larger replicas by moves of smaller ones."""
        for index, before, now in self._moved():
            if self._can_move(index, now, before) and self._is_balanced(
                _move_changes(index, now, before), counts=True
            ):
                self._move(index, now, before)
        lacking = needed_bytes(self._distribution.members, self._partitions)
        copied = sum(
            self._partitions[index].byte_count
            for index, _, now in self._moved()
            if self._is_new(index, now)
        )
        for index, before, now in self._moved():
            if copied <= lacking:
                return
            if self._is_new(index, now) and self._can_move(index, now, before):
                copied -= self._exchange(index, before, now)

    def _exchange(self, index: int, before: int, now: int) -> int:
        """Move the smallest replica that will do in place of this one; the bytes saved."""
        distribution = self._distribution
        size = self._partitions[index].byte_count
        for tried, other in enumerate(distribution.movable_replicas(before, now)):
            saved = size - self._partitions[other].byte_count
            if tried == SWAPPED_MAX or saved <= 0:
                break
            changes = _move_changes(index, now, before) + _move_changes(other, before, now)
            if distribution.copy_cost(other, before, now) == 1 and self._is_balanced(
                changes, counts=False
            ):
                self._move(other, before, now)
                self._move(index, now, before)
                return saved
        return 0

    def _moved(self) -> list[tuple[int, int, int]]:
        """(partition, old broker, new broker) of every replica that the plan moves."""
        return [
            (index, before, now)
            for index in self._by_size()
            for before, now in zip(
                target_replicas(self._partitions[index]),
                self._distribution.replicas[index],
                strict=True,
            )
            if before != now
        ]

    def _is_new(self, index: int, node: int) -> bool:
        return node not in self._distribution.original[index]

    def _can_move(self, index: int, source: int, target: int) -> bool:
        distribution = self._distribution
        return (
            source in distribution.replicas[index]
            and target in distribution.receivers
            and distribution.can_move(index, source, target)
        )

    def _is_balanced(self, changes: Sequence[tuple[int, int, int]], *, counts: bool) -> bool:
        """Whether bytes, and `counts`, are balanced enough, or as well as now, with these changes:
        (partition, broker, 1 or -1)."""
        distribution = self._distribution
        held = dict(distribution.bytes)
        for index, node, sign in changes:
            held[node] += sign * self._partitions[index].byte_count
        if _spread(held) > max(self._spread_max(), _spread(distribution.bytes)):
            return False
        if not counts:
            return True
        count_of = dict(distribution.counts)
        for _, node, sign in changes:
            count_of[node] += sign
        return _spread(count_of) <= max(1, _spread(distribution.counts))

    def _mean(self) -> float:
        """The average bytes of a broker."""
        return sum(self._distribution.bytes.values()) / max(1, len(self._distribution.members))

    def _spread_max(self) -> int:
        """The largest allowed difference of two brokers in bytes."""
        return max(self._largest, int(self._byte_tolerance * self._mean()))

    def _by_size(self) -> list[int]:
        """All partitions, the largest first."""
        partitions = self._partitions
        return sorted(range(len(partitions)), key=lambda at: (-partitions[at].byte_count, at))


class _Quota:
    """How many replicas each receiver should end with when `arriving` are distributed."""

    def __init__(self, distribution: ReplicaDistribution, arriving: int) -> None:
        self._distribution = distribution
        total = sum(distribution.counts[node] for node in distribution.receivers) + arriving
        self._low, self._extra = divmod(total, max(1, len(distribution.receivers)))

    def is_full(self, node: int) -> bool:
        """Whether the broker has its share. As many as the remainder may have one more."""
        count = self._distribution.counts[node]
        if count < self._low:
            return False
        above = sum(
            1
            for other in self._distribution.receivers
            if self._distribution.counts[other] > self._low
        )
        return count > self._low or above >= self._extra


def _move_changes(index: int, source: int, target: int) -> tuple[tuple[int, int, int], ...]:
    return (index, source, -1), (index, target, 1)


def _spread(held: dict[int, int]) -> int:
    return max(held.values(), default=0) - min(held.values(), default=0)
