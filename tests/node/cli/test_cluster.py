"""`odradek cluster` against clusters, and the health of clusters with faults."""

import pytest

from odradek.node.cli.cluster import (
    ClusterHealth,
    controller_of,
    is_unhealthy,
    nodes_of,
    quorum_findings,
)
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    DescribeQuorumReplicaState,
    DescribeQuorumResponsePartitionData,
)
from odradek.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.node.cli.conftest import Run
from tests.support.ports import free_port
from tests.support.stand_in_cluster import stand_in_cluster

NODES = 3


@pytest.mark.e2e
def test_the_status_of_a_healthy_cluster(kafka: Run, topic: str, bootstrap: str) -> None:
    ran = kafka("cluster", "status", "-o", "json")
    document = ran.json()
    assert isinstance(document, dict)
    assert (document["offline"], document["under_replicated"]) == (0, 0)
    assert document["partitions"] >= 3
    (node,) = document["nodes"]
    assert node["address"] == bootstrap
    assert (node["state"], node["quorum"], node["metadata_lag"]) == ("serving", "leader", 0)
    assert node["leads"] == node["replicas"] == document["partitions"]
    assert document["active_controller"] == f"node {node['node']}"
    shown = kafka("cluster", "status").stdout
    assert "serving" in shown
    assert document["cluster_id"] in shown


def test_a_cluster_that_does_not_run_is_an_error(odradek: Run) -> None:
    ran = odradek("cluster", "status", "-b", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "cannot reach the cluster" in ran.stderr


def in_trouble() -> ClusterHealth:
    """Three nodes: 0 leads the quorum, 1 is far behind, 2 is fenced and no voter."""
    partitions = [
        MetadataResponsePartition(
            partition_index=0, leader_id=0, replica_nodes=[0, 1, 2], isr_nodes=[0, 1]
        ),
        MetadataResponsePartition(
            partition_index=1, leader_id=-1, replica_nodes=[2], isr_nodes=[2]
        ),
        MetadataResponsePartition(partition_index=2, leader_id=1, replica_nodes=[1], isr_nodes=[1]),
    ]
    return ClusterHealth(
        DescribeClusterResponse(
            cluster_id="c",
            controller_id=0,
            brokers=[
                DescribeClusterBroker(broker_id=0, host="a", port=1),
                DescribeClusterBroker(broker_id=1, host="b", port=2, rack="r"),
                DescribeClusterBroker(broker_id=2, host="c", port=3, is_fenced=True),
            ],
        ),
        MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)]),
        DescribeQuorumResponsePartitionData(
            leader_id=0,
            leader_epoch=7,
            current_voters=[
                DescribeQuorumReplicaState(replica_id=0, log_end_offset=100),
                DescribeQuorumReplicaState(replica_id=1, log_end_offset=40),
                DescribeQuorumReplicaState(replica_id=9, log_end_offset=-1),
            ],
            observers=[DescribeQuorumReplicaState(replica_id=2, log_end_offset=100)],
        ),
    )


def test_under_replicated_and_offline_partitions_are_counted() -> None:
    health = in_trouble()
    assert health.partition_count == 3
    assert health.under_replicated == ["t-0"]
    assert health.offline == ["t-1"]
    assert is_unhealthy(health)


def test_every_node_and_voter_has_a_row() -> None:
    rows = {row["node"]: row for row in nodes_of(in_trouble())}
    assert rows.keys() == {0, 1, 2, 9}
    assert [rows[n]["state"] for n in (0, 1, 2, 9)] == ["serving", "serving", "fenced", "no broker"]
    assert [rows[n]["quorum"] for n in (0, 1, 2, 9)] == ["leader", "voter", "observer", "voter"]
    assert [rows[n]["metadata_lag"] for n in (0, 1, 2, 9)] == [0, 60, 0, None]
    assert [rows[n]["leads"] for n in (0, 1, 2, 9)] == [1, 1, 0, 0]
    assert [rows[n]["replicas"] for n in (0, 1, 2, 9)] == [1, 2, 2, 0]
    assert [rows[n]["replicas_behind"] for n in (0, 1, 2, 9)] == [0, 0, 1, 0]


def test_a_cluster_is_unhealthy_without_a_quorum_leader() -> None:
    health = in_trouble()
    health.offline.clear()
    assert not is_unhealthy(health)
    assert health.quorum is not None
    health.cluster.controller_id = 2
    assert controller_of(health) == 0
    health.quorum.leader_id = -1
    assert is_unhealthy(health)
    health.quorum = None
    assert not is_unhealthy(health)
    health.cluster.controller_id = -1
    assert is_unhealthy(health)


def test_a_quorum_without_leader_is_a_finding_that_names_brokers_without_answer() -> None:
    with (
        stand_in_cluster(3) as brokers,
        ClusterClient(make_connection(brokers.bootstrap, 10.0, None, ())) as client,
    ):
        cluster = client.ask(DescribeClusterRequest())
        assert quorum_findings(in_trouble(), client) == []
        cluster.brokers[1].is_fenced = True
        brokers.stop(1)
        brokers.stop(2)
        health = ClusterHealth(
            cluster,
            MetadataResponse(),
            DescribeQuorumResponsePartitionData(error_code=ErrorCode.LEADER_NOT_AVAILABLE),
        )
        (finding,) = quorum_findings(health, client)
    assert "The metadata quorum has no leader" in finding.what
    assert finding.what.endswith("No answer from broker 1, 2.")


def test_an_observer_beside_its_old_replica_is_shown_as_old_vote() -> None:
    health = in_trouble()
    assert health.quorum is not None
    health.quorum.observers.append(DescribeQuorumReplicaState(replica_id=1, log_end_offset=90))
    rows = {row["node"]: row for row in nodes_of(health)}
    assert (rows[1]["quorum"], rows[1]["metadata_lag"]) == ("old vote", 10)


def test_nodes_have_no_quorum_role_if_the_broker_reports_no_quorum() -> None:
    health = in_trouble()
    health.quorum = None
    assert [row["quorum"] for row in nodes_of(health)] == [None, None, None]
