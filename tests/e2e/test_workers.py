"""The number of workers of a node is changed under load: stores get new owners at once, and no
record moves.
"""

import os
from pathlib import Path

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tests.e2e.checker import anomalies
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 8
BROKER, SET, DELETE = 4, 0, 1


def have_workers(node: EmbeddedBroker, node_id: int, count: int | None) -> None:
    """Set the number of workers of a node, or (None) return to its own configuration; waits
    until they run."""
    config = IncrementalAlterableConfig(
        name="workers",
        config_operation=DELETE if count is None else SET,
        value=None if count is None else str(count),
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER, resource_name=str(node_id), configs=[config]
    )
    answer = node.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert not answer.responses[0].error_code, answer.responses[0].error_message
    wait_for_workers(node, count or 1)


def wait_for_workers(node: EmbeddedBroker, count: int) -> None:
    wanted = {f"worker-{index}" for index in range(count)}
    wait_until(
        lambda: {name for name in node.processes if name.startswith("worker-")} == wanted,
        timeout_s=WAIT_S,
        what=f"{count} workers are ready",
    )


def segments(node: EmbeddedBroker) -> set[tuple[str, int]]:
    """The files that hold records."""
    return {
        (str(path.relative_to(node.data)), os.stat(path).st_ino)
        for path in Path(node.data).glob("stores/*/segment-*.mdb")
    }


def test_stores_move_between_workers_under_load_and_data_stay(
    start_node: StartNode, report: Report
) -> None:
    node = start_node({"workers": "1"})
    node.create_topic(TOPIC, partitions=PARTITIONS)
    workload = Workload(node.bootstrap_servers, TOPIC, PARTITIONS)
    workload.begin()
    before, assignments = segments(node), workload.assignments()
    router = node.processes["router-0"]
    more_s = workload.measure(lambda: have_workers(node, 0, 4))
    fewer_s = workload.measure(lambda: have_workers(node, 0, 2))
    report(f"1 to 4 and 4 to 2 workers: longest gaps of a producer {more_s:.2f}, {fewer_s:.2f} s")
    have_workers(node, 0, None)
    workload.wait_for_progress()
    assert node.processes["router-0"] == router, "clients keep their connections"
    assert workload.assignments() == assignments, "somebody was made to join again"
    assert before <= segments(node), "no record was written anew"

    have_workers(node, 0, 3)
    workload.end()
    assert anomalies(workload.history) == []

    # A setting made at runtime is kept over a restart, whatever the static configuration says.
    node.stop()
    node.settings["workers"] = "2"
    node.start()
    wait_for_workers(node, 3)
    assert workload.log() == workload.history.log
    assert before <= segments(node)


def test_followers_find_the_new_workers_of_a_leader(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, settings={"min.insync.replicas": "2"}) as nodes:
        nodes[0].create_topic(TOPIC, partitions=PARTITIONS)
        nodes.wait_until_whole(TOPIC)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()
        for node_id in (0, 1):
            have_workers(nodes[node_id], node_id, 2)
            # With min.insync.replicas 2 every acknowledged record has reached the other node.
            workload.wait_for_progress()
        assert_replicated(nodes)
        workload.end()
        assert anomalies(workload.history) == []


def assert_replicated(nodes: Cluster) -> None:
    nodes.wait_until_whole(TOPIC)
    assert all(len(partition.isr_nodes) == 2 for partition in nodes.partitions(TOPIC))
