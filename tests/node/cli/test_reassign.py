"""`odradek reassign` against a cluster that only moves replicas.

tests/e2e/test_log_directory_moves.py runs it on real nodes.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.cli import reassignment
from odradek.node.cli.reassignment_file import assignment_document
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    ListPartitionReassignmentsRequest,
)
from odradek.protocol.messages.configs import IncrementalAlterConfigsRequest
from tests.node.cli.conftest import Ran, Run
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
CHANGES = (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
NOTHING = {
    "started": 0,
    "moved": 0,
    "deleted": 0,
    "copied_bytes": 0,
    "directory_moves": 0,
    "failed": {},
}


@pytest.fixture
def four() -> Iterator[StandInCluster]:
    """Three partitions of a thousand bytes on two of four nodes."""
    with stand_in_cluster(4) as cluster:
        cluster.has("orders", [0, 1], [0, 1], [0, 1], size=1000)
        cluster.has("other", [0, 1], size=1000)
        cluster.log_dirs = ["/data", "/more"]
        yield cluster


@pytest.fixture
def run(odradek: Run, four: StandInCluster) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Ran:
        return odradek("reassign", *arguments, stdin=stdin, bootstrap=four.bootstrap)

    return run


def changes(cluster: StandInCluster) -> list[object]:
    return [request for _, request in cluster.requests if isinstance(request, CHANGES)]


def throttles(cluster: StandInCluster) -> dict[str, str]:
    """Every throttle that is set on topics and brokers."""
    return {
        f"{resource.name}: {key}": value
        for resource, configs in cluster.harness.image.configs.items()
        for key, value in configs.items()
        if "throttled" in key
    }


def throttle_by_hand(cluster: StandInCluster) -> None:
    cluster.harness.set_config(TOPIC, "orders", follower_replication_throttled_replicas="0:3")
    cluster.harness.set_config(BROKER, "3", leader_replication_throttled_rate="7")


def plan(*partitions: dict[str, object]) -> str:
    return json.dumps({"version": 1, "partitions": list(partitions)})


def test_the_partitions_named_get_the_nodes_in_this_order(run: Run, four: StandInCluster) -> None:
    ran = run("start", "orders:0,2", "--to", "3,1,0", "--yes")
    assert ran.exit_code == 0, ran.stderr
    assert four.replicas("orders") == [(3, 1, 0), (0, 1), (3, 1, 0)]
    title, first, second = [line.split() for line in ran.stdout.splitlines()[:3]]
    assert title == ["PARTITION", "REPLICAS", "BECOMES", "COPIED", "BYTES"]
    assert first == ["orders-0", "0,1", "3,1,0", "1000"]
    assert second == ["orders-2", "0,1", "3,1,0", "1000"]
    assert "2 partitions to move, 2.0 kB to copy" in ran.stdout
    assert "2 partitions moved, 2.0 kB copied." in ran.stdout
    assert "2 of 2 partitions" in ran.stderr
    again = run("start", "orders:0,2", "--to", "3,1,0", "--yes")
    assert (again.exit_code, again.stdout) == (0, "Nothing to move.\n")


def test_a_rollback_is_a_plan(run: Run, four: StandInCluster, tmp_path: Path) -> None:
    document = run("start", "orders", "--to", "2,3", "--yes", "-o", "json").json()
    assert isinstance(document, dict)
    assert document == {
        **NOTHING,
        "started": 3,
        "moved": 3,
        "copied_bytes": 6000,
        "rollback": assignment_document({("orders", number): (0, 1) for number in range(3)}),
    }
    assert four.replicas("orders") == [(2, 3)] * 3
    file = tmp_path / "rollback.json"
    file.write_text(json.dumps(document["rollback"]))
    assert run("start", "--plan", str(file), "--yes").exit_code == 0
    assert four.replicas("orders") == [(0, 1)] * 3


def test_a_plan_moves_replicas_to_nodes_and_log_directories(run: Run, four: StandInCluster) -> None:
    text = plan(
        {"topic": "orders", "partition": 0, "replicas": [2, 1], "log_dirs": ["/more", "any"]},
        {"topic": "orders", "partition": 1, "replicas": [0, 1], "log_dirs": ["any", "/more"]},
        {"topic": "other", "partition": 0, "replicas": [1, 0]},
    )
    ran = run("start", "--plan", "-", "--yes", "-o", "json", stdin=text)
    document = ran.json()
    assert isinstance(document, dict)
    assert (document["moved"], document["directory_moves"], document["failed"]) == (2, 2, {})
    assert four.replicas("orders") == [(2, 1), (0, 1), (0, 1)]
    assert four.replicas("other") == [(1, 0)]
    assert four.directories == {(2, "orders", 0): "/more", (1, "orders", 1): "/more"}
    # The broker is told the directory before it gets the replica, which is copied once.
    kinds = [type(request) for request in changes(four)]
    assert kinds.index(AlterReplicaLogDirsRequest) < kinds.index(AlterPartitionReassignmentsRequest)


def test_a_refused_reassignment_leaves_the_others(run: Run, four: StandInCluster) -> None:
    def disturb(request: object) -> None:
        if isinstance(request, AlterPartitionReassignmentsRequest):
            four.delete("other")

    four.before = disturb
    text = plan(
        {"topic": "other", "partition": 0, "replicas": [3, 1], "log_dirs": ["/more", "any"]},
        {"topic": "orders", "partition": 0, "replicas": [3, 1]},
    )
    ran = run("start", "--plan", "-", "--yes", "--throttle", "1M", stdin=text)
    assert ran.exit_code == 1
    assert "other-0: " in ran.stderr
    assert "UNKNOWN_TOPIC_OR_PARTITION" in ran.stderr
    assert "1 partition moved" in ran.stdout
    assert throttles(four) == {}


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_dry_run_shows_the_plan_and_changes_nothing(
    run: Run, four: StandInCluster, output: str
) -> None:
    throttle_by_hand(four)
    four.stop(3)
    arguments = ("start", "orders:1", "--to", "1,3", "--throttle", "500", "--dry-run", "-o", output)
    ran = run(*arguments)
    assert ran.exit_code == 0, ran.stderr
    if output == "json":
        assert ran.json() == {
            "moves": [
                {
                    "topic": "orders",
                    "partition": 1,
                    "replicas": [0, 1],
                    "becomes": [1, 3],
                    "bytes": 1000,
                    "copied_bytes": 1000,
                }
            ],
            "in_progress": [],
            "directory_moves": [],
            "copied_bytes": 1000,
            "estimated_s": 2.0,
            "rollback": assignment_document({("orders", 1): (0, 1)}),
        }
    else:
        assert "1 partition to move, 1.0 kB to copy, at least 2 s at 500 B/s" in ran.stdout
        assert "Node 3 is down" in ran.stderr
    assert changes(four) == []
    assert throttles(four)


def test_it_asks_for_confirmation(run: Run, four: StandInCluster) -> None:
    assert run("start", "orders", "--to", "2,3", stdin="n\n").exit_code == 1
    assert changes(four) == []
    assert run("start", "orders", "--to", "2,3", stdin="y\n").exit_code == 0
    assert four.replicas("orders") == [(2, 3)] * 3


def test_a_throttle_is_set_while_replicas_move_and_removed_after(
    run: Run, four: StandInCluster
) -> None:
    seen: list[dict[str, str]] = []

    def note(request: object) -> None:
        if isinstance(request, AlterPartitionReassignmentsRequest):
            seen.append(throttles(four))

    four.before = note
    ran = run("start", "orders:0", "--to", "3,1", "--yes", "--throttle", "2M")
    assert ran.exit_code == 0, ran.stderr
    assert "at 2.0 MB/s" in ran.stdout
    for node in range(4):
        assert seen[0][f"{node}: leader.replication.throttled.rate"] == "2000000"
        assert seen[0][f"{node}: follower.replication.throttled.rate"] == "2000000"
    assert seen[0]["orders: follower.replication.throttled.replicas"] == "0:3"
    assert throttles(four) == {}


def test_moves_that_are_not_watched_go_on_and_wait_removes_their_throttle(
    run: Run, four: StandInCluster
) -> None:
    four.step_bytes = 0
    ran = run("start", "orders:0", "--to", "3,1", "--yes", "--throttle", "2M", "--no-wait")
    assert ran.exit_code == 0, ran.stderr
    assert "1 reassignment begun." in ran.stdout
    assert "The throttle stays" in ran.stderr
    assert four.replicas("orders")[0] == (3, 1, 0)
    # Another one in the same topic keeps the throttle of the first.
    ran = run("start", "orders:1", "--to", "1,2", "--yes", "--throttle", "1M", "--no-wait")
    assert throttles(four)["orders: follower.replication.throttled.replicas"] == "1:2,0:3"
    four.step_bytes = 400
    waited = run("wait", "orders:0")
    assert waited.exit_code == 0, waited.stderr
    assert "1 partition moved, 1.0 kB copied." in waited.stdout
    result = run("wait", "-o", "json").json()
    assert isinstance(result, dict)
    assert result["failed"] == {}
    assert four.replicas("orders")[:2] == [(3, 1), (1, 2)]
    assert throttles(four) == {}
    assert run("wait").stdout == "Nothing in progress.\n"


@pytest.mark.parametrize("command", ["start", "wait"])
def test_ctrl_c_stops_only_the_watching(run: Run, four: StandInCluster, command: str) -> None:
    four.step_bytes = 0
    arguments = ["orders:0", "--to", "3,1", "--yes", "--throttle", "1M"]
    if command == "wait":
        assert run("start", *arguments, "--no-wait").exit_code == 0
        arguments = []

    def interrupt(request: object) -> None:
        if isinstance(request, DescribeLogDirsRequest) and request.topics is not None:
            # The first look at what has been copied.
            four.before = lambda _request: None
            os.kill(os.getpid(), signal.SIGINT)

    four.before = interrupt
    ran = run(command, *arguments)
    assert ran.exit_code == 1
    assert "`odradek reassign wait` watches it" in ran.stderr
    assert four.replicas("orders")[0] == (3, 1, 0)
    assert throttles(four)
    four.step_bytes = 1000
    assert run("wait").exit_code == 0
    assert four.replicas("orders")[0] == (3, 1)
    assert throttles(four) == {}


def test_wait_fails_if_a_reassignment_is_cancelled(
    run: Run, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "CANCELLED_AFTER_S", 0.0)
    four.step_bytes = 0
    four.reassign("orders", 0, 3, 1)
    looks = 0

    def disturb(request: object) -> None:
        nonlocal looks
        if isinstance(request, ListPartitionReassignmentsRequest):
            looks += 1
            if looks == 3:
                four.cancel("orders", 0)

    four.before = disturb
    ran = run("wait")
    assert ran.exit_code == 1
    assert "orders-0: its reassignment was cancelled" in ran.stderr


def test_what_is_in_progress_is_listed_with_its_bytes(run: Run, four: StandInCluster) -> None:
    four.step_bytes = 150
    assert run("list").stderr == "No reassignments in progress.\n"
    assert run("list", "-o", "json").json() == []
    four.reassign("orders", 2, 3, 2, 1)
    rows = run("list", "-o", "json").json()
    assert isinstance(rows, list)
    # Each of the requests that list reassignments copies a little.
    (row,) = rows
    assert row.pop("copied_bytes") in (600, 900)
    assert row == {
        "topic": "orders",
        "partition": 2,
        "replicas": [3, 2, 1, 0],
        "adding": [3, 2],
        "removing": [0],
        "total_bytes": 2000,
    }
    four.step_bytes = 0
    assert run("list", "other", "-o", "json").json() == []
    assert run("list", "orders:1", "-o", "json").json() == []
    assert "orders" in run("list", "orders:2").stdout
    four.stop(3)
    rows = run("list", "-o", "json").json()
    assert isinstance(rows, list)
    assert rows[0]["copied_bytes"] is None


def test_cancel_gives_back_the_replicas_from_before(run: Run, four: StandInCluster) -> None:
    four.step_bytes = 0
    throttle_by_hand(four)
    four.reassign("orders", 0, 3, 1)
    four.reassign("orders", 1, 3, 1)
    ran = run("cancel", "orders:0")
    assert (ran.exit_code, ran.stdout) == (0, "1 reassignment cancelled.\n"), ran.stderr
    assert [set(replicas) for replicas in four.replicas("orders")] == [{0, 1}, {0, 1, 3}, {0, 1}]
    assert throttles(four)
    assert run("cancel", "--all", "-o", "json").json() == {
        "cancelled": [{"topic": "orders", "partition": 1}],
        "unthrottled_topics": ["orders"],
        "unthrottled_nodes": [3],
    }
    assert set(four.replicas("orders")[1]) == {0, 1}
    assert throttles(four) == {}
    ended = run("cancel", "orders")
    assert (ended.exit_code, ended.stdout) == (0, "No reassignments in progress.\n")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("start", "ordres", "--to", "1"), 1, "ordres: no such topic; did you mean orders?"),
        (("start", "orders:7", "--to", "1"), 1, "orders-7: no such partition; orders has"),
        (("start", "orders", "--to", "1,9"), 1, "9: no such node; the cluster has 0, 1, 2, 3"),
        (("start", "orders", "--to", "1,1"), 2, "node 1 is there more than once"),
        (("start", "orders", "--to", "1,"), 2, "'1,' is not NODE,NODE"),
        (("start", "orders", "--to", "-1"), 2, "'-1' is not NODE,NODE"),
        (("start", "orders"), 2, "Name topics and --to, or a --plan"),
        (("start", "--to", "1"), 2, "Name topics and --to, or a --plan"),
        (("start", "orders", "--plan", "-"), 2, "Name topics and --to, or a --plan"),
        (("start", "--plan", "/nowhere/plan"), 2, "/nowhere/plan"),
        (("start", "orders", "--to", "1", "--throttle", "0"), 2, "would stop all copies"),
        (("start", "--plan", "-"), 1, "the plan is not valid: it is no JSON: Expecting"),
        (("list", "ordres"), 1, "ordres: no such topic"),
        (("list", "orders:3"), 1, "orders-3: no such partition"),
        (("wait", "ordres"), 1, "ordres: no such topic"),
        (("cancel", "ordres"), 1, "ordres: no such topic"),
        (("cancel",), 2, "Name topics, or pass --all"),
        (("cancel", "orders", "--all"), 2, "Name topics, or pass --all"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Run, four: StandInCluster, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    ran = run(*arguments, stdin="")
    assert (ran.exit_code, says in ran.stderr) == (exit_code, True), ran.stderr
    assert changes(four) == []
