"""A fourth node joins a cluster of three under load and gets its share; another node is drained.

The clients have default settings and see no error. The acknowledged records must be in the log once
and in order. The commands run in their own process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.e2e.checker import anomalies
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
BULK = "bulk"
BULK_PARTITIONS = 8
BULK_BYTES = 24_000_000
COMMAND_S = 150.0


def odradek(nodes: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the cluster."""
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-P", "-m", "odradek", *arguments, "-b", nodes.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
    )


def create(nodes: Cluster, name: str, partitions: int, factor: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    (created,) = nodes[nodes.any()].ask(request).topics
    assert not created.error_code, created.error_message


def fill(nodes: Cluster) -> None:
    """Produce records, so that there is data to move."""
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "linger.ms": 20})
    for number in range(BULK_BYTES // 10_000):
        producer.produce(BULK, bytes(10_000), partition=number % BULK_PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def replicas(nodes: Cluster) -> dict[int, int]:
    """The number of replicas of both topics by node."""
    held = [
        node
        for topic in (TOPIC, BULK)
        for partition in nodes.partitions(topic)
        for node in partition.replica_nodes
    ]
    return {node: held.count(node) for node in nodes.nodes}


def is_cordoned(nodes: Cluster, node_id: int) -> bool:
    """Whether a node gets no new replicas."""
    ran = odradek(nodes, "logdir", "list", "-o", "json")
    states = {row["state"] for row in json.loads(ran.stdout) if row["node"] == node_id}
    assert states <= {"online", "cordoned"}, ran.stdout
    return states == {"cordoned"}


def test_a_new_node_gets_its_part_and_another_is_drained_under_load(
    tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path) as nodes:
        create(nodes, TOPIC, PARTITIONS, 3)
        create(nodes, BULK, BULK_PARTITIONS, 2)
        fill(nodes)
        nodes.wait_until_whole(TOPIC)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()
        nodes.join(3).start()
        nodes.wait_for_brokers(0, {0, 1, 2, 3})
        assert replicas(nodes)[3] == 0

        planned = json.loads(
            odradek(nodes, "cluster", "rebalance", "--dry-run", "-o", "json").stdout
        )
        report(f"to copy: {planned['copied_bytes']} of {planned['needed_bytes']} bytes")
        assert 0 < planned["copied_bytes"] <= planned["needed_bytes"]
        ran = odradek(nodes, "cluster", "scale-up", "4", "--yes", "--throttle", "3M")
        assert ran.returncode == 0, ran.stderr
        report(f"rebalanced: {ran.stdout.splitlines()[-1]}")
        told = [line for line in ran.stderr.splitlines() if " partitions, " in line]
        assert len(told) > 2, f"progress is shown: {ran.stderr}"
        assert replicas(nodes)[3] > 0
        workload.wait_for_progress()

        drained = odradek(nodes, "node", "drain", "0", "--yes", "-o", "json")
        assert drained.returncode == 0, drained.stderr
        assert replicas(nodes)[0] == 0
        workload.wait_for_progress()

        back = odradek(nodes, "cluster", "rebalance", "--yes", "--include", "0", "-o", "json")
        assert back.returncode == 0, back.stderr
        outcome = json.loads(back.stdout)
        report(f"included again: {outcome['copied_bytes']} of {outcome['needed_bytes']} bytes")
        assert outcome["copied_bytes"] <= outcome["needed_bytes"]
        counts = [node["replicas"] for node in outcome["nodes"]]
        assert max(counts) - min(counts) <= 1
        leads = [node["leaders"] for node in outcome["nodes"]]
        assert max(leads) - min(leads) <= 1
        workload.wait_for_progress()

        # As for a StatefulSet with three pods instead of four.
        assert odradek(nodes, "node", "add", "3").returncode == 0
        scale_down = ("cluster", "scale-down", "3", "--yes", "-o", "json")
        leaving = json.loads(odradek(nodes, *scale_down).stdout)
        assert leaving == {"nodes": [3], "lost_votes": [3], "unregistered": [], "to_stop": [3]}
        assert replicas(nodes)[3] == 0
        workload.wait_for_progress()
        assert is_cordoned(nodes, 3)
        odradek(nodes, "config", "unset", "broker", "3", "cordoned.log.dirs")
        assert not is_cordoned(nodes, 3)
        odradek(nodes, *scale_down)
        assert is_cordoned(nodes, 3), "it has no replicas, and shall not get any"
        nodes[3].stop()
        gone = json.loads(odradek(nodes, *scale_down, "--wait").stdout)
        assert gone == {"nodes": [3], "lost_votes": [], "unregistered": [3], "to_stop": []}
        assert json.loads(odradek(nodes, *scale_down).stdout)["nodes"] == []
        workload.wait_for_progress()

        # And with four again, of which the last has its old volume.
        nodes[3].start()
        grown = odradek(nodes, "cluster", "scale-up", "4", "--yes", "-o", "json")
        assert grown.returncode == 0, grown.stderr
        assert min(node["replicas"] for node in json.loads(grown.stdout)["nodes"]) > 0
        workload.wait_for_progress()
        wait_until(lambda: nodes.is_whole(TOPIC), what="all replicas are in sync")
        workload.end()
        assert anomalies(workload.history) == []
