"""`topic explain` and `cluster status` on three nodes, one of which is killed or frozen."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.network import pids_of
from tests.support.waiting import wait_until

TOPIC = "orders"
WAIT_S = 60.0


def documents(cluster: Cluster, at: int) -> tuple[dict[str, object], dict[str, object]]:
    """What `cluster status` and `topic explain` say in JSON."""
    environment = {"ODRADEK_BOOTSTRAP": cluster[at].bootstrap_servers}
    found = []
    for command in (["cluster", "status"], ["topic", "explain", TOPIC]):
        ran = CliRunner().invoke(cli, [*command, "-o", "json"], env=environment)
        assert ran.exit_code == 0, ran.output
        found.append(json.loads(ran.stdout))
    return found[0], found[1]


def findings(document: dict[str, object]) -> dict[str, str]:
    rows = document["findings"]
    assert isinstance(rows, list)
    return {row["about"]: row["finding"] for row in rows}


def text(cluster: Cluster, at: int, *command: str) -> str:
    environment = {"ODRADEK_BOOTSTRAP": cluster[at].bootstrap_servers}
    ran = CliRunner().invoke(cli, command, env=environment)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def kill(cluster: Cluster, node_id: int) -> Callable[[], None]:
    cluster[node_id].kill()
    return cluster[node_id].start


def freeze(cluster: Cluster, node_id: int) -> Callable[[], None]:
    pids = pids_of({node_id: str(cluster[node_id].data)})[node_id]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return thaw


@pytest.mark.parametrize("harm", [kill, freeze])
def test_a_fenced_node_and_what_it_leaves_are_told(
    tmp_path: Path, harm: Callable[[Cluster, int], Callable[[], None]]
) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.create_at(TOPIC, [[0, 1, 2], [1, 2, 0]], configs={"min.insync.replicas": "3"})
        cluster.wait_until_whole(TOPIC)
        status, explained = documents(cluster, 0)
        assert (status["findings"], explained["findings"]) == ([], [])
        heal = harm(cluster, 2)
        try:
            cluster.wait_for_brokers(0, {0, 1})
            status, explained = documents(cluster, 0)
            for document in (status, explained):
                assert findings(document)["broker 2"].startswith("Broker 2 is fenced: it is down")
                assert f"{TOPIC}-0, {TOPIC}-1" in findings(document)["broker 2"]
            assert "are refused in" in findings(status)["partitions"]
            assert "needs 3 (min.insync.replicas)" in findings(explained)[f"{TOPIC}-0"]
            rows = explained["partitions"]
            assert isinstance(rows, list)
            assert [(row["fenced"], row["out_of_sync"]) for row in rows] == [([2], [2])] * 2
            for command in (("cluster", "status"), ("topic", "explain", TOPIC)):
                assert "- Broker 2 is fenced" in text(cluster, 0, *command)
            assert "OUT OF SYNC" in text(cluster, 0, "topic", "explain", TOPIC)
        finally:
            heal()
        wait_until(
            lambda: all(not document["findings"] for document in documents(cluster, 0)),
            timeout_s=WAIT_S,
            what="nothing is found any more",
        )


def test_a_replica_that_does_not_keep_up_is_told_of_a_node_that_serves(tmp_path: Path) -> None:
    settings = {"replica.lag.time.max.ms": "2000"}
    with running_cluster(tmp_path, settings=settings) as cluster:
        cluster.create_at(TOPIC, [[0, 1, 2]])
        cluster.wait_until_whole(TOPIC)
        # Its controller sends heartbeats for a while; its worker fetches nothing.
        worker = cluster[2].processes["worker-0"]
        os.kill(worker, signal.SIGSTOP)
        try:
            wait_until(
                lambda: (
                    "Broker 2 serves, but" in findings(documents(cluster, 0)[1]).get("broker 2", "")
                ),
                timeout_s=WAIT_S,
                what="the ISR has shrunk",
            )
        finally:
            os.kill(worker, signal.SIGCONT)
