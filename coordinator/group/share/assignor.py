"""The assignor of share groups, `simple` (KIP-932): members may share partitions.

Every partition is read by equally many members: by one as long as there are no more members than
partitions, else by as many as it takes that every member has one. Members that subscribe to the
same have equally much to read, give or take one. Nothing moves that need not.

If subscriptions differ, "equally many" holds for the partitions of a topic, counted over the
members that subscribe to it, and loads differ by more than one only where subscriptions leave no
choice. Pure; of the same input it makes the same output. Called by `share.assigning`.
"""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from odradek.coordinator.group.consumer.records import Partitions
from odradek.protocol.types import Uuid

SIMPLE: Final = "simple"
"""Its name, as Kafka's ShareGroupDescribe tells it."""

TopicPartition: TypeAlias = tuple[Uuid, int]


class ShareCandidate(NamedTuple):
    """A member to assign to. `topics` are those it subscribes to, `owned` is its target so far."""

    member_id: str
    topics: frozenset[Uuid]
    owned: Partitions


def assign_shared(
    candidates: Sequence[ShareCandidate], assignable: Partitions
) -> dict[str, dict[Uuid, frozenset[int]]]:
    """The target of every member: of the assignable partitions, those that it shall read."""
    if not candidates:
        return {}
    plan = _Plan(candidates, assignable)
    plan.keep()
    plan.fill()
    plan.balance()
    return plan.targets()


class _Plan:
    """A target in the making: who holds which partition, and how much everybody holds."""

    def __init__(self, candidates: Sequence[ShareCandidate], assignable: Partitions) -> None:
        self._candidates = candidates
        self._held: list[set[TopicPartition]] = [set() for _ in candidates]
        subscribers: dict[Uuid, list[int]] = {}
        for at, candidate in enumerate(candidates):
            for topic_id in candidate.topics:
                subscribers.setdefault(topic_id, []).append(at)
        self._subscribers = {
            topic_id: subscribers[topic_id]
            for topic_id in sorted(assignable)
            if topic_id in subscribers and assignable[topic_id]
        }
        self._indexes = {topic_id: sorted(assignable[topic_id]) for topic_id in self._subscribers}
        self._holders: dict[TopicPartition, list[int]] = {
            (topic_id, index): []
            for topic_id, indexes in self._indexes.items()
            for index in indexes
        }
        self._share_counts = self._readers_wanted()

    def _readers_wanted(self) -> dict[Uuid, int]:
        """By how many members each partition of a topic shall be read."""
        first = self._candidates[0].topics
        if all(candidate.topics == first for candidate in self._candidates):
            count = -(-len(self._candidates) // max(len(self._holders), 1))
            return dict.fromkeys(self._subscribers, count)
        return {
            topic_id: -(-len(members) // len(self._indexes[topic_id]))
            for topic_id, members in self._subscribers.items()
        }

    def keep(self) -> None:
        """Everybody keeps what it has, as far as it may and as few shall read it."""
        for at, candidate in enumerate(self._candidates):
            for topic_id in sorted(candidate.owned):
                if topic_id not in candidate.topics:
                    continue
                for index in sorted(candidate.owned[topic_id]):
                    holders = self._holders.get((topic_id, index))
                    if holders is not None and len(holders) < self._share_counts[topic_id]:
                        self._give((topic_id, index), at)

    def fill(self) -> None:
        """What too few read goes to those who have least."""
        for topic_id, members in self._subscribers.items():
            wanted = min(self._share_counts[topic_id], len(members))
            least = [(len(self._held[at]), at) for at in members]
            heapq.heapify(least)
            for index in self._indexes[topic_id]:
                partition = (topic_id, index)
                passed_over = []
                while len(self._holders[partition]) < wanted:
                    load, at = heapq.heappop(least)
                    if partition in self._held[at]:
                        passed_over.append((load, at))
                        continue
                    self._give(partition, at)
                    passed_over.append((load + 1, at))
                for entry in passed_over:
                    heapq.heappush(least, entry)

    def balance(self) -> None:
        """Who has two less than another takes one of the other's, as long as somebody can."""
        is_moving = True
        while is_moving:
            is_moving = False
            for at in sorted(range(len(self._held)), key=lambda at: (len(self._held[at]), at)):
                while self._take_from_the_fullest(at):
                    is_moving = True

    def _take_from_the_fullest(self, at: int) -> bool:
        mine, topics = self._held[at], self._candidates[at].topics
        others = sorted(
            (other for other in range(len(self._held)) if len(self._held[other]) > len(mine) + 1),
            key=lambda other: (-len(self._held[other]), other),
        )
        for other in others:
            movable = [
                partition
                for partition in self._held[other]
                if partition[0] in topics and partition not in mine
            ]
            if movable:
                partition = max(movable)
                self._held[other].remove(partition)
                self._holders[partition].remove(other)
                self._give(partition, at)
                return True
        return False

    def _give(self, partition: TopicPartition, at: int) -> None:
        self._held[at].add(partition)
        self._holders[partition].append(at)

    def targets(self) -> dict[str, dict[Uuid, frozenset[int]]]:
        """By member and topic."""
        found: dict[str, dict[Uuid, frozenset[int]]] = {}
        for candidate, held in zip(self._candidates, self._held, strict=True):
            by_topic: dict[Uuid, set[int]] = {}
            for topic_id, index in sorted(held):
                by_topic.setdefault(topic_id, set()).add(index)
            found[candidate.member_id] = {
                topic_id: frozenset(indexes) for topic_id, indexes in by_topic.items()
            }
        return found
