"""The assignor of share groups, `simple` (KIP-932): members may share partitions.

Every partition is assigned to the same number of members: to one if there are no more members than
partitions, else to as many as are needed to give every member a partition. Members with the same
subscription get the same number of partitions, plus or minus one. As few as possible move.

If subscriptions differ, the number of members is the same for the partitions of a topic, counted
over its subscribers, and loads differ by more than one only where subscriptions require it. Pure
and deterministic. Called by `share.target_assignment`.
"""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from odradek.coordinator.group.modern.records import grouped
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.types import Uuid

SIMPLE: Final = "simple"
"""The assignor's name in ShareGroupDescribe."""

TopicPartition: TypeAlias = tuple[Uuid, int]


class ShareMemberSpec(NamedTuple):
    """A member. `topics` are the existing ones that it subscribes to, `owned` is its target."""

    member_id: str
    topics: frozenset[Uuid]
    owned: Partitions


def assign_shared(
    specs: Sequence[ShareMemberSpec], assignable: Partitions
) -> dict[str, dict[Uuid, frozenset[int]]]:
    """The target of every member, of the assignable partitions."""
    if not specs:
        return {}
    plan = _SimpleAssignment(specs, assignable)
    plan.keep()
    plan.fill()
    plan.balance()
    return plan.targets()


class _SimpleAssignment:
    """The partitions of each member, and the members of each partition."""

    def __init__(self, specs: Sequence[ShareMemberSpec], assignable: Partitions) -> None:
        self._candidates = specs
        self._assigned: list[set[TopicPartition]] = [set() for _ in specs]
        subscribers: dict[Uuid, list[int]] = {}
        for at, spec in enumerate(specs):
            for topic_id in spec.topics:
                subscribers.setdefault(topic_id, []).append(at)
        self._subscribers = {
            topic_id: subscribers[topic_id]
            for topic_id in sorted(assignable)
            if topic_id in subscribers and assignable[topic_id]
        }
        self._indexes = {topic_id: sorted(assignable[topic_id]) for topic_id in self._subscribers}
        self._assignees: dict[TopicPartition, list[int]] = {
            (topic_id, index): []
            for topic_id, indexes in self._indexes.items()
            for index in indexes
        }
        self._member_counts = self._desired_sharing()

    def _desired_sharing(self) -> dict[Uuid, int]:
        """The number of members that should read each partition of a topic."""
        first = self._candidates[0].topics
        if all(spec.topics == first for spec in self._candidates):
            count = -(-len(self._candidates) // max(len(self._assignees), 1))
            return dict.fromkeys(self._subscribers, count)
        return {
            topic_id: -(-len(members) // len(self._indexes[topic_id]))
            for topic_id, members in self._subscribers.items()
        }

    def keep(self) -> None:
        """Members keep their partitions, up to the desired number of members."""
        for at, spec in enumerate(self._candidates):
            for topic_id in sorted(spec.owned):
                if topic_id not in spec.topics:
                    continue
                for index in sorted(spec.owned[topic_id]):
                    assignees = self._assignees.get((topic_id, index))
                    if assignees is not None and len(assignees) < self._member_counts[topic_id]:
                        self._assign((topic_id, index), at)

    def fill(self) -> None:
        """Partitions with too few members go to the members with the fewest partitions."""
        for topic_id, members in self._subscribers.items():
            wanted = min(self._member_counts[topic_id], len(members))
            load_heap = [(len(self._assigned[at]), at) for at in members]
            heapq.heapify(load_heap)
            for index in self._indexes[topic_id]:
                partition = (topic_id, index)
                popped = []
                while len(self._assignees[partition]) < wanted:
                    load, at = heapq.heappop(load_heap)
                    if partition in self._assigned[at]:
                        popped.append((load, at))
                        continue
                    self._assign(partition, at)
                    popped.append((load + 1, at))
                for entry in popped:
                    heapq.heappush(load_heap, entry)

    def balance(self) -> None:
        """Move partitions to members with at least two less, as long as possible."""
        is_moving = True
        while is_moving:
            is_moving = False
            for at in sorted(
                range(len(self._assigned)), key=lambda at: (len(self._assigned[at]), at)
            ):
                while self._take_from_most_loaded(at):
                    is_moving = True

    def _take_from_most_loaded(self, at: int) -> bool:
        held, topics = self._assigned[at], self._candidates[at].topics
        others = sorted(
            (
                other
                for other in range(len(self._assigned))
                if len(self._assigned[other]) > len(held) + 1
            ),
            key=lambda other: (-len(self._assigned[other]), other),
        )
        for other in others:
            movable = [
                partition
                for partition in self._assigned[other]
                if partition[0] in topics and partition not in held
            ]
            if movable:
                partition = max(movable)
                self._assigned[other].remove(partition)
                self._assignees[partition].remove(other)
                self._assign(partition, at)
                return True
        return False

    def _assign(self, partition: TopicPartition, at: int) -> None:
        self._assigned[at].add(partition)
        self._assignees[partition].append(at)

    def targets(self) -> dict[str, dict[Uuid, frozenset[int]]]:
        """By member and topic."""
        return {
            spec.member_id: grouped(held)
            for spec, held in zip(self._candidates, self._assigned, strict=True)
        }
