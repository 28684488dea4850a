"""`odradek cluster` against clusters, and the health of clusters with faults."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.node.blocking_client import BlockingClient
from odradek.node.child import python_command
from odradek.node.cli.cluster import ClusterHealth, controller_of, is_unhealthy, nodes_of
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.quorum import quorum_state
from odradek.node.local_cluster import ClusterLayout, LocalNode, new_layout, write_layout
from odradek.protocol.messages.cluster import (
    DescribeQuorumReplicaState,
    DescribeQuorumResponsePartitionData,
)
from odradek.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.node.cli.conftest import Run
from tests.support.ports import free_pair, free_port, is_listening
from tests.support.waiting import wait_until

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


@pytest.mark.e2e
def test_a_cluster_runs_until_a_signal_and_restarts_a_killed_node(tmp_path: Path) -> None:
    port = free_port()
    write_layout(tmp_path, ClusterLayout("cluster-of-the-test", (LocalNode(0, port, free_pair()),)))
    command = python_command("odradek", "cluster", "up")
    command += ["--data", str(tmp_path), "--output", "json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["bootstrap"] == f"127.0.0.1:{port}"
            state = tmp_path / "node-0" / "data" / "node.json"
            killed = json.loads(state.read_bytes())["pid"]
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: state.exists() and json.loads(state.read_bytes())["pid"] != killed)
            with BlockingClient("127.0.0.1", port, 10.0) as asker:
                assert asker.ask(MetadataRequest(topics=[])).brokers
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert not is_listening(port)
        finally:
            process.kill()


@pytest.mark.e2e
def test_a_cluster_of_one_node_grows_with_nodes(tmp_path: Path) -> None:
    port = free_range(NODES)
    write_layout(tmp_path, new_layout(1, port))
    command = python_command("odradek", "cluster", "up", "--nodes", str(NODES))
    command += ["--data", str(tmp_path), "--output", "json"]
    for key in ("arena.bytes=32MiB", "socket.request.max.bytes=8388608", "workers=1"):
        command += ["--set", key]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert [node["node"] for node in ready["nodes"]] == [0, 1, 2]
            local = make_connection(f"127.0.0.1:{port}", 10.0, None, ())
            with ClusterClient(local) as client:
                quorum = quorum_state(client)
            assert quorum is not None
            assert sorted(voter.replica_id for voter in quorum.current_voters) == [0, 1, 2]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def free_range(count: int) -> int:
    """The first of so many ports for clients, with those of the peers a thousand above."""
    while True:
        port = free_port()
        layout = new_layout(count, port)
        if not any(is_listening(p) for n in layout.nodes for p in (n.port, n.peer_port)):
            return port


def test_fewer_nodes_and_other_ports_are_refused(odradek: Run, tmp_path: Path) -> None:
    write_layout(tmp_path, new_layout(3, 9092))
    for option, value in (("--nodes", "2"), ("--port", "9000")):
        ran = odradek("cluster", "up", option, value, "--data", str(tmp_path))
        assert ran.exit_code == 1
        assert "has 3 nodes from port 9092 on" in ran.stderr
    both = odradek("cluster", "up", "--temporary", "--data", str(tmp_path))
    assert both.exit_code == 2
