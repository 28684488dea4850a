"""`odradek cluster rebalance` and `odradek node drain` against a cluster that only moves replicas.

tests/e2e/test_rebalance.py runs them on real nodes under load.
"""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from odradek.protocol.messages.configs import IncrementalAlterConfigsRequest
from odradek.protocol.messages.topics import CreateTopicsRequest
from tests.node.cli.conftest import Ran, Run
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
CHANGES = (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    CreateTopicsRequest,
)

Start = Callable[..., StandInCluster]


@pytest.fixture
def four() -> Iterator[StandInCluster]:
    """Twelve partitions of a thousand bytes on three of four nodes."""
    with stand_in_cluster(4) as cluster:
        cluster.has("orders", *[[n % 3, (n + 1) % 3] for n in range(12)], size=1000)
        yield cluster


def changes(cluster: StandInCluster) -> list[object]:
    return [request for _, request in cluster.requests if isinstance(request, CHANGES)]


def held(cluster: StandInCluster, topic: str = "orders") -> list[int]:
    """How many replicas of the topic each node has."""
    replicas = [node for of_one in cluster.replicas(topic) for node in of_one]
    return [replicas.count(node) for node in sorted(cluster.harness.image.brokers)]


def leaders_of(cluster: StandInCluster) -> list[int]:
    return [partition.leader for partition in cluster.harness.partitions("orders")]


def leads(cluster: StandInCluster) -> list[int]:
    leaders = leaders_of(cluster)
    return [leaders.count(node) for node in sorted(cluster.harness.image.brokers)]


def throttles(cluster: StandInCluster) -> dict[str, str]:
    """Every throttle that is set on topics and brokers."""
    return {
        f"{resource.name}: {key}": value
        for resource, configs in cluster.harness.image.configs.items()
        for key, value in configs.items()
        if "throttled" in key
    }


@pytest.fixture
def run(odradek: Run, four: StandInCluster) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Ran:
        return odradek(*arguments, stdin=stdin, bootstrap=four.bootstrap)

    return run


def test_replicas_and_leaders_are_balanced_and_the_plan_is_shown(
    run: Run, four: StandInCluster
) -> None:
    led = leaders_of(four)
    ran = run("cluster", "rebalance", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert held(four) == [6, 6, 6, 6]
    assert leads(four) == [3, 3, 3, 3]
    title, *rows = [line.split() for line in ran.stdout.splitlines()[:5]]
    assert title[3:6] == ["REPLICAS", "LEADERS", "BYTES"]
    assert [(row[3], row[6]) for row in rows] == [("8", "6"), ("8", "6"), ("8", "6"), ("0", "6")]
    moved = sum(a != b for a, b in zip(led, leaders_of(four), strict=True))
    assert moved
    assert f"6 partitions to move, {moved} leaders to move, 6.0 kB to copy" in ran.stdout
    assert f"6 partitions and {moved} leaders moved, 6.0 kB copied." in ran.stdout
    assert "6 of 6 partitions" in ran.stderr
    again = run("cluster", "rebalance", "--yes")
    assert "Nothing to move." in again.stdout


def test_the_json_of_a_rebalance(run: Run) -> None:
    document = run("cluster", "rebalance", "--yes", "-o", "json").json()
    assert isinstance(document, dict)
    assert (document["moved"], document["copied_bytes"]) == (6, 6000)
    assert document["leaders_moved"] >= 3
    assert document["copied_bytes"] <= document["needed_bytes"]
    assert [node["replicas"] for node in document["nodes"]] == [6, 6, 6, 6]
    assert document["failed"] == []


def test_a_dry_run_changes_nothing_and_prints_the_plan(run: Run, four: StandInCluster) -> None:
    ran = run("cluster", "rebalance", "--dry-run", "--throttle", "1k", "-o", "json")
    document = ran.json()
    assert isinstance(document, dict)
    assert [node["replicas_after"] for node in document["nodes"]] == [6, 6, 6, 6]
    assert len(document["moves"]) >= 6
    assert document["estimated_s"] == 6.0
    assert "orders-" in run("cluster", "rebalance", "--dry-run").stdout
    assert changes(four) == []


def test_a_rebalance_asks_for_confirmation(run: Run, four: StandInCluster) -> None:
    refused = run("cluster", "rebalance", stdin="n\n")
    assert refused.exit_code == 1
    assert changes(four) == []
    assert run("cluster", "rebalance", stdin="y\n").exit_code == 0
    assert held(four) == [6, 6, 6, 6]


def test_only_the_topics_named_are_moved(run: Run, four: StandInCluster) -> None:
    four.has("other", *[[0]] * 4)
    assert run("cluster", "rebalance", "--yes", "--topic", "other").exit_code == 0
    assert held(four, "other") == [1, 1, 1, 1]
    assert held(four) == [8, 8, 8, 0]
    ran = run("cluster", "rebalance", "--yes", "--topic", "none")
    assert ran.exit_code == 1
    assert "none: no such topic" in ran.stderr


def test_batch_limits_the_moves_in_progress(run: Run, four: StandInCluster) -> None:
    ran = run("cluster", "rebalance", "--yes", "--batch", "2")
    assert ran.exit_code == 0, ran.stderr
    batches = [
        sum(len(topic.partitions) for topic in request.topics)
        for _, request in four.requests
        if isinstance(request, AlterPartitionReassignmentsRequest)
    ]
    assert sum(batches) >= 6
    assert max(batches) <= 2


def test_a_throttle_is_set_while_replicas_move_and_removed_after(
    run: Run, four: StandInCluster
) -> None:
    seen: list[dict[str, str]] = []

    def note(request: object) -> None:
        if isinstance(request, AlterPartitionReassignmentsRequest):
            seen.append(throttles(four))

    four.before = note
    four.step_bytes = 400
    ran = run("cluster", "rebalance", "--yes", "--throttle", "2M")
    assert ran.exit_code == 0, ran.stderr
    assert "at 2.0 MB/s" in ran.stdout
    for node in range(4):
        assert seen[0][f"{node}: leader.replication.throttled.rate"] == "2000000"
        assert seen[0][f"{node}: follower.replication.throttled.rate"] == "2000000"
    following = seen[0]["orders: follower.replication.throttled.replicas"].split(",")
    assert len(following) == 6
    assert all(replica.endswith(":3") for replica in following)
    assert "0:0" in seen[0]["orders: leader.replication.throttled.replicas"].split(",")
    assert throttles(four) == {}


def test_ctrl_c_cancels_moves_in_progress_and_removes_the_throttle(
    run: Run, four: StandInCluster
) -> None:
    four.step_bytes = 0

    def interrupt(request: object) -> None:
        if isinstance(request, DescribeLogDirsRequest) and request.topics is not None:
            # The first look at what has been copied.
            four.before = lambda _request: None
            os.kill(os.getpid(), signal.SIGINT)

    four.before = interrupt
    ran = run("cluster", "rebalance", "--yes", "--throttle", "1M", "--batch", "3")
    assert ran.exit_code == 1
    assert "3 were cancelled" in ran.stderr
    assert held(four) == [8, 8, 8, 0]
    assert throttles(four) == {}
    four.step_bytes = 1000
    assert run("cluster", "rebalance", "--yes").exit_code == 0
    assert held(four) == [6, 6, 6, 6]


def test_a_run_after_a_killed_one_finishes_and_removes_its_throttles(
    run: Run, four: StandInCluster
) -> None:
    four.step_bytes = 0
    four.harness.set_config(TOPIC, "orders", leader_replication_throttled_replicas="0:0")
    four.harness.set_config(BROKER, "1", follower_replication_throttled_rate="1")
    four.reassign("orders", 0, 3, 1)
    four.step_bytes = 1000
    ran = run("cluster", "rebalance", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert "earlier run" in ran.stderr
    assert held(four) == [6, 6, 6, 6]
    assert set(four.replicas("orders")[0]) == {3, 1}
    assert throttles(four) == {}


def test_cancel_cancels_all_moves_and_removes_throttles(run: Run, four: StandInCluster) -> None:
    four.step_bytes = 0
    four.harness.set_config(TOPIC, "orders", follower_replication_throttled_replicas="0:3")
    four.harness.set_config(BROKER, "3", leader_replication_throttled_rate="7")
    four.reassign("orders", 0, 3, 1)
    ran = run("cluster", "rebalance", "--cancel")
    assert ran.exit_code == 0, ran.stderr
    assert "1 reassignments cancelled" in ran.stdout
    assert held(four) == [8, 8, 8, 0]
    assert throttles(four) == {}
    document = run("cluster", "rebalance", "--cancel", "-o", "json").json()
    assert document == {"cancelled": [], "unthrottled_topics": [], "unthrottled_nodes": []}


def test_topics_may_be_created_and_deleted_meanwhile(run: Run, four: StandInCluster) -> None:
    four.has("doomed", *[[0, 1]] * 4, size=1000)
    four.step_bytes = 400
    looks = 0

    def disturb(request: object) -> None:
        nonlocal looks
        if isinstance(request, ListPartitionReassignmentsRequest):
            looks += 1
            if looks == 3:
                four.delete("doomed")
                four.has("new", [0, 1], [1, 2])

    four.before = disturb
    ran = run("cluster", "rebalance", "--yes", "--throttle", "1M")
    assert ran.exit_code == 0, ran.stderr
    assert "were deleted meanwhile" in ran.stdout
    assert throttles(four) == {}
    assert four.replicas("new") == [(0, 1), (1, 2)]


def test_the_broker_that_answers_may_stop(run: Run, four: StandInCluster) -> None:
    four.step_bytes = 400
    looks = 0

    def disturb(request: object) -> None:
        nonlocal looks
        if isinstance(request, ListPartitionReassignmentsRequest):
            looks += 1
            if looks == 3:
                four.hang_up(0)

    four.before = disturb
    ran = run("cluster", "rebalance", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert held(four) == [6, 6, 6, 6]


def test_a_drained_node_has_no_replicas_and_gets_no_new_ones(
    run: Run, four: StandInCluster
) -> None:
    ran = run("node", "drain", "1", "--yes", "--throttle", "1G")
    assert ran.exit_code == 0, ran.stderr
    assert held(four)[1] == 0
    assert four.configs(BROKER, "1") == {"cordoned.log.dirs": "*"}
    assert throttles(four) == {}
    # It stays out of it until it is included again.
    assert run("cluster", "rebalance", "--yes").exit_code == 0
    assert held(four)[1] == 0
    assert run("cluster", "rebalance", "--yes", "--include", "1").exit_code == 0
    assert held(four) == [6, 6, 6, 6]
    assert four.configs(BROKER, "1") == {}


def test_a_drain_includes_topics_that_are_created_while_it_begins(
    run: Run, four: StandInCluster
) -> None:
    def disturb(request: object) -> None:
        if isinstance(request, IncrementalAlterConfigsRequest):
            four.before = lambda _request: None
            four.has("late", [1, 0])

    four.before = disturb
    ran = run("node", "drain", "1", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert held(four)[1] == 0
    assert held(four, "late")[1] == 0


def test_an_impossible_drain_is_refused_and_changes_nothing(run: Run, four: StandInCluster) -> None:
    four.has("wide", [0, 1, 2, 3], [3, 2, 1, 0])
    ran = run("node", "drain", "1", "--yes")
    assert ran.exit_code == 1
    assert "wide-0, wide-1: it has 4 replicas, and only 3 nodes are left" in ran.stderr
    assert changes(four) == []
    excluded = run("cluster", "rebalance", "--exclude", "1", "--yes")
    assert (excluded.exit_code, "wide-0" in excluded.stderr) == (1, True)
    assert changes(four) == []


def test_a_node_without_replicas_is_only_cordoned(run: Run, four: StandInCluster) -> None:
    ran = run("node", "drain", "3", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert "Nothing to move." in ran.stdout
    assert four.configs(BROKER, "3") == {"cordoned.log.dirs": "*"}


def test_a_node_that_is_down_is_drained_from_other_replicas(run: Run, four: StandInCluster) -> None:
    four.stop(1)
    for number, partition in enumerate(four.harness.partitions("orders")):
        rest = tuple(node for node in partition.replicas if node != 1)
        state = PartitionImage(partition.replicas, rest, rest[0], 1, 1)
        four.harness.put("orders", state, partition=number)
    ran = run("node", "drain", "1", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert held(four)[1] == 0
    assert held(four) == [8, 0, 8, 8]


def test_excluding_a_node_drains_it_and_balances_the_others(run: Run, four: StandInCluster) -> None:
    assert run("cluster", "rebalance", "--yes", "--exclude", "0").exit_code == 0
    assert held(four) == [0, 8, 8, 8]
    assert four.configs(BROKER, "0") == {"cordoned.log.dirs": "*"}


def test_a_drain_can_be_cancelled(run: Run, four: StandInCluster) -> None:
    four.step_bytes = 0
    four.harness.set_config(BROKER, "1", cordoned_log_dirs="*")
    four.reassign("orders", 0, 0, 3)
    ran = run("node", "drain", "1", "--cancel")
    assert ran.exit_code == 0, ran.stderr
    assert held(four) == [8, 8, 8, 0]
    assert four.configs(BROKER, "1") == {}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("node", "drain", "9"), 1, "9: no such node; the cluster has 0, 1, 2, 3"),
        (("cluster", "rebalance", "--exclude", "9"), 1, "9: no such node"),
        (("cluster", "rebalance", "--exclude", "1", "--include", "1"), 2, "Node 1 cannot be both"),
        (("cluster", "rebalance", "--throttle", "fast"), 2, "'fast' is not a size"),
        (("cluster", "rebalance", "--throttle", "0"), 2, "would stop all copies"),
        (("cluster", "rebalance", "--batch", "0"), 2, "--batch"),
    ],
)
def test_invalid_options_are_refused(
    run: Run, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    ran = run(*arguments, "--yes")
    assert (ran.exit_code, says in ran.stderr) == (exit_code, True), ran.stderr
