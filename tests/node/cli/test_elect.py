"""`odradek elect` on nodes whose controller is the real one."""

from collections.abc import Iterator

import pytest

from odradek.cluster.metadata.image import PartitionImage
from odradek.protocol.messages.cluster import ElectLeadersRequest
from tests.node.cli.conftest import Ran, Run
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster


@pytest.fixture
def three() -> Iterator[StandInCluster]:
    """`orders-0` is led by its second replica, `lone-0` has no leader without node 2."""
    with stand_in_cluster(3) as cluster:
        cluster.has("orders", [0, 1], [1, 2], [2, 0])
        cluster.reassign("orders", 0, 1, 0)
        cluster.harness.place("lone", 9, PartitionImage((2, 0), (2,), 2))
        yield cluster


def stop_the_leader_of_lone(cluster: StandInCluster) -> None:
    cluster.stop(2)
    cluster.harness.put("lone", PartitionImage((2, 0), (2,), -1, leader_epoch=1))


@pytest.fixture
def run(odradek: Run, three: StandInCluster) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Ran:
        return odradek(*arguments, stdin=stdin, bootstrap=three.bootstrap)

    return run


def leaders(cluster: StandInCluster, topic: str = "orders") -> list[int]:
    return [partition.leader for partition in cluster.harness.partitions(topic)]


def test_the_preferred_leaders_of_a_topic_are_elected(run: Run, three: StandInCluster) -> None:
    rows = run("elect", "orders", "orders:1", "-o", "json").json()
    assert rows == [
        {"topic": "orders", "partition": 0, "before": 0, "leader": 1, "result": "elected"},
        {"topic": "orders", "partition": 1, "before": 1, "leader": 1, "result": "not needed"},
        {"topic": "orders", "partition": 2, "before": 2, "leader": 2, "result": "not needed"},
    ]
    assert leaders(three) == [1, 1, 2]


def test_of_all_topics_only_elections_that_were_needed_are_shown(
    run: Run, three: StandInCluster
) -> None:
    ran = run("elect", "--all-topics")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["TOPIC", "PARTITION", "BEFORE", "LEADER", "RESULT"],
        ["orders", "0", "0", "1", "elected"],
    ]
    assert leaders(three) == [1, 1, 2]
    again = run("elect", "--all-topics")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "No partition needs an election." in again.stderr


def test_a_preferred_leader_that_is_down_is_not_elected(run: Run, three: StandInCluster) -> None:
    three.stop(1)
    ran = run("elect", "orders:0,2")
    assert ran.exit_code == 1
    assert ran.stdout.splitlines()[1].split()[:4] == ["orders", "0", "0", "0"]
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in ran.stdout
    assert ran.stdout.splitlines()[2].split() == ["orders", "2", "2", "2", "not", "needed"]
    assert "not elected: orders-0" in ran.stderr


def test_an_unclean_election_needs_consent(run: Run, three: StandInCluster) -> None:
    stop_the_leader_of_lone(three)
    assert run("elect", "lone").exit_code == 1
    before = len(three.requests)
    refused = run("elect", "lone", "--unclean", stdin="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Without a leader: lone-0. An unclean leader loses the records" in refused.stderr
    assert not any(isinstance(sent, ElectLeadersRequest) for _, sent in three.requests[before:])
    assert leaders(three, "lone") == [-1]
    agreed = run("elect", "lone", "--unclean", "-o", "json", stdin="y\n")
    assert agreed.json() == [
        {"topic": "lone", "partition": 0, "before": None, "leader": 0, "result": "elected"}
    ]
    assert leaders(three, "lone") == [0]
    again = run("elect", "--all-topics", "--unclean", stdin="y\n")
    assert (again.exit_code, "No partition is without a leader now." in again.stderr) == (0, True)


def test_an_unclean_election_without_any_replica_fails(run: Run, three: StandInCluster) -> None:
    stop_the_leader_of_lone(three)
    three.stop(0)
    ran = run("elect", "lone", "--unclean", "--yes")
    assert ran.exit_code == 1
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in ran.stdout


def test_what_does_not_exist_is_named(run: Run) -> None:
    ran = run("elect", "ordres")
    assert (ran.exit_code, "ordres: no such topic; did you mean orders?" in ran.stderr) == (1, True)
    ran = run("elect", "orders:1,7")
    assert (ran.exit_code, "orders-7: no such partition; orders has" in ran.stderr) == (1, True)


@pytest.mark.parametrize("arguments", [(), ("orders", "--all-topics"), ("orders:x",)])
def test_wrong_usage(odradek: Run, arguments: tuple[str, ...]) -> None:
    assert odradek("elect", *arguments).exit_code == 2


@pytest.mark.e2e
def test_on_a_broker_with_logs_nothing_needs_an_election(kafka: Run, topic: str) -> None:
    rows = kafka("elect", topic, "-o", "json").json()
    assert isinstance(rows, list)
    assert [(row["partition"], row["result"]) for row in rows] == [
        (number, "not needed") for number in range(3)
    ]
    assert kafka("elect", "--all-topics", "-o", "json").json() == []
