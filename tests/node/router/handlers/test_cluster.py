"""DescribeQuorum of a quorum of one, in every version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from node.router.handlers.cluster import METADATA_TOPIC, handle_describe_quorum
from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
)
from tests.support.router_room import RouterRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    yield room
    room.close()


def ask(
    room: RouterRoom, topic: str = METADATA_TOPIC, partition: int = 0, version: int = 2
) -> DescribeQuorumResponse:
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=topic,
                partitions=[DescribeQuorumRequestPartitionData(partition_index=partition)],
            )
        ]
    )
    return room.call(handle_describe_quorum, request, version)


def only(response: DescribeQuorumResponse) -> DescribeQuorumResponsePartitionData:
    (topic,) = response.topics
    (partition,) = topic.partitions
    return partition


@pytest.mark.parametrize("version", range(3))
def test_the_node_leads_itself_and_lags_behind_nothing(room: RouterRoom, version: int) -> None:
    response = ask(room, version=version)
    quorum = only(response)
    assert (response.error_code, quorum.error_code, quorum.leader_id) == (0, 0, 0)
    assert quorum.high_watermark == room.image.offset
    (voter,) = quorum.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (0, room.image.offset)
    assert quorum.observers == []
    if version >= 1:
        assert voter.last_caught_up_timestamp == 1_000_000
    if version >= 2:
        (node,) = response.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (0, "host-0", 9092)


def test_a_quorum_without_a_leader_is_an_error_that_passes(room: RouterRoom) -> None:
    room.link.has_quorum = False
    response = ask(room)
    assert only(response).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert response.nodes == []


@pytest.mark.parametrize(("topic", "partition"), [("t", 0), (METADATA_TOPIC, 1)])
def test_nothing_else_has_a_quorum(room: RouterRoom, topic: str, partition: int) -> None:
    assert only(ask(room, topic, partition)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_quorum_is_seen_by_who_may_see_the_cluster(room: RouterRoom) -> None:
    room.deny(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    response = ask(room)
    assert (response.error_code, response.topics) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
