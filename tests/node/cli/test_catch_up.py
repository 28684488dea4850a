"""Estimates for replicas that are behind, from the sizes that brokers report."""

from odradek.node.cli.catch_up import (
    ReplicaCatchUp,
    UnderReplicatedPartition,
    catch_up_progress,
    estimate,
    gaps,
    under_replicated_partitions,
)
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.messages.responses import NodeEndpoint
from tests.support.stand_in_cluster import stand_in_cluster

T0 = UnderReplicatedPartition("t", 0, 1, (2, 3))
T1 = UnderReplicatedPartition("t", 1, 1, (2,))


def metadata(*isr: list[int]) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(
            partition_index=index, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=nodes
        )
        for index, nodes in enumerate(isr)
    ]
    brokers = [NodeEndpoint(node_id=node, host="127.0.0.1", port=1) for node in (1, 2, 3)]
    topics = [MetadataResponseTopic(name="t", partitions=partitions)]
    return MetadataResponse(brokers=brokers, topics=topics)


def test_replicas_that_are_not_in_sync_are_under_replicated() -> None:
    assert under_replicated_partitions(metadata([1], [1, 2, 3], [1, 3])) == [
        UnderReplicatedPartition("t", 0, 1, (2, 3)),
        UnderReplicatedPartition("t", 2, 1, (2,)),
    ]


def test_a_node_is_behind_by_the_size_that_its_leaders_have_more() -> None:
    sizes = {(1, "t", 0): 100, (1, "t", 1): 50, (2, "t", 0): 30, (2, "t", 1): 60, (3, "t", 0): 0}
    assert gaps([T0, T1], sizes) == {2: 70, 3: 100}, "more than the leader has is not too little"
    del sizes[2, "t", 1]
    assert gaps([T0, T1], sizes) == {2: None, 3: 100}
    del sizes[1, "t", 0]
    assert gaps([T0], sizes) == {2: None, 3: None}


def test_the_rest_is_estimated_from_the_rate_of_the_gap() -> None:
    before = {(1, "t", 0): 1_000, (2, "t", 0): 0, (3, "t", 0): 900}
    # The leader grows meanwhile: 2 comes nearer by 300, 3 by nothing.
    after = {(1, "t", 0): 1_100, (2, "t", 0): 400, (3, "t", 0): 1_000}
    assert estimate([T0], before, after, 0.5) == [
        ReplicaCatchUp(2, 1, 700, 700 * 0.5 / 300),
        ReplicaCatchUp(3, 1, 100, None),
    ]


def test_a_replica_with_all_bytes_has_no_rest() -> None:
    sizes = {(1, "t", 0): 10, (2, "t", 0): 10, (3, "t", 0): 4}
    found = estimate([T0], sizes, sizes, 1.0)
    assert found == [ReplicaCatchUp(2, 1, 0, 0.0), ReplicaCatchUp(3, 1, 6, None)]


def test_the_gap_of_a_node_that_does_not_answer_is_not_known() -> None:
    with stand_in_cluster(1) as cluster:
        client = ClusterClient(make_connection(cluster.bootstrap, 1.0, None, ()))
        assert catch_up_progress(metadata([3, 2, 1]), client) == []
        assert catch_up_progress(metadata([1, 2], [1]), client) == [
            ReplicaCatchUp(2, 1, None, None),
            ReplicaCatchUp(3, 2, None, None),
        ]
        client.close()
