"""Server-side assignors of consumer groups (KIP-848).

`uniform` assigns the same number of partitions to every member, as far as subscriptions allow, and
moves as few partitions as possible. `range` assigns a contiguous range of each topic to each
member, the same range in topics of the same size, so that partitions of the same number are
co-located. Both start from the current target: a partition moves only if it must.

Every assignor assigns each partition of each subscribed topic exactly once, to a member that
subscribes to it. Pure and deterministic. Called by `consumer.target_assignment`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from odradek.cluster.metadata.group_settings import RANGE, UNIFORM
from odradek.coordinator.group.modern.records import grouped
from odradek.coordinator.group.topics import Partitions, TopicDigest
from odradek.protocol.types import Uuid

TopicPartition: TypeAlias = tuple[Uuid, int]


class MemberSpec(NamedTuple):
    """A member. `topics` are the existing ones that it subscribes to, `owned` is its target."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[Uuid]
    owned: Partitions


Topics: TypeAlias = Mapping[Uuid, TopicDigest]
Assignment: TypeAlias = dict[str, dict[Uuid, frozenset[int]]]
_Kept: TypeAlias = dict[str, list[TopicPartition]]
"""The partitions of each member, while they are assigned."""


def assign(name: str, specs: Sequence[MemberSpec], topics: Topics) -> Assignment:
    """The target of every member; `name` must be one of ASSIGNORS."""
    chosen = ASSIGNORS[name](specs, topics) if specs else {}
    return {member_id: grouped(partitions) for member_id, partitions in chosen.items()}


# -- uniform --------------------------------------------------------------------------------------


def _uniform(specs: Sequence[MemberSpec], topics: Topics) -> Mapping[str, Iterable[TopicPartition]]:
    kept, free = _retain_current(specs, topics)
    first = specs[0].topics
    if all(spec.topics == first for spec in specs):
        _HomogeneousAssignment(specs, topics, kept).fill(free)
    else:
        _HeterogeneousAssignment(specs, topics, kept).fill(free)
    return kept


def _retain_current(
    specs: Sequence[MemberSpec], topics: Topics
) -> tuple[_Kept, list[TopicPartition]]:
    """The partitions that members keep before balancing, and the unassigned ones, sorted."""
    taken: dict[Uuid, set[int]] = {}
    kept: _Kept = {}
    subscribed: set[Uuid] = set()
    for spec in specs:
        held = kept[spec.member_id] = []
        subscribed |= spec.topics
        for topic_id in sorted(spec.owned):
            if topic_id not in spec.topics:
                continue
            count = topics[topic_id].partition_count
            others = taken.setdefault(topic_id, set())
            for index in sorted(spec.owned[topic_id]):
                if index < count and index not in others:
                    others.add(index)
                    held.append((topic_id, index))
    free = [
        (topic_id, index)
        for topic_id in sorted(subscribed)
        for index in range(topics[topic_id].partition_count)
        if index not in taken.get(topic_id, ())
    ]
    return kept, free


def _racks_of(topics: Topics, partition: TopicPartition) -> frozenset[str]:
    racks = topics[partition[0]].racks
    return racks[partition[1]] if partition[1] < len(racks) else frozenset()


class _HomogeneousAssignment:
    """Members with equal subscriptions: each gets the quota, some of them one partition more.

    Every member keeps its partitions up to the quota. The members that have more than the quota
    keep one more, so that as few partitions as possible move.
    """

    def __init__(self, specs: Sequence[MemberSpec], topics: Topics, kept: _Kept) -> None:
        self._topics = topics
        self._kept = kept
        self._rack_of = {member.member_id: member.rack_id for member in specs}
        count = sum(topics[topic_id].partition_count for topic_id in specs[0].topics)
        self._quota, self._extra_count = divmod(count, len(specs))

    def fill(self, free: list[TopicPartition]) -> None:
        """Revoke partitions above the quota, and assign the free ones."""
        free = sorted([*free, *self._revoke_surplus()])
        below_quota = deque(
            member_id for member_id in self._kept if self._is_below_quota(member_id)
        )
        by_rack: dict[str, deque[str]] = {}
        for member_id in below_quota:
            rack = self._rack_of[member_id]
            if rack is not None:
                by_rack.setdefault(rack, deque()).append(member_id)
        if by_rack:
            free = [
                partition for partition in free if not self._assign_rack_local(partition, by_rack)
            ]
        for partition in free:
            self._assign_to_next(partition, below_quota)

    def _revoke_surplus(self) -> Iterable[TopicPartition]:
        by_size = sorted(self._kept, key=lambda member_id: -len(self._kept[member_id]))
        for member_id in by_size:
            held = self._kept[member_id]
            limit = self._quota
            if len(held) > limit and self._extra_count:
                self._extra_count -= 1
                limit += 1
            if len(held) > limit:
                rack = self._rack_of[member_id]
                # Partitions on other racks are revoked first.
                held.sort(key=lambda partition: rack not in _racks_of(self._topics, partition))
                yield from held[limit:]
                del held[limit:]

    def _is_below_quota(self, member_id: str) -> bool:
        count = len(self._kept[member_id])
        return count < self._quota or (count == self._quota and self._extra_count > 0)

    def _assign(self, partition: TopicPartition, member_id: str) -> None:
        held = self._kept[member_id]
        self._extra_count -= len(held) == self._quota
        held.append(partition)

    def _assign_rack_local(self, partition: TopicPartition, by_rack: dict[str, deque[str]]) -> bool:
        """Assign it to a member on a rack of its replicas that is below the quota."""
        for rack in sorted(_racks_of(self._topics, partition)):
            members = by_rack.get(rack)
            while members:
                member_id = members[0]
                if len(self._kept[member_id]) < self._quota:
                    members.rotate(-1)
                    self._assign(partition, member_id)
                    return True
                members.popleft()
        return False

    def _assign_to_next(self, partition: TopicPartition, below_quota: deque[str]) -> None:
        while not self._is_below_quota(below_quota[0]):
            below_quota.popleft()
        # Members below the quota take precedence over those that get one more.
        for _ in range(len(below_quota)):
            member_id = below_quota[0]
            below_quota.rotate(-1)
            if len(self._kept[member_id]) < self._quota:
                self._assign(partition, member_id)
                return
        self._assign(partition, next(filter(self._is_below_quota, below_quota)))


class _HeterogeneousAssignment:
    """Members with different subscriptions: as even as these allow.

    A free partition is assigned to the subscriber with the fewest partitions. Then partitions are
    moved along paths of members, each to the next, as long as there is a path whose last member has
    at least two partitions less than its first. When there is none the assignment is optimal
    (Harvey, Ladner, Lovasz, Tamir: Semi-matchings for bipartite graphs and load balancing, theorem
    3.1).
    """

    def __init__(self, specs: Sequence[MemberSpec], topics: Topics, kept: _Kept) -> None:
        self._topics = topics
        self._kept = kept
        self._rack_of = {member.member_id: member.rack_id for member in specs}
        self._owned = {member.member_id: member.owned for member in specs}
        self._subscribers: dict[Uuid, list[str]] = {}
        for member in specs:
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(member.member_id)

    def fill(self, free: list[TopicPartition]) -> None:
        """Assign the free partitions, and balance the members."""
        free.sort(key=lambda partition: (len(self._subscribers[partition[0]]), partition))
        for partition in free:
            racks = _racks_of(self._topics, partition)
            member_id = min(
                self._subscribers[partition[0]],
                key=lambda name: (self._load(name), self._rack_of[name] not in racks),
            )
            self._kept[member_id].append(partition)
        # A member from which no path starts is not tried again: paths of others only take from
        # members with more partitions, and end at members with less.
        settled: set[str] = set()
        while True:
            loaded = [member_id for member_id in self._kept if member_id not in settled]
            if not loaded:
                return
            heaviest = max(loaded, key=self._load)
            if not self._shift_load_from(heaviest):
                settled.add(heaviest)

    def _load(self, member_id: str) -> int:
        return len(self._kept[member_id])

    def _shift_load_from(self, start: str) -> bool:
        """Move partitions along the shortest path that helps; False if there is none."""
        load_max = self._load(start) - 2
        predecessors: dict[str, tuple[str, Uuid]] = {}
        seen_topics: set[Uuid] = set()
        queue = deque([start])
        while queue:
            source = queue.popleft()
            for topic_id in sorted({topic_id for topic_id, _ in self._kept[source]} - seen_topics):
                seen_topics.add(topic_id)
                destinations = [
                    destination
                    for destination in self._subscribers[topic_id]
                    if destination not in predecessors and destination != start
                ]
                for destination in destinations:
                    predecessors[destination] = (source, topic_id)
                    queue.append(destination)
                best = min(destinations, key=self._load, default=None)
                if best is not None and self._load(best) <= load_max:
                    self._move_along_path(start, best, predecessors)
                    return True
        return False

    def _move_along_path(
        self, start: str, end: str, predecessors: Mapping[str, tuple[str, Uuid]]
    ) -> None:
        destination = end
        while destination != start:
            source, topic_id = predecessors[destination]
            self._kept[destination].append(self._take_partition(source, destination, topic_id))
            destination = source

    def _take_partition(self, source: str, destination: str, topic_id: Uuid) -> TopicPartition:
        """Remove a partition of the topic from the source: one that the destination owned before,
        or else one that the source did not own before, if possible."""
        held = self._kept[source]
        returning = self._owned[destination].get(topic_id, frozenset())
        not_new = self._owned[source].get(topic_id, frozenset())
        chosen = min(
            (partition for partition in held if partition[0] == topic_id),
            key=lambda partition: (partition[1] not in returning, partition[1] in not_new),
        )
        held.remove(chosen)
        return chosen


# -- range ----------------------------------------------------------------------------------------


def _range(specs: Sequence[MemberSpec], topics: Topics) -> Mapping[str, Iterable[TopicPartition]]:
    """Contiguous ranges, in an order of the members that changes as little as possible."""
    assigned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in specs}
    in_order = sorted(specs, key=_member_order)
    subscribers: dict[Uuid, list[str]] = {}
    for member in in_order:
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member.member_id)
    for topic_id in sorted(subscribers):
        members = subscribers[topic_id]
        quota, extra_count = divmod(topics[topic_id].partition_count, len(members))
        start = 0
        for at, member_id in enumerate(members):
            end = start + quota + (at < extra_count)
            assigned[member_id].extend((topic_id, index) for index in range(start, end))
            start = end
    return assigned


def _member_order(member: MemberSpec) -> tuple[bool, int, bool, str]:
    """The sort key: members that had a range in the order of their ranges, then new ones by name.

    The order is the same for all topics, so that members get the same range of topics of the same
    size.
    """
    starts = [min(indexes) for indexes in member.owned.values() if indexes]
    name = member.member_id if member.instance_id is None else member.instance_id
    return not starts, min(starts, default=0), member.instance_id is None, name


Assignor: TypeAlias = Callable[
    [Sequence[MemberSpec], Topics], Mapping[str, Iterable[TopicPartition]]
]
ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: _uniform, RANGE: _range}
