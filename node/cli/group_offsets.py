"""Offsets of groups at their coordinators: what is committed, and setting it.

A share group has start offsets in place of commits (KIP-932).
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from odradek.node.cli.cluster_client import ClusterClient, RequestResult, error_text, raise_on_error
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import known
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)


def committed_offsets(client: ClusterClient, name: str) -> dict[PartitionId, int]:
    """Every committed offset of a group; empty for a group that never committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)])
    answer = client.ask_coordinator(name, request, lambda answer: answer.groups[0])
    raise_on_error(answer.groups[0], f"group {name!r}")
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
        lambda answer: answer.topics[0].partitions[0],
    )
    by_id = {topic_id: topic for topic, topic_id in ids.items()}
    _raise_first_error(
        name,
        {
            (topic.name or by_id[topic.topic_id] or "", each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        },
        " `odradek group rewind` moves a group while they run.",
    )


def _raise_first_error(
    name: str, results: Mapping[PartitionId, RequestResult], hint: str = ""
) -> None:
    refused = {partition_id: each for partition_id, each in results.items() if each.error_code}
    for (topic, index), result in refused.items():
        raise click.ClickException(
            f"group {name!r}: {len(refused)} of {len(results)} offsets were refused,"
            f" {topic}-{index}: {error_text(result)}. Are its consumers stopped?{hint}"
        )


def share_positions(
    client: ClusterClient, coordinator: int, name: str
) -> dict[PartitionId, tuple[int, int | None]]:
    """Start offset and lag (KIP-1226) of each partition of a share group; a lag is None until the
    group has read there."""
    group = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[group])
    answer = client.ask_node(coordinator, request)
    return {
        (topic.topic_name, each.partition_index): (
            each.start_offset,
            known(each.lag),
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
    topics: dict[str, TopicOffsets] = {}
    for (topic, index), offset in targets.items():
        entry = topics.setdefault(topic, TopicOffsets(name=topic))
        entry.partitions.append(PartitionOffset(partition_index=index, offset=offset))
    request = AlterShareGroupOffsetsRequest(group_id=name, topics=list(topics.values()))
    answer = client.ask_broker(coordinator, request)
    if answer.error_code:
        raise click.ClickException(
            f"group {name!r}: {error_text(answer)}. Are its consumers stopped?"
        )
    _raise_first_error(
        name,
        {
            (topic.topic_name, each.partition_index): each
            for topic in answer.responses
            for each in topic.partitions
        },
    )
