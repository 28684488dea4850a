"""Offsets of many partitions, from their leaders, for the commands that compare them.

Ends are exclusive: an end offset is the one the next record gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, TypeAlias

import click

from odradek.node.cli.cluster_client import ClusterClient, error_text
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

PartitionId: TypeAlias = tuple[str, int]

LEADERLESS_S: Final = 10.0
"""How long a partition may be without a leader, as a new one is for a moment."""
MOVING_S: Final = 1.0
"""The same where the answer may lack it."""
RETRY_S: Final = 0.05
LATEST: Final = -1
EARLIEST: Final = -2
_LEADERLESS: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


def earliest_offsets(
    client: ClusterClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int]:
    """Log start offset of each partition."""
    return _list_offsets(client, partition_ids, EARLIEST)


def latest_offsets(
    client: ClusterClient, partition_ids: Iterable[PartitionId], *, is_committed: bool = False
) -> dict[PartitionId, int]:
    """High watermark of each partition; with `is_committed`, the last stable offset."""
    return _list_offsets(client, partition_ids, LATEST, is_committed=is_committed)


def known_starts(
    client: ClusterClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int | None]:
    """Log start offset of each partition; None where no leader answers."""
    return _known(client, list(partition_ids), EARLIEST)


def known_ends(
    client: ClusterClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int | None]:
    """High watermark of each partition; None where no leader answers."""
    return _known(client, list(partition_ids), LATEST)


def offsets_at(
    client: ClusterClient, partition_ids: Iterable[PartitionId], timestamp_ms: int
) -> dict[PartitionId, int]:
    """First offset whose timestamp is `timestamp_ms` or later; -1 where there is none."""
    return _list_offsets(client, partition_ids, timestamp_ms)


def by_leader(
    client: ClusterClient, partition_ids: Iterable[PartitionId]
) -> dict[int, dict[str, list[int]]]:
    """The partitions by leader and topic; under -1 those without a leader, or that do not exist."""
    wanted = list(partition_ids)
    leaders = {
        (topic.name, partition.partition_index): partition.leader_id
        for topic in client.metadata({name for name, _ in wanted}).topics
        for partition in topic.partitions
    }
    led: dict[int, dict[str, list[int]]] = {}
    for name, index in wanted:
        led.setdefault(leaders.get((name, index), -1), {}).setdefault(name, []).append(index)
    return led


def _known(
    client: ClusterClient, partition_ids: list[PartitionId], timestamp_ms: int
) -> dict[PartitionId, int | None]:
    found = _list_offsets(
        client, partition_ids, timestamp_ms, leader_timeout_s=MOVING_S, is_complete=False
    )
    return {partition_id: found.get(partition_id) for partition_id in partition_ids}


def _list_offsets(
    client: ClusterClient,
    partition_ids: Iterable[PartitionId],
    timestamp_ms: int,
    *,
    is_committed: bool = False,
    leader_timeout_s: float = LEADERLESS_S,
    is_complete: bool = True,
) -> dict[PartitionId, int]:
    """Partitions that have no leader after `leader_timeout_s` are an error, or left out if the
    answer need not be `is_complete`."""
    missing = dict.fromkeys(partition_ids, int(ErrorCode.LEADER_NOT_AVAILABLE))
    found: dict[PartitionId, int] = {}
    deadline = time.monotonic() + leader_timeout_s
    while missing:
        for leader, topics in by_leader(client, missing).items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(is_committed),
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
                            for index in indexes
                        ],
                    )
                    for name, indexes in topics.items()
                ],
            )
            answer = client.ask_node(leader, request)
            for topic in answer.topics if answer is not None else ():
                for partition in topic.partitions:
                    partition_id = topic.name, partition.partition_index
                    missing[partition_id] = partition.error_code
                    if not partition.error_code:
                        found[partition_id] = partition.offset
                        del missing[partition_id]
        is_late = time.monotonic() > deadline
        for (name, index), code in missing.items() if is_complete else ():
            if is_late or code not in _LEADERLESS:
                raise click.ClickException(f"offsets of {name}-{index}: {error_text(code, None)}")
        if is_late:
            break
        if missing:
            time.sleep(RETRY_S)
    return found


def partitions_of(client: ClusterClient, topics: Iterable[str]) -> list[PartitionId]:
    """Every partition of `topics`, in order; ClickException that names the first unknown topic."""
    partition_ids: list[PartitionId] = []
    for topic in client.metadata(dict.fromkeys(topics)).topics:
        if topic.error_code:
            unknown = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            why = "no such topic" if unknown else error_text(topic.error_code, None)
            raise click.ClickException(f"topic {topic.name!r}: {why}")
        numbers = sorted(partition.partition_index for partition in topic.partitions)
        partition_ids += ((topic.name or "", number) for number in numbers)
    return partition_ids
