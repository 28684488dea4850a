"""A cluster grows and shrinks while it is used, and a voter whose disk is lost is replaced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from tests.e2e.quorum import QuorumOfNodes, quorum_of_nodes
from tests.support.waiting import wait_until


@pytest.fixture
def one(tmp_path: Path) -> Iterator[QuorumOfNodes]:
    with quorum_of_nodes(tmp_path, node_count=1) as nodes:
        nodes.start()
        yield nodes


def test_nodes_join_one_that_was_on_its_own_and_find_each_other_again(
    one: QuorumOfNodes,
) -> None:
    assert one.create(0, "before") == ErrorCode.NONE
    one[0].stop()
    one.open(0)
    one.start(0)
    assert one.topics(0) == {"before"}
    one.add(1, join=[0])
    one.add(2, join=[1])
    one.start(1)
    one.start(2)
    for at in one.nodes:
        assert one.create(at, f"made-at-{at}") == ErrorCode.NONE
        one.wait_for_brokers(at, {0, 1, 2})
    wanted = {"before", "made-at-0", "made-at-1", "made-at-2"}
    for at in one.nodes:
        one.wait_for_topics(at, wanted)
    quorum = one.quorum(2)
    assert [voter.replica_id for voter in quorum.current_voters] == [0]
    assert sorted(replica.replica_id for replica in quorum.observers) == [1, 2]

    # What it was told at its first start is not needed any more, nor is a vote of an observer's.
    one[2].stop()
    one[2].settings["join"] = "127.0.0.1:1"
    one[1].kill()
    one.start(2)
    assert one.create(2, "later") == ErrorCode.NONE
    one.wait_for_brokers(0, {0, 2})
    wait_until(lambda: "later" in one.topics(0), what="the leader has it")
