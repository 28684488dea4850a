"""Partitions by topic and leader, and their offsets as their leaders report them.

End offsets are exclusive: the next record gets the end offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error
from odradek.node.cli.not_found import TOPIC, raise_refusal
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.protocol.messages.partitions import TopicPartitions

PartitionId: TypeAlias = tuple[str, int]

LEADERLESS_S: Final = 10.0
"""How long to wait for the leader of a partition; a new partition has none for a moment."""
MOVING_S: Final = 1.0
"""The same where the result may lack the partition."""
RETRY_S: Final = 0.05
LATEST: Final = -1
EARLIEST: Final = -2
LEADERLESS_ERRORS: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...


T = TypeVar("T", bound=_Partition)
T_co = TypeVar("T_co", bound=_Partition, covariant=True)


class _Topic(Protocol[T_co]):
    @property
    def name(self) -> str | None: ...

    @property
    def partitions(self) -> Sequence[T_co]: ...


def by_id(topics: Iterable[_Topic[T]]) -> dict[PartitionId, T]:
    """The partitions of a response by topic and partition number."""
    return {
        (topic.name or "", partition.partition_index): partition
        for topic in topics
        for partition in topic.partitions
    }


def ids_of(topics: Iterable[TopicPartitions]) -> list[PartitionId]:
    """The partitions of a response that has only their numbers."""
    return [(topic.name, number) for topic in topics for number in topic.partitions]


def by_topic(partition_ids: Iterable[PartitionId]) -> list[TopicPartitions]:
    """The partitions, as requests name them."""
    topics: dict[str, TopicPartitions] = {}
    for name, number in partition_ids:
        topics.setdefault(name, TopicPartitions(name=name)).partitions.append(number)
    return list(topics.values())


def by_leader(
    client: ClusterClient, partition_ids: Iterable[PartitionId]
) -> dict[int, list[TopicPartitions]]:
    """The partitions by leader; under -1 those without a leader, or that do not exist."""
    wanted = list(partition_ids)
    known = by_id(client.metadata({topic for topic, _ in wanted}).topics)
    led: dict[int, list[PartitionId]] = {}
    for each in wanted:
        led.setdefault(known[each].leader_id if each in known else -1, []).append(each)
    return {leader: by_topic(ids) for leader, ids in led.items()}


def known_offsets(
    client: ClusterClient, partition_ids: Sequence[PartitionId], timestamp_ms: int
) -> dict[PartitionId, int | None]:
    """As `list_offsets`; None where no leader answers."""
    found = list_offsets(client, partition_ids, timestamp_ms, is_complete=False)
    return {partition_id: found.get(partition_id) for partition_id in partition_ids}


def list_offsets(
    client: ClusterClient,
    partition_ids: Iterable[PartitionId],
    timestamp_ms: int,
    *,
    is_committed: bool = False,
    is_complete: bool = True,
) -> dict[PartitionId, int]:
    """The first offset of each partition whose timestamp is `timestamp_ms` or later, -1 where there
    is none. EARLIEST is the log start offset and LATEST the high watermark; with `is_committed` the
    last stable offset.

    A partition that has no leader for LEADERLESS_S raises ClickException; if the result need not be
    `is_complete`, it is left out after MOVING_S.
    """
    leaderless = ListOffsetsPartitionResponse(error_code=ErrorCode.LEADER_NOT_AVAILABLE)
    missing = dict.fromkeys(partition_ids, leaderless)
    found: dict[PartitionId, int] = {}
    deadline = time.monotonic() + (LEADERLESS_S if is_complete else MOVING_S)
    while missing:
        for leader, topics in by_leader(client, missing).items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(is_committed),
                topics=[
                    ListOffsetsTopic(
                        name=topic.name,
                        partitions=[
                            ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
                            for index in topic.partitions
                        ],
                    )
                    for topic in topics
                ],
            )
            answer = client.ask_node(leader, request)
            missing |= by_id(answer.topics) if answer is not None else {}
        found |= {each: got.offset for each, got in missing.items() if not got.error_code}
        missing = {each: got for each, got in missing.items() if got.error_code}
        is_late = time.monotonic() > deadline
        for (name, index), got in missing.items() if is_complete else ():
            if is_late or got.error_code not in LEADERLESS_ERRORS:
                raise_on_error(got, f"offsets of {name}-{index}")
        if is_late:
            break
        if missing:
            time.sleep(RETRY_S)
    return found


def partitions_of(client: ClusterClient, topics: Iterable[str]) -> list[PartitionId]:
    """Every partition of `topics`, in order; ClickException that names the first unknown topic."""
    partition_ids: list[PartitionId] = []
    for topic in client.metadata(dict.fromkeys(topics)).topics:
        raise_refusal(client, TOPIC, topic.name or "", topic)
        numbers = sorted(partition.partition_index for partition in topic.partitions)
        partition_ids += ((topic.name or "", number) for number in numbers)
    return partition_ids
