"""Nodes are restarted in turn under load, as for an upgrade: no request of a client fails.

Three replicas, min.insync.replicas 2, an idempotent producer and a consumer group with default
settings. Each node is stopped (SIGTERM) and started again; then the test waits until its probes say
ready, which they do when its replicas are in sync. A node that stops hands over its leadership
first, so that clients see a leader that has moved, and never one that is gone.
"""

import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest

from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.messages.cluster import ElectLeadersRequest
from odradek.protocol.messages.metadata import DescribeTopicPartitionsRequest
from odradek.protocol.messages.partitions import TopicName
from tests.e2e.checker import anomalies
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6


def restart(nodes: Cluster, workload: Workload, node_id: int) -> tuple[float, float, float]:
    """Stop a node and start it again. Returns how long the stop took, and the producer's longest
    gaps during the stop and during the start."""
    took_s = 0.0

    def stop() -> None:
        nonlocal took_s
        begin = time.monotonic()
        nodes[node_id].stop()
        took_s = time.monotonic() - begin

    def come_back() -> None:
        nodes.start(node_id)
        wait_until(lambda: is_ready(nodes, node_id), timeout_s=60, what="probes say ready")
        behind = [p for p in nodes.partitions(TOPIC, node_id) if node_id not in p.isr_nodes]
        assert behind == [], "ready, and not in sync"

    return workload.measure(stop), workload.measure(come_back), took_s


def is_ready(nodes: Cluster, node_id: int) -> bool:
    """What /readyz answers."""
    state = msgspec.json.decode((nodes[node_id].data / STATE_NAME).read_bytes(), type=NodeState)
    try:
        with urlopen(f"http://{state.http}/readyz") as answer:
            return int(answer.status) == 200
    except HTTPError:
        return False


def elect_preferred_leaders(nodes: Cluster) -> None:
    """The controller does this by itself every five minutes."""
    request = ElectLeadersRequest(election_type=0, topic_partitions=None)
    assert nodes[0].ask(request).error_code == 0


@pytest.mark.slow
def test_no_client_has_a_failed_request_when_nodes_are_restarted_in_turn(
    tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path, settings={"http.listen": "127.0.0.1:0"}) as nodes:
        nodes[0].create_topic(TOPIC, partitions=PARTITIONS, configs={"min.insync.replicas": "2"})
        nodes.wait_until_whole(TOPIC)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()
        assignments = workload.assignments()
        first = nodes.leader()
        for node_id in (first, *nodes.others(first)):
            stopping_s, starting_s, took_s = restart(nodes, workload, node_id)
            report(
                f"node {node_id}: longest gap of a producer {stopping_s:.2f} s while it stopped"
                f" (for {took_s:.2f} s), {starting_s:.2f} s while it came back"
            )
        gap_s = workload.measure(lambda: elect_preferred_leaders(nodes))
        report(f"leaders go back: longest gap {gap_s:.2f} s")
        workload.end()
        assert anomalies(workload.history) == []
        assert workload.assignments() == assignments, "no rebalance"


def test_who_left_an_isr_that_was_too_small_is_shown_as_an_eligible_leader(tmp_path: Path) -> None:
    """KIP-966, which is enabled in new clusters."""
    with running_cluster(tmp_path) as nodes:
        nodes[0].create_topic(TOPIC, configs={"min.insync.replicas": "3"})
        nodes.wait_until_whole(TOPIC)
        away, near = nodes.others(nodes.leader_of(TOPIC))

        def shown() -> tuple[set[int], list[int] | None]:
            request = DescribeTopicPartitionsRequest(topics=[TopicName(name=TOPIC)])
            answer = nodes[near].ask(request)
            (partition,) = answer.topics[0].partitions
            return set(partition.isr_nodes), partition.eligible_leader_replicas

        everybody = set(nodes.nodes)
        wait_until(lambda: shown() == (everybody, []), what="everybody is in sync")
        nodes[away].stop()
        wait_until(lambda: shown() == (everybody - {away}, [away]), what="it is eligible")
        nodes.start(away)
        wait_until(lambda: shown() == (everybody, []), what="it is in sync")
