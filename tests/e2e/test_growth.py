"""A cluster grows and shrinks while it is used, and a voter whose disk is lost is replaced."""

from pathlib import Path

from protocol.errors import ErrorCode
from tests.e2e.cluster import cluster, running_cluster
from tests.support.waiting import wait_until


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

        # What it was told at its first start is not needed any more, nor is an observer's voice.
        nodes[2].stop()
        nodes[2].settings["join"] = "127.0.0.1:1"
        nodes[1].kill()
        nodes.start(2)
        assert nodes.create(2, "later") == ErrorCode.NONE
        nodes.wait_for_brokers(0, {0, 2})
        wait_until(lambda: "later" in nodes.topics(0), what="the leader has it")
