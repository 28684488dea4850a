"""A cluster that grows from one node to three and four, and shrinks again, under load."""

import time
from collections import Counter
from collections.abc import Callable

from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.containers.nodes import MIB, STOP_S, ContainerCluster
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
PACE_S = 0.016
FILL_RECORDS = 40_000


def is_balanced(nodes: ContainerCluster, node_ids: list[int]) -> bool:
    """Whether no two of these nodes differ by more than one replica and one leader, of all topics
    together, and no others have any."""
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for each in nodes.all_partitions(node_ids[0]):
        replicas.update(each.replica_nodes)
        leaders[each.leader_id] += 1
    return all(
        set(counts) <= set(node_ids)
        and max(counts[n] for n in node_ids) - min(counts[n] for n in node_ids) <= 1
        for counts in (replicas, leaders)
    )


def test_one_node_becomes_three_then_four_then_three(
    nodes: ContainerCluster, report: Report
) -> None:
    nodes.start([0], voters=[0])
    nodes.create_topic(TOPIC, PARTITIONS, 1)
    words = ("bench", "produce", "--topic", "history", "--records", str(FILL_RECORDS))
    nodes.command(0, "topic", "create", "history", "--partitions", "6")
    nodes.command(0, *words, "--size", "1KiB")
    workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS, pace_s=PACE_S)
    workload.begin()

    def phase(name: str, action: Callable[[], None]) -> None:
        began = time.monotonic()
        known = {node.name: node.received_bytes() for node in nodes.all()}
        gap_s = workload.measure(action)
        took_s = time.monotonic() - began
        moved = sum(node.received_bytes() - known.get(node.name, 0) for node in nodes.all())
        report(
            f"{name}: {took_s:.1f} s, {moved / MIB:.0f} MiB received by all nodes, longest time"
            f" without an acknowledgement {gap_s:.2f} s"
        )

    def to_three() -> None:
        nodes.start([1, 2], join=[0])
        for node_id in (1, 2):
            nodes.command(0, "node", "add", str(node_id))
        for topic in (TOPIC, "history"):
            nodes.replicate(topic, [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(PARTITIONS)])
        for topic in (TOPIC, "history", "__consumer_offsets"):
            nodes.wait_until_whole(topic, 0, 3)
        nodes.command(0, "cluster", "rebalance", "--yes", "--timeout", "90")
        wait_until(lambda: is_balanced(nodes, [0, 1, 2]), what="three nodes are balanced")

    def to_four() -> None:
        nodes.start([3], join=[0, 1, 2])
        nodes.command(0, "cluster", "rebalance", "--yes", "--timeout", "90")
        nodes.wait_until_whole(TOPIC, 0, 3)
        wait_until(lambda: is_balanced(nodes, [0, 1, 2, 3]), what="four nodes are balanced")

    def back_to_three() -> None:
        nodes.command(0, "node", "drain", "3", "--yes", "--timeout", "90")
        nodes.wait_until_whole(TOPIC, 0, 3)
        assert nodes[3].stop() == 0
        nodes.command(0, "node", "remove", "3", "--timeout", str(STOP_S))
        nodes.remove_node(3)
        nodes.command(0, "cluster", "rebalance", "--yes", "--timeout", "90")
        wait_until(lambda: nodes.brokers(0).keys() == {0, 1, 2}, what="node 3 is gone")
        wait_until(lambda: is_balanced(nodes, [0, 1, 2]), what="three nodes are balanced again")

    phase("1 to 3 nodes", to_three)
    phase("3 to 4 nodes", to_four)
    phase("4 to 3 nodes", back_to_three)
    workload.end()
    assert anomalies(workload.history) == []
    assert workload.unacknowledged() == 0
