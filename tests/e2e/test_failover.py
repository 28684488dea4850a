"""Nodes of a cluster are killed under load: acknowledged records are kept, once and in order.

Three replicas, min.insync.replicas 2, a producer with default settings (idempotent, acks=all) and a
consumer group. Whole nodes are SIGKILLed, among them the leader of a partition and the active
controller, and are started again. At the end the history is checked as Jepsen does.
"""

import random
from pathlib import Path

import pytest

from bench.promises import LEADER_KILL_GAP_S, SLACK
from tests.e2e.checker import ObservedHistory, anomalies
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.e2e.load import Writer, read_log
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6


def kill(nodes: Cluster, workload: Workload, node_id: int) -> float:
    """SIGKILL a node under load and start it again; returns the longest gap of a partition."""
    gap_s = workload.measure(nodes[node_id].kill)
    nodes[node_id].start()
    nodes.wait_until_whole(TOPIC)
    workload.wait_for_progress()
    return gap_s


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_nodes_die(tmp_path: Path, report: Report) -> None:
    with running_cluster(tmp_path) as nodes:
        nodes[0].create_topic(TOPIC, partitions=PARTITIONS, configs={"min.insync.replicas": "2"})
        nodes.wait_until_whole(TOPIC)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()
        gaps = [
            kill(nodes, workload, nodes.leader_of(TOPIC)),
            kill(nodes, workload, nodes.leader()),
        ]
        gaps.append(kill(nodes, workload, random.Random(8).randrange(3)))
        workload.end()
        report(f"longest gaps of a producer {', '.join(f'{gap:.2f}' for gap in gaps)} s")
        # The shortest one: other load on the machine does not lengthen all of them.
        assert min(gaps) < LEADER_KILL_GAP_S * SLACK
        assert anomalies(workload.history) == []


def test_a_minority_takes_no_record_that_must_be_on_two_nodes(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as nodes:
        nodes[0].create_topic(TOPIC, configs={"min.insync.replicas": "2"})
        nodes.wait_until_whole(TOPIC)
        survivor = nodes.leader_of(TOPIC)
        history = ObservedHistory()
        writer = Writer(nodes.bootstrap_servers, TOPIC, 1, history)
        writer.start()
        wait_until(lambda: writer.newest[0] > 50, timeout_s=WAIT_S)
        for other in nodes.others(survivor):
            nodes[other].kill()
        acknowledged = writer.newest[0]
        nodes.start(*nodes.others(survivor))
        wait_until(
            lambda: writer.newest[0] > acknowledged,
            timeout_s=WAIT_S,
            what="writing goes on when the others are back",
        )
        writer.stop()
        nodes.wait_until_whole(TOPIC)
        history.log = read_log(nodes.bootstrap_servers, TOPIC, range(1))
        assert anomalies(history) == []
