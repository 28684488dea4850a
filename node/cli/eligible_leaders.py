"""Which replicas may lead a partition that has no leader (KIP-966).

With eligible leader replicas the ISR of such a partition may be empty. The controller remembers who
has all that was acknowledged, and who was the last one if that one may have lost something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.findings import PartitionView
from odradek.node.cli.offsets import PartitionId
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.protocol.messages.partitions import TopicName


def with_eligible_leaders(
    client: ClusterClient, views: Iterable[PartitionView]
) -> list[PartitionView]:
    """The same partitions; those without a leader and an ISR have their `eligible` replicas, if a
    broker tells them."""
    views = list(views)
    wanted = {view.partition_id[0] for view in views if view.leader < 0 and not view.in_sync}
    if not wanted or not client.serves(ApiKey.DESCRIBE_TOPIC_PARTITIONS):
        return views
    request = DescribeTopicPartitionsRequest(
        topics=[TopicName(name=name) for name in sorted(wanted)]
    )
    eligible: dict[PartitionId, Sequence[int]] = {}
    while True:
        answer = client.ask(request)
        eligible.update(eligible_leaders(answer.topics))
        if answer.next_cursor is None:
            break
        request.cursor = answer.next_cursor
    return [replace(view, eligible=tuple(eligible.get(view.partition_id, ()))) for view in views]


def eligible_leaders(
    topics: Iterable[DescribeTopicPartitionsResponseTopic],
) -> Mapping[PartitionId, Sequence[int]]:
    """The replicas of these partitions that may lead them, or else the last ones that could."""
    return {
        (topic.name or "", partition.partition_index): (
            partition.eligible_leader_replicas or partition.last_known_elr or ()
        )
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id < 0
    }
