"""How far replicas are behind their leaders, and when they will have caught up.

A replica lacks the bytes that its leader has more of a partition (DescribeLogDirs). Two samples, a
moment apart, give the rate. Deleted records count until their files are deleted, so all figures are
estimates. Works with any Kafka.
"""

import time
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
    """The replicas of one node that are not in sync. `bytes_behind` is null where the node or a
    leader does not say; `rest_s` also where they do not come nearer."""

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
    """Progress of each node that has replicas out of sync; empty if there are none. Takes
    SAMPLE_INTERVAL_S if any of them has something to fetch."""
    wanted = under_replicated_partitions(metadata)
    if not wanted:
        return []
    begin = time.monotonic()
    before = _sizes(wanted, client)
    if not any(gap for gap in gaps(wanted, before).values()):
        return estimate(wanted, before, before, 1.0)
    wait(SAMPLE_INTERVAL_S)
    elapsed_s = time.monotonic() - begin
    return estimate(wanted, before, _sizes(wanted, client), elapsed_s)


def gaps(wanted: list[UnderReplicatedPartition], sizes: Sizes) -> dict[int, int | None]:
    """Bytes that each node lacks in all; null where one of the sizes is not known."""
    found: dict[int, int | None] = {}
    for topic, partition, leader, replicas in wanted:
        whole = sizes.get((leader, topic, partition))
        for node in replicas:
            has = sizes.get((node, topic, partition))
            known = found.get(node, 0)
            if whole is None or has is None or known is None:
                found[node] = None
            else:
                found[node] = known + max(0, whole - has)
    return found


def estimate(
    wanted: list[UnderReplicatedPartition], before: Sizes, after: Sizes, elapsed_s: float
) -> list[ReplicaCatchUp]:
    """The estimate from two samples, `elapsed_s` apart, for each node."""
    counts: dict[int, int] = {}
    for each in wanted:
        for node in each.replicas:
            counts[node] = counts.get(node, 0) + 1
    gaps_before, gaps_after = gaps(wanted, before), gaps(wanted, after)
    found = []
    for node in sorted(counts):
        was, left = gaps_before[node], gaps_after[node]
        rest_s = None
        if left == 0:
            rest_s = 0.0
        elif left is not None and was is not None and was > left:
            rest_s = left * elapsed_s / (was - left)
        found.append(ReplicaCatchUp(node, counts[node], left, rest_s))
    return found


def _sizes(wanted: list[UnderReplicatedPartition], client: ClusterClient) -> dict[Replica, int]:
    """The size of each replica concerned; none of a node that does not answer."""
    by_node: dict[int, list[PartitionId]] = {}
    for topic, partition, leader, replicas in wanted:
        for node in (leader, *replicas):
            by_node.setdefault(node, []).append((topic, partition))
    sizes: dict[Replica, int] = {}
    for node, names in by_node.items():
        usage = log_dir_usage(client, node, names)
        for (topic, partition), size in usage.sizes.items() if usage is not None else ():
            sizes[node, topic, partition] = size
    return sizes
