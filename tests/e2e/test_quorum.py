"""Three controllers decide by majority: whichever node gets the request, whichever is killed."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bench.promises import CONTROLLER_HANDOVER_S, NEW_CONTROLLER_S, SLACK
from odradek.node.embedded import BrokerFailure
from odradek.protocol.errors import ErrorCode
from tests.e2e.cluster import Cluster, cluster, running_cluster
from tests.e2e.conftest import Report
from tests.support.disks import small_disk
from tests.support.waiting import wait_until

KILLS = 3
ALL_KILLS = int(os.environ.get("TEST_KILLS", str(2 * KILLS)))
"""For the test that looks for lost changes: more kills take longer and find more."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as nodes:
        yield nodes


def test_what_any_node_is_asked_for_appears_on_all(three: Cluster) -> None:
    for at in three.nodes:
        assert three.create(at, f"made-at-{at}") == ErrorCode.NONE
        assert f"made-at-{at}" in three.topics(at), "the node that answers shows it at once"
    for at in three.nodes:
        three.wait_for_topics(at, {"made-at-0", "made-at-1", "made-at-2"})
        three.wait_for_brokers(at, {0, 1, 2})
    assert three.create(1, "made-at-0") == ErrorCode.TOPIC_ALREADY_EXISTS


def test_every_node_tells_the_same_of_the_quorum(three: Cluster) -> None:
    assert len({three.leader(at) for at in three.nodes}) == 1
    quorum = three.quorum(0)
    assert sorted(voter.replica_id for voter in quorum.current_voters) == [0, 1, 2]
    wait_until(
        lambda: len({v.log_end_offset for v in three.quorum(2).current_voters}) == 1,
        what="everybody has everything",
    )


def test_when_the_leaders_node_is_killed_another_leads_and_the_node_catches_up(
    three: Cluster, report: Report
) -> None:
    gaps = []
    for round_ in range(KILLS):
        leader = three.leader(0)
        near, far = three.others(leader)
        assert three.create(near, f"before-{round_}") == ErrorCode.NONE
        began = time.monotonic()
        three[leader].kill()
        assert three.create(near, f"after-{round_}") == ErrorCode.NONE
        gaps.append(time.monotonic() - began)
        assert three.leader(far) != leader
        three.wait_for_brokers(near, {near, far})
        three.start(leader)
        three.wait_for_topics(leader, three.topics(near))
    names = {f"{when}-{n}" for when in ("before", "after") for n in range(KILLS)}
    for at in three.nodes:
        assert three.topics(at) == names
    told = ", ".join(f"{gap:.2f}" for gap in gaps)
    report(f"from a kill to the next decision: {told} s (promised {NEW_CONTROLLER_S})")
    assert sorted(gaps)[KILLS // 2] < NEW_CONTROLLER_S * SLACK


def test_when_only_the_controller_process_dies_the_node_is_not_fenced(
    three: Cluster,
) -> None:
    leader = three.leader(0)
    three[leader].kill_process("controller")
    other = three.others(leader)[0]
    assert three.create(other, "meanwhile") == ErrorCode.NONE
    three[leader].wait_until_ready()
    assert three.create(leader, "later") == ErrorCode.NONE
    assert three.topics(leader) == {"meanwhile", "later"}


def test_a_leader_that_was_frozen_steps_back_and_learns_what_it_missed(
    three: Cluster, report: Report
) -> None:
    leader = three.leader(0)
    near = three.others(leader)[0]
    frozen = three[leader].processes["controller"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert three.create(near, "meanwhile") == ErrorCode.NONE
        gap = time.monotonic() - began
        three.wait_for_brokers(near, set(three.others(leader)))
    finally:
        os.kill(frozen, signal.SIGCONT)
    three.wait_for_topics(leader, {"meanwhile"})
    assert three.create(leader, "afterwards") == ErrorCode.NONE
    three.wait_for_brokers(near, {0, 1, 2})
    report(f"from a freeze to the next decision: {gap:.2f} s (promised {NEW_CONTROLLER_S})")
    assert gap < NEW_CONTROLLER_S * SLACK


def test_nothing_that_was_acknowledged_is_lost_whoever_dies(three: Cluster, report: Report) -> None:
    acknowledged: set[str] = set()
    is_over = threading.Event()

    def create_all_the_time(client: int) -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            # A node that was down, or was killed during the request, has acknowledged nothing.
            with suppress(OSError, BrokerFailure, ValueError):
                name = f"topic-{client}-{number}"
                if three.create(number % 3, name) == ErrorCode.NONE:
                    acknowledged.add(name)

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(create_all_the_time, client) for client in range(3)]
        try:
            for kill in range(ALL_KILLS):
                had = len(acknowledged)
                wait_until(lambda had=had: len(acknowledged) > had + 20, what="work goes on")  # type: ignore[misc]  # a default
                node = three[three.leader(kill % 3)]
                if kill % 2:
                    node.kill_process("controller")
                    node.wait_until_ready()
                else:
                    node.kill()
                    node.start()
        finally:
            is_over.set()
        for client in clients:
            client.result()
    for at in three.nodes:
        wait_until(lambda at=at: acknowledged <= three.topics(at), what=f"node {at} has all")  # type: ignore[misc]  # a default
    report(f"{len(acknowledged)} topics acknowledged, none lost in {ALL_KILLS} kills")


def test_a_minority_decides_nothing(three: Cluster) -> None:
    left = three.others(three.leader(0))[0]
    for other in three.others(left):
        three[other].kill()
    assert three.create(left, "alone", timeout_ms=1_500) == ErrorCode.REQUEST_TIMED_OUT
    assert three.topics(left) == set()
    assert three.quorum(left).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    three.start(*three.others(left))
    assert three.create(left, "together") == ErrorCode.NONE
    three.wait_for_topics(0, three.topics(left))


def test_a_node_that_stops_hands_the_lead_over(three: Cluster, report: Report) -> None:
    leader = three.leader(0)
    near = three.others(leader)[0]
    three[leader].stop()
    began = time.monotonic()
    assert three.create(near, "next") == ErrorCode.NONE
    gap = time.monotonic() - began
    promised = f"(promised {CONTROLLER_HANDOVER_S})"
    report(f"from the end of a stop to the next decision: {gap:.2f} s {promised}")
    assert gap < CONTROLLER_HANDOVER_S * SLACK


def test_a_node_without_room_lets_another_decide(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, ExitStack() as stack:
        disks = {
            n: stack.enter_context(small_disk(node.data / "metadata", 16 << 20))
            for n, node in nodes.nodes.items()
        }
        try:
            nodes.start()
            full = nodes.leader(0)
            near = nodes.others(full)[0]
            disks[full].fill()
            wait_until(lambda: nodes.create(near, "t") in (0, ErrorCode.TOPIC_ALREADY_EXISTS))
            assert nodes.leader(near) != full
            disks[full].empty()
            nodes.wait_for_topics(full, {"t"})
        finally:
            nodes.local.kill()


def test_a_stranger_without_the_secret_does_not_take_part(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        guessed = tmp_path / "guessed"
        guessed.write_text("another secret that somebody guessed")
        nodes[2].settings["cluster.secret.file"] = str(guessed)
        nodes.start(0, 1)
        nodes.start_in_vain(2, "set the same `cluster.secret`", "missing cluster secret")
        assert nodes.brokers(0) == {0, 1}
        assert nodes.create(0, "t") == ErrorCode.NONE


def test_a_node_of_another_cluster_does_not_take_part(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes[2].settings["cluster.id"] = "another-cluster"
        nodes.start(0, 1)
        nodes.start_in_vain(2, "rejects this node", "belongs to cluster another-cluster")
        assert nodes.brokers(0) == {0, 1}


def test_a_node_whose_disk_was_wiped_is_told_so_and_has_no_vote(three: Cluster) -> None:
    wiped = three.others(three.leader(0))[0]
    left = three.others(wiped)
    three[wiped].kill()
    for path in sorted(three[wiped].data.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    three.start(wiped)
    three.wait_until_said(wiped, "has another data folder")
    three.wait_until_said(wiped, f"odradek node add {wiped}")
    assert three.create(wiped, "t") == ErrorCode.NONE, "it follows and serves"
    quorum = three.quorum(wiped)
    assert [replica.replica_id for replica in quorum.observers] == [wiped]
    voters = {voter.replica_id: voter.replica_directory_id for voter in quorum.current_voters}
    assert sorted(voters) == [0, 1, 2], "the replica that was lost has the vote still"
    assert voters[wiped] != quorum.observers[0].replica_directory_id
    three[left[0]].kill()
    assert three.create(left[1], "u", timeout_ms=1_500) == ErrorCode.REQUEST_TIMED_OUT


def test_a_node_that_decided_alone_is_not_made_one_of_three(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        alone = nodes[0]
        peers = alone.settings.pop("peers")
        alone.start()
        assert nodes.create(0, "mine") == ErrorCode.NONE
        alone.stop()
        alone.settings["peers"] = peers
        with pytest.raises(BrokerFailure, match="bootstrapped a single-node cluster"):
            alone.start()
        del alone.settings["peers"]
        alone.start()
        assert nodes.topics(0) == {"mine"}
