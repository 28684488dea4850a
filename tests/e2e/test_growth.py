"""A cluster grows and shrinks under load, and a voter with a lost disk is replaced."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.protocol.messages.metadata import MetadataRequest
from tests.e2e.checker import anomalies
from tests.e2e.cluster import WAIT_S, Cluster, cluster, running_cluster
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 4
REFUSAL_S = "5"
"""How long a command waits for something that does not happen; a busy machine must answer within
it."""


def odradek(nodes: Cluster, at: int, *arguments: str) -> Mapping[str, object]:
    """The JSON output of a command against one node."""
    address = nodes[at].bootstrap_servers
    ran = CliRunner().invoke(cli, [*arguments, "-b", address, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found


def refusal(nodes: Cluster, at: int, *arguments: str) -> str:
    address = nodes[at].bootstrap_servers
    ran = CliRunner().invoke(cli, [*arguments, "-b", address, "--timeout", REFUSAL_S])
    assert ran.exit_code == 1, ran.output
    return ran.stderr


def voters(nodes: Cluster, at: int) -> list[int]:
    """The voters, once there is a leader."""
    [quorum] = wait_until(lambda: [told for told in (nodes.quorum(at),) if not told.error_code])
    return sorted(voter.replica_id for voter in quorum.current_voters)


def move_everything(nodes: Cluster, at: int, replicas: list[int]) -> None:
    """Reassign all partitions to these nodes; returns when that is done."""
    answer = nodes[at].ask(MetadataRequest(topics=None))
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic.name or "",
                partitions=[
                    ReassignablePartition(
                        partition_index=partition.partition_index, replicas=replicas
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in answer.topics
        ]
    )
    moving = nodes[at].ask(request)
    assert all(not p.error_code for topic in moving.responses for p in topic.partitions)
    wait_until(
        lambda: not nodes[at].ask(ListPartitionReassignmentsRequest(topics=None)).topics,
        timeout_s=WAIT_S,
        what="everything has moved",
    )
    election = ElectLeadersRequest(election_type=0, topic_partitions=None)
    nodes[at].ask(election)


def test_a_node_that_was_on_its_own_is_joined_once_it_can_be_found(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes:
        peers = nodes[0].settings.pop("peers")
        nodes.start(0)
        assert nodes.create(0, "before") == ErrorCode.NONE
        nodes[0].stop()
        nodes[0].settings["peer.listen"] = peers.partition("@")[2]
        nodes.start(0)
        nodes.join(1)
        nodes.start(1)
        assert nodes.topics(1) == {"before"}
        assert nodes.create(1, "after") == ErrorCode.NONE
        nodes.wait_for_topics(0, {"before", "after"})


def test_nodes_that_have_joined_serve_without_a_vote_and_find_the_others_again(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, 1) as nodes:
        for node_id in (1, 2):
            nodes.join(node_id)
            nodes.start(node_id)
        for at in nodes.nodes:
            assert nodes.create(at, f"made-at-{at}") == ErrorCode.NONE
            nodes.wait_for_brokers(at, {0, 1, 2})
        for at in nodes.nodes:
            nodes.wait_for_topics(at, {"made-at-0", "made-at-1", "made-at-2"})
        quorum = nodes.quorum(2)
        assert [voter.replica_id for voter in quorum.current_voters] == [0]
        assert sorted(replica.replica_id for replica in quorum.observers) == [1, 2]

        # The bootstrap configuration of its first start is not needed any more, nor is an
        # observer's vote.
        nodes[2].stop()
        nodes[2].settings["join"] = "127.0.0.1:1"
        nodes[1].kill()
        nodes.start(2)
        assert nodes.create(2, "later") == ErrorCode.NONE
        nodes.wait_for_brokers(0, {0, 2})
        wait_until(lambda: "later" in nodes.topics(0), what="the leader has it")


@pytest.mark.slow
def test_a_cluster_grows_from_one_to_three_and_loses_its_first_node_under_load(
    tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path, 1) as nodes:
        nodes[0].create_topic(TOPIC, partitions=PARTITIONS)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()

        def grow() -> None:
            for node_id in (1, 2):
                nodes.join(node_id)
                nodes.start(node_id)
                odradek(nodes, 0, "node", "add", str(node_id))

        growing_s = workload.measure(grow)
        assert voters(nodes, 2) == [0, 1, 2]
        assert "hosts replicas" in refusal(nodes, 1, "node", "remove", "0")

        def drain() -> None:
            # As `odradek node drain` does: else node 0 gets replicas of __consumer_offsets again.
            odradek(nodes, 1, "config", "set", "broker", "0", "cordoned.log.dirs=*")
            move_everything(nodes, 1, [1, 2])

        moving_s = workload.measure(drain)
        assert nodes.leader(1) == 0
        assert "it still runs" in refusal(nodes, 1, "node", "remove", "0")
        assert voters(nodes, 1) == [1, 2]
        assert nodes.leader(1) in (1, 2)

        def leave() -> None:
            nodes[0].stop()
            left = odradek(nodes, 1, "node", "remove", "0")
            assert left["is_unregistered"]

        leaving_s = workload.measure(leave)
        nodes.wait_for_brokers(2, {1, 2})
        workload.bootstrap = f"{nodes[1].bootstrap_servers},{nodes[2].bootstrap_servers}"
        workload.end()
        report(
            f"longest gaps of a producer: {growing_s:.2f} s while two nodes joined,"
            f" {moving_s:.2f} s while everything moved, {leaving_s:.2f} s while the first one left"
        )
        assert anomalies(workload.history) == []


def wipe(nodes: Cluster, node_id: int) -> None:
    nodes[node_id].kill()
    shutil.rmtree(nodes[node_id].data)


def test_a_voter_whose_disk_was_wiped_is_replaced_by_itself(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as nodes:
        lost = nodes.others(nodes.leader(0))[0]
        near = nodes.others(lost)[0]
        assert nodes.create(lost, "before") == ErrorCode.NONE
        wipe(nodes, lost)
        nodes.start(lost)
        nodes.wait_until_said(lost, "has another data folder")
        assert "is still a voter" in refusal(nodes, near, "node", "add", str(lost))
        assert odradek(nodes, near, "node", "remove", str(lost)) == {
            "node": lost,
            "has_lost_vote": True,
            "is_unregistered": False,
            "voters": nodes.others(lost),
        }
        added = odradek(nodes, lost, "node", "add", str(lost))
        assert added == {"node": lost, "is_new": True, "voters": [0, 1, 2]}
        # Its vote counts: with it two of three are a majority.
        nodes[near].kill()
        assert nodes.create(lost, "after") == ErrorCode.NONE
        assert nodes.topics(lost) == {"before", "after"}
        # It counts after a restart as well, because it is in the log.
        nodes.start(near)
        nodes[lost].restart()
        assert voters(nodes, lost) == [0, 1, 2]


def test_a_node_that_was_taken_out_meanwhile_follows_again_and_disturbs_nobody(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as nodes:
        gone = nodes.others(nodes.leader(0))[0]
        near = nodes.others(gone)[0]
        nodes[gone].kill()
        removed = odradek(nodes, near, "node", "remove", str(gone), "--force")
        assert removed["is_unregistered"]
        assert nodes.create(near, "meanwhile") == ErrorCode.NONE
        said_before = len(nodes[gone].log())
        nodes.start(gone)
        nodes.wait_until_said(gone, f"Node {gone} was removed from the voters")
        nodes.wait_for_topics(gone, {"meanwhile"})
        assert '"role":"candidate"' not in nodes[gone].log()[said_before:], "it stood for election"
        wait_until(
            lambda: {each.replica_id for each in nodes.quorum(near).observers} == {gone},
            what="it is an observer",
        )
        again = odradek(nodes, near, "node", "add", str(gone))
        assert again["voters"] == [0, 1, 2]


def test_who_cannot_join_is_told_why_and_so_is_the_cluster(tmp_path: Path) -> None:
    guessed = tmp_path / "guessed"
    guessed.write_text("another secret that somebody guessed")
    with running_cluster(tmp_path, 1) as nodes:
        for node_id, key, value, told_there, told_here in (
            (1, "cluster.id", "another-cluster", "belongs to cluster another-cluster", ""),
            (2, "stores", "4", "formatted with 4 stores", "formatted with 4 stores"),
            (3, "node.id", "0", "its own `node.id`", "its own `node.id`"),
            (
                4,
                "cluster.secret.file",
                str(guessed),
                "set the same `cluster.secret`",
                "missing cluster secret",
            ),
        ):
            nodes.join(node_id).settings[key] = value
            nodes.start_in_vain(node_id, told_there, told_here or told_there)
        assert nodes.create(0, "t") == ErrorCode.NONE
        assert voters(nodes, 0) == [0]
        assert nodes.quorum(0).observers == []


def test_a_second_node_of_an_id_is_not_registered_while_the_first_one_lives(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, 1) as nodes:
        nodes.join(1)
        nodes.start(1)
        nodes.join(2).settings["node.id"] = "1"
        nodes.start_in_vain(2, "Another broker with the id 1 is alive", "")
        assert nodes.create(1, "t") == ErrorCode.NONE
        nodes.wait_for_brokers(0, {0, 1})
