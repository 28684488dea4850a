"""Nodes that freeze, are cut off, or lose their volume, under load."""

from collections.abc import Callable

from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.containers.nodes import ContainerCluster
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
PACE_S = 0.016
VOTERS = (0, 1, 2)
SETTINGS = {
    "ODRADEK_DEFAULT_REPLICATION_FACTOR": "3",
    "ODRADEK_MIN_INSYNC_REPLICAS": "2",
    "ODRADEK_REPLICA_LAG_TIME_MAX_MS": "3000",
}


def test_a_frozen_a_cut_off_and_an_empty_node_lose_nothing(
    nodes: ContainerCluster, report: Report
) -> None:
    nodes.start(VOTERS, voters=VOTERS, settings=SETTINGS)
    nodes.create_topic(TOPIC, PARTITIONS, 3)
    workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS, pace_s=PACE_S)
    workload.begin()

    def fault(name: str, action: Callable[[], None]) -> None:
        report(f"{name}: {workload.measure(action):.2f} s without an acknowledgement at most")

    def wait_for_brokers(at: int, wanted: set[int]) -> None:
        wait_until(
            lambda: nodes.brokers(at).keys() == wanted,
            timeout_s=60,
            what=f"node {at} shows {wanted}",
        )

    def freeze() -> None:
        nodes[0].container.pause()
        try:
            wait_for_brokers(1, {1, 2})
        finally:
            nodes[0].container.unpause()
        nodes.wait_until_whole(TOPIC, 1)

    def cut_off() -> None:
        nodes.disconnect(1)
        try:
            wait_for_brokers(0, {0, 2})
        finally:
            nodes.connect(1)
        nodes.wait_until_whole(TOPIC, 0)

    def lose_volume() -> None:
        nodes[2].kill()
        wait_for_brokers(0, {0, 1})
        nodes.replace_volume(2)
        nodes.start([2], voters=VOTERS, settings=SETTINGS)
        nodes.wait_until_whole(TOPIC, 0)

    fault("frozen", freeze)
    fault("cut off", cut_off)
    fault("volume destroyed and rebuilt", lose_volume)
    assert "odradek node add 2" in nodes[2].log(), "it says how it gets its vote back"
    workload.end()
    assert anomalies(workload.history) == []
    assert workload.unacknowledged() == 0
