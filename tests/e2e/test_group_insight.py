"""Groups are explained by any node of a cluster, also while a node is down: the state of
coordinators, of leaders and of the brokers that serve fetches is on different nodes.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from odradek.node.cli.main import cli
from odradek.protocol.errors import ErrorCode
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

TOPIC = "orders"
GROUP = "shippers"


def run(cluster: Cluster, at: int, *arguments: str) -> object:
    """Run a command with node `at` as bootstrap server; returns its output."""
    environment = {"ODRADEK_BOOTSTRAP": cluster[at].bootstrap_servers}
    ran = CliRunner().invoke(cli, [*arguments, "-o", "json"], env=environment)
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout) if ran.stdout else None


def groups(cluster: Cluster, at: int) -> dict[str, dict[str, object]]:
    rows = run(cluster, at, "group", "list")
    assert isinstance(rows, list)
    return {row["group"]: row for row in rows}


def lag(cluster: Cluster, at: int) -> dict[int, tuple[object, object]]:
    """(lag, error) by partition."""
    rows = run(cluster, at, "group", "lag", GROUP, "--timeout", "3")
    assert isinstance(rows, list)
    return {row["partition"]: (row["lag"], row["error"]) for row in rows}


def findings(cluster: Cluster, at: int, *command: str) -> str:
    document = run(cluster, at, *command)
    assert isinstance(document, dict)
    return "\n".join(row["finding"] for row in document["findings"])


def read_all(cluster: Cluster, at: int, count: int) -> None:
    """A member joins, reads and commits `count` records, and leaves."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster[at].bootstrap_servers,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    seen = 0
    while seen < count:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            seen += 1
    consumer.commit(asynchronous=False)
    consumer.close()


def test_groups_are_seen_whole_from_any_node_and_while_one_is_gone(tmp_path: Path) -> None:
    settings = {"offsets.topic.replication.factor": "3"}
    with running_cluster(tmp_path, settings=settings) as cluster:
        cluster.create_at(TOPIC, [[0], [1], [2]])
        run(cluster, 0, "group", "create", GROUP, "--ttl", "1h")
        for index in range(3):
            run(cluster, 0, "produce", TOPIC, "one", "-p", str(index))
        read_all(cluster, 0, 3)
        for index in range(3):
            run(cluster, 1, "produce", TOPIC, "two", "three", "-p", str(index))
        for at in cluster.nodes:
            assert lag(cluster, at) == dict.fromkeys(range(3), (2, None))
            row = groups(cluster, at)[GROUP]
            assert (row["lag"], row["topics"], row["state"]) == (6, [TOPIC], "Empty")
            told = findings(cluster, at, "group", "explain", GROUP)
            assert "The group has no members. It is ephemeral" in told
        # The node of the group's coordinator is stopped, with its partition of the topic.
        gone = groups(cluster, 0)[GROUP]["coordinator"]
        assert isinstance(gone, int)
        cluster[gone].kill()
        at = cluster.any()
        wait_until(lambda: groups(cluster, at)[GROUP]["coordinator"] != gone, timeout_s=30.0)
        leaderless = f"{TOPIC}-{gone} has no leader"
        wait_until(lambda: leaderless in findings(cluster, at, "topic", "explain", TOPIC))
        assert leaderless in findings(cluster, at, "group", "explain", GROUP)
        left = lag(cluster, at)
        assert left.pop(gone) == (None, ErrorCode.LEADER_NOT_AVAILABLE.message)
        assert set(left.values()) == {(2, None)}
        # The group moved to another node, and is ephemeral there as well.
        run(cluster, at, "config", "set", "group", GROUP, "group.ttl.ms=0")
        wait_until(lambda: groups(cluster, at)[GROUP]["type"] is None)
