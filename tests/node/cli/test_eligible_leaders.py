"""Who may lead a partition without a leader. A test of docs/operations.md has such a cluster."""

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.eligible_leaders import eligible_leaders, with_eligible_leaders
from odradek.node.cli.findings import PartitionView
from odradek.protocol.messages.metadata import (
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tests.support.stand_in_cluster import stand_in_cluster


def partition(
    index: int, eligible: list[int] | None, last_known: list[int] | None, leader: int = -1
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=leader,
        eligible_leader_replicas=eligible,
        last_known_elr=last_known,
    )


def test_the_eligible_replicas_of_partitions_without_a_leader_or_else_the_last_ones() -> None:
    partitions = [
        partition(0, [1], [2]),
        partition(1, [], [2]),
        partition(2, None, None),
        partition(3, [1], [], leader=0),
    ]
    topic = DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    assert eligible_leaders([topic]) == {("t", 0): [1], ("t", 1): [2], ("t", 2): ()}


def test_brokers_that_do_not_tell_are_not_asked() -> None:
    views = [PartitionView(partition_id=("t", 0), leader=-1, replicas=(1, 2))]
    with (
        stand_in_cluster(1) as brokers,
        ClusterClient(make_connection(brokers.bootstrap, 10.0, None, ())) as client,
    ):
        assert with_eligible_leaders(client, views) == views
