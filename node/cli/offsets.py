"""Offsets of many partitions in one question, for the commands that compare them.

Keys are (topic, partition). Ends are exclusive: an end offset is the one the next record gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import click

from odradek.node.cli.connection import collect_results, reason

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

PartitionId: TypeAlias = tuple[str, int]

# How long a partition may be without a leader, as a new one is for a moment, and how often to ask.
LEADERLESS_S = 10.0
MOVING_S = 1.0
"""The same for who can do without."""
RETRY_S = 0.05


def earliest_offsets(
    admin: AdminClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int]:
    """Log start offset of each partition."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(partition_ids, OffsetSpec.earliest()))


def latest_offsets(
    admin: AdminClient, partition_ids: Iterable[PartitionId], *, is_committed: bool = False
) -> dict[PartitionId, int]:
    """High watermark of each partition; with `is_committed`, the last stable offset."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(partition_ids, OffsetSpec.latest()), is_committed=is_committed)


def known_starts(
    admin: AdminClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int | None]:
    """Log start offset of each partition; None where no leader can tell it."""
    from confluent_kafka.admin import OffsetSpec

    return _ask_known(admin, dict.fromkeys(partition_ids, OffsetSpec.earliest()))


def known_ends(
    admin: AdminClient, partition_ids: Iterable[PartitionId]
) -> dict[PartitionId, int | None]:
    """High watermark of each partition; None where no leader can tell it."""
    from confluent_kafka.admin import OffsetSpec

    return _ask_known(admin, dict.fromkeys(partition_ids, OffsetSpec.latest()))


def _ask_known(
    admin: AdminClient, specs: Mapping[PartitionId, OffsetSpec]
) -> dict[PartitionId, int | None]:
    found = _ask(admin, specs, leader_timeout_s=MOVING_S, is_complete=False)
    return {partition_id: found.get(partition_id) for partition_id in specs}


def offsets_at(
    admin: AdminClient, partition_ids: Iterable[PartitionId], timestamp_ms: int
) -> dict[PartitionId, int]:
    """First offset whose timestamp is `timestamp_ms` or later; -1 where there is none."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(partition_ids, OffsetSpec.for_timestamp(timestamp_ms)))


def _ask(
    admin: AdminClient,
    specs: Mapping[PartitionId, OffsetSpec],
    *,
    is_committed: bool = False,
    leader_timeout_s: float = LEADERLESS_S,
    is_complete: bool = True,
) -> dict[PartitionId, int]:
    """Partitions that have no leader after `leader_timeout_s` are an error, or left out if the
    answer need not be `is_complete`."""
    from confluent_kafka import IsolationLevel, KafkaError, TopicPartition

    if not specs:
        return {}
    leaderless = {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Of those that are asked for none has a leader.
        KafkaError._NOENT,
    }
    isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    offsets: dict[PartitionId, int] = {}
    deadline = time.monotonic() + leader_timeout_s
    while True:
        wanted = {
            TopicPartition(*partition_id): spec
            for partition_id, spec in specs.items()
            if partition_id not in offsets
        }
        answers, refusals = collect_results(admin.list_offsets(wanted, isolation_level=isolation))
        for partition_id, answer in answers.items():
            offsets[partition_id.topic, partition_id.partition] = answer.offset
        for partition_id, error in refusals.items():
            is_late = time.monotonic() > deadline
            if error.code() not in leaderless or (is_late and is_complete):
                raise click.ClickException(
                    f"offsets of {partition_id.topic}-{partition_id.partition}: {reason(error)}"
                )
        if not refusals or time.monotonic() > deadline:
            return offsets
        time.sleep(RETRY_S)


def partitions_of(metadata: ClusterMetadata, topics: Iterable[str]) -> list[PartitionId]:
    """Every partition of `topics`, in order; an error that names the first unknown topic."""
    partition_ids: list[PartitionId] = []
    for topic in topics:
        described = metadata.topics.get(topic)
        if described is None or described.error is not None:
            why = reason(described.error) if described is not None else "no such topic"
            raise click.ClickException(f"topic {topic!r}: {why}")
        partition_ids.extend((topic, number) for number in sorted(described.partitions))
    return partition_ids
