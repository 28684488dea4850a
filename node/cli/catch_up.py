"""How far replicas are behind their leaders, and when they will have caught up.

A replica is behind by the difference between its size and that of the leader's log
(DescribeLogDirs). Two samples give the rate. Deleted records count until their files are deleted,
so all figures are estimates. Works with any Kafka.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.replica_placement import log_dir_usage
from odradek.protocol.messages.metadata import MetadataResponse

SAMPLE_INTERVAL_S = 0.5

Replica = tuple[int, str, int]
"""(node, topic, partition)"""
Sizes = Mapping[Replica, int]


class UnderReplicatedPartition(NamedTuple):
    """One partition that has replicas which are not in sync."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]


class ReplicaCatchUp(NamedTuple):
    """The replicas of one node that are not in sync. `bytes_behind` is None if the node or a leader
    does not report it; `rest_s` also if they do not catch up."""

    node: int
    replica_count: int
    bytes_behind: int | None
    rest_s: float | None


def under_replicated_partitions(metadata: MetadataResponse) -> list[UnderReplicatedPartition]:
    """The partitions some of whose replicas are not in sync."""
    return [
        UnderReplicatedPartition(
            topic.name or "", partition.partition_index, partition.leader_id, tuple(missing)
        )
        for topic in metadata.topics
        for partition in topic.partitions
        if (missing := sorted(set(partition.replica_nodes) - set(partition.isr_nodes)))
    ]


def catch_up_progress(
    metadata: MetadataResponse,
    client: ClusterClient,
    wait: Callable[[float], None] = time.sleep,
) -> list[ReplicaCatchUp]:
    """Progress of each node that has replicas out of sync. Takes SAMPLE_INTERVAL_S if one of them
    is behind."""
    partitions = under_replicated_partitions(metadata)
    begin = time.monotonic()
    before = after = _sizes(partitions, client)
    if any(gaps(partitions, before).values()):
        wait(SAMPLE_INTERVAL_S)
        after = _sizes(partitions, client)
    return estimate(partitions, before, after, time.monotonic() - begin)


def gaps(partitions: list[UnderReplicatedPartition], sizes: Sizes) -> dict[int, int | None]:
    """The bytes that each node is behind; None if one of the sizes is not known."""
    behind: dict[int, int | None] = {}
    for topic, number, leader, replicas in partitions:
        leader_size = sizes.get((leader, topic, number))
        for node in replicas:
            size = sizes.get((node, topic, number))
            known = behind.get(node, 0)
            if leader_size is None or size is None or known is None:
                behind[node] = None
            else:
                behind[node] = known + max(0, leader_size - size)
    return behind


def estimate(
    partitions: list[UnderReplicatedPartition], before: Sizes, after: Sizes, elapsed_s: float
) -> list[ReplicaCatchUp]:
    """The estimate for each node from two samples that are `elapsed_s` apart."""
    counts = Counter(node for partition in partitions for node in partition.replicas)
    gaps_before, gaps_after = gaps(partitions, before), gaps(partitions, after)
    progress = []
    for node in sorted(counts):
        gap_before, gap = gaps_before[node], gaps_after[node]
        rest_s = None
        if gap == 0:
            rest_s = 0.0
        elif gap is not None and gap_before is not None and gap_before > gap:
            rest_s = gap * elapsed_s / (gap_before - gap)
        progress.append(ReplicaCatchUp(node, counts[node], gap, rest_s))
    return progress


def _sizes(partitions: list[UnderReplicatedPartition], client: ClusterClient) -> dict[Replica, int]:
    """The sizes of the leaders and of the replicas, without those of nodes that do not answer."""
    by_node: dict[int, list[PartitionId]] = {}
    for topic, number, leader, replicas in partitions:
        for node in (leader, *replicas):
            by_node.setdefault(node, []).append((topic, number))
    sizes: dict[Replica, int] = {}
    for node, names in by_node.items():
        usage = log_dir_usage(client, node, names)
        for (topic, number), size in usage.sizes.items() if usage is not None else ():
            sizes[node, topic, number] = size
    return sizes
