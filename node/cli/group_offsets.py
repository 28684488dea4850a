"""Offsets of groups at their coordinators: what is committed, and setting it.

A share group has start offsets in place of commits (KIP-932).
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from odradek.node.cli.cluster_client import ClusterClient, error_text
from odradek.node.cli.offsets import PartitionId
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)

_MUST_BE_STOPPED = "Are its consumers stopped? `odradek group rewind` moves it while they run."


def committed_offsets(client: ClusterClient, name: str) -> dict[PartitionId, int]:
    """Every committed offset of a group; empty for a group that never committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)])
    answer = client.ask_coordinator(name, request, lambda told: told.groups[0].error_code)
    if answer is None or answer.groups[0].error_code:
        code = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE if answer is None else answer.groups[0].error_code
        )
        raise click.ClickException(f"group {name!r}: {error_text(code, None)}")
    topics = answer.groups[0].topics
    names = {}
    if not all(topic.name for topic in topics):  # from version 10 on topics are known by ids
        names = {topic.topic_id: topic.name for topic in client.metadata(None).topics}
    return {
        (topic.name or names.get(topic.topic_id) or "", each.partition_index): each.committed_offset
        for topic in topics
        for each in topic.partitions
        if each.committed_offset >= 0 and not each.error_code
    }


def commit_offsets(client: ClusterClient, name: str, targets: Mapping[PartitionId, int]) -> None:
    """Commit offsets of a group without members; ClickException if any is refused."""
    ids = {
        topic.name: topic.topic_id
        for topic in client.metadata({topic for topic, _ in targets}).topics
    }
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, index), offset in targets.items():
        entry = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, topic_id=ids[topic]))
        entry.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=None
            )
        )
    answer = client.ask_coordinator(
        name,
        OffsetCommitRequest(group_id=name, topics=list(topics.values())),
        lambda told: told.topics[0].partitions[0].error_code,
    )
    if answer is None:
        raise click.ClickException(f"group {name!r}: its coordinator does not answer")
    by_id = {topic_id: topic for topic, topic_id in ids.items()}
    refused = [
        (topic.name or by_id.get(topic.topic_id), each)
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code
    ]
    if refused:
        refused_topic, first = refused[0]
        raise click.ClickException(
            f"group {name!r}: {len(refused)} of {len(targets)} offsets were refused, "
            f"{refused_topic}-{first.partition_index}: {error_text(first.error_code, None)}."
            f" {_MUST_BE_STOPPED}"
        )


def share_positions(
    client: ClusterClient, coordinator: int, name: str
) -> dict[PartitionId, tuple[int, int | None]]:
    """Start offset and lag (KIP-1226) of each partition of a share group; a lag is None until the
    group has read there."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    answer = client.ask_node(
        coordinator,
        DescribeShareGroupOffsetsRequest(groups=[asked]),
    )
    return {
        (topic.topic_name, each.partition_index): (
            each.start_offset,
            each.lag if each.lag >= 0 else None,
        )
        for group in (answer.groups if answer is not None else ())
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code
    }


def alter_start_offsets(
    client: ClusterClient, coordinator: int, name: str, targets: Mapping[PartitionId, int]
) -> None:
    """Set where a share group without members begins. ClickException if it is refused."""
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (topic, index), offset in targets.items():
        entry = topics.setdefault(topic, AlterShareGroupOffsetsRequestTopic(topic_name=topic))
        entry.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(group_id=name, topics=list(topics.values()))
    answer = client.ask_broker(coordinator, request)
    if answer.error_code:
        message = answer.error_message or ErrorCode(answer.error_code).message
        raise click.ClickException(f"group {name!r}: {message} Are its consumers stopped?")
    refused = [
        (topic.topic_name, each)
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code
    ]
    if refused:
        topic_name, first = refused[0]
        raise click.ClickException(
            f"{len(refused)} of {len(targets)} offsets were refused, {topic_name}-"
            f"{first.partition_index}: {first.error_message}"
        )
