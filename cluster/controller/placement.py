"""Places new replicas: balanced over the racks first, then over the brokers.

Each replica is placed on the broker that has the least of the topic, by these criteria in order:

- the leader: the broker that leads the fewest partitions, then that holds the fewest replicas;
- a follower: the rack with the fewest replicas of the partition; then the broker, and the rack,
  with the fewest replicas; then the broker that leads the most, because the others will have to
  lead; then the one that has followed this leader least, so that all others share the load of a
  lost broker.

Ties are broken round robin, starting at a broker that the topic's random id selects. The numbers of
leaders therefore differ by at most one, and those of replicas too if all racks are of one size.
Partitions that are added later continue from the existing ones.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Uuid

_NO_RACKS: Final[Mapping[int, str | None]] = {}


def place_replicas(
    topic_id: Uuid,
    *,
    partition_count: int,
    replication_factor: int,
    brokers: Sequence[int],
    racks: Mapping[int, str | None] = _NO_RACKS,
    inactive: Sequence[int] = (),
    existing: Iterable[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """Replicas for `partition_count` partitions, the preferred leader of each first.

    `brokers` may lead; `inactive` are registered brokers that cannot lead now. They become
    followers only if there are not enough others, so that a topic can be created while a node is
    down. `existing` are the replicas of the topic's partitions so far. All brokers without a rack
    share one. ApiError(INVALID_REPLICATION_FACTOR) if there are fewer brokers than replicas, or
    none that may lead.
    """
    count = len(brokers) + len(inactive)
    if replication_factor > count:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target"
            f" replication factor of {replication_factor} cannot be reached because only {count}"
            " broker(s) are registered or some brokers have all their log directories cordoned.",
        )
    if not brokers:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are"
            " currently fenced or in controlled shutdown.",
        )
    replica_counts = _ReplicaCounts(topic_id, brokers, racks)
    for replicas in existing:
        replica_counts.count(replicas)
    from_brokers = min(replication_factor, len(brokers))
    return [
        replica_counts.next(from_brokers)
        + _rotated(inactive, partition, replication_factor - from_brokers)
        for partition in range(partition_count)
    ]


def _rotated(inactive: Sequence[int], partition: int, count: int) -> tuple[int, ...]:
    return tuple(inactive[(partition + number) % len(inactive)] for number in range(count))


def _rack_by_rack(brokers: Sequence[int], racks: Mapping[int, str | None]) -> list[int]:
    """One broker of each rack, then the next of each, as long as there are any."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(racks.get(broker), []).append(broker)
    rows = zip_longest(*by_rack.values())
    return [broker for row in rows for broker in row if broker is not None]


class _ReplicaCounts:
    """The replicas of one topic on each broker; the broker numbers alternate between racks."""

    def __init__(
        self, topic_id: Uuid, brokers: Sequence[int], racks: Mapping[int, str | None]
    ) -> None:
        self._brokers = _rack_by_rack(brokers, racks)
        self._numbers = {broker: number for number, broker in enumerate(self._brokers)}
        self._racks = [racks.get(broker) for broker in self._brokers]
        self._start = int.from_bytes(topic_id[:8]) % len(brokers)
        self._led = [0] * len(brokers)
        self._replicas_held = [0] * len(brokers)
        self._rack_held: Counter[str | None] = Counter()
        self._followed: Counter[tuple[int, int]] = Counter()
        self._partitions = 0

    def next(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of the next partition."""
        count = len(self._brokers)
        numbers = range(count)
        led, held, racks, rack_held = self._led, self._replicas_held, self._racks, self._rack_held
        start, followed = self._start, self._followed
        leader = min(numbers, key=lambda n: (led[n], held[n], (n - start) % count))
        turn = leader + self._partitions
        chosen = [leader]
        used = Counter((racks[leader],))
        self._add(leader, leader)
        while len(chosen) < replication_factor:
            follower = min(
                (number for number in numbers if number not in chosen),
                key=lambda n: (
                    used[racks[n]],
                    held[n],
                    rack_held[racks[n]],
                    -led[n],
                    followed[leader, n],
                    (n - turn) % count,
                ),
            )
            chosen.append(follower)
            used[racks[follower]] += 1
            self._add(follower, leader)
        self._partitions += 1
        return tuple(self._brokers[number] for number in chosen)

    def count(self, replicas: Sequence[int]) -> None:
        """Count the replicas of an existing partition; other brokers are ignored."""
        leader = self._numbers.get(replicas[0])
        for broker in replicas:
            number = self._numbers.get(broker)
            if number is not None:
                self._add(number, leader)
        self._partitions += 1

    def _add(self, number: int, leader: int | None) -> None:
        self._replicas_held[number] += 1
        self._rack_held[self._racks[number]] += 1
        if number == leader:
            self._led[number] += 1
        elif leader is not None:
            self._followed[leader, number] += 1
