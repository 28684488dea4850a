"""Where new replicas go: in turn over the active brokers, so that leaders and followers spread.

The walk starts at a broker that the topic's id points to, which is random by birth, and goes on
where it stopped when partitions are added later. The followers of a partition are shifted against
its leader by a step that grows with every round, so that the load of a lost broker spreads over all
others instead of falling on its neighbour. Racks are not looked at yet.
"""

from collections.abc import Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.types import Uuid


def place(
    topic_id: Uuid,
    *,
    first_partition: int,
    partition_count: int,
    replication_factor: int,
    brokers: Sequence[int],
) -> list[tuple[int, ...]]:
    """Replicas for the partitions of [first_partition, first_partition + partition_count).

    Raises ApiError(INVALID_REPLICATION_FACTOR) if there are fewer brokers than replicas wanted.
    """
    count = len(brokers)
    if replication_factor > count:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs that many brokers, but only {count}"
            f" {'is' if count == 1 else 'are'} available",
        )
    start = int.from_bytes(topic_id[:8]) % count
    return [
        _replicas(start, partition, replication_factor, brokers)
        for partition in range(first_partition, first_partition + partition_count)
    ]


def _replicas(
    start: int, partition: int, replication_factor: int, brokers: Sequence[int]
) -> tuple[int, ...]:
    count = len(brokers)
    leader = (start + partition) % count
    replicas = [brokers[leader]]
    if replication_factor > 1:
        shift = (start + partition // count) % (count - 1)
        for follower in range(replication_factor - 1):
            step = 1 + (shift + follower) % (count - 1)
            replicas.append(brokers[(leader + step) % count])
    return tuple(replicas)
