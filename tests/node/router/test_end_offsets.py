"""High watermarks: of this node's partitions from its logs, of others from their leaders."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.metadata.image import NO_LEADER, PartitionImage
from node.bus.reply import Reply, drive
from node.router.end_offsets import EndOffsets, Place
from protocol.errors import ApiError, ErrorCode
from protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.support.router_room import RouterRoom
from tests.support.stores import batch_of

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class OtherNodes:
    """Leaders elsewhere, who answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ListOffsetsRequest, Reply[object]]] = []

    def ask(self, node_id: int, request: object) -> Reply[object]:
        assert isinstance(request, ListOffsetsRequest)
        reply: Reply[object] = Reply()
        self.asked.append((node_id, request, reply))
        return reply


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path, brokers=2)
    yield room
    room.close()


def ask(room: RouterRoom, others: OtherNodes, *places: Place) -> list[dict[Place, int | ErrorCode]]:
    """What is found, as soon as it is."""
    found: list[dict[Place, int | ErrorCode]] = []

    def finish(result: dict[Place, int | ErrorCode] | None, error: BaseException | None) -> None:
        assert error is None, error
        found.append(result or {})

    drive(EndOffsets(room.services, others).of(places), finish)
    return found


def test_what_is_led_here_is_read_from_the_log(room: RouterRoom) -> None:
    room.controller.place("t", 1, PartitionImage((0,), (0,), 0))
    room.follow()
    room.append("t", batch_of(3))
    places = (("t", 0), ("t", 1), ("none", 0))
    [found] = ask(room, OtherNodes(), *places)
    assert found == {("t", 0): 3, ("t", 1): UNKNOWN, ("none", 0): UNKNOWN}


def test_what_nobody_leads_is_not_known(room: RouterRoom) -> None:
    room.controller.place("t", 1, PartitionImage((0,), (0,), NO_LEADER))
    room.follow()
    [found] = ask(room, OtherNodes(), ("t", 0))
    assert found == {("t", 0): ErrorCode.LEADER_NOT_AVAILABLE}


def test_a_leader_elsewhere_is_asked_once_for_all_that_it_leads(room: RouterRoom) -> None:
    elsewhere = PartitionImage((1,), (1,), 1)
    room.controller.place("t", 1, elsewhere, elsewhere)
    room.controller.place("u", 2, elsewhere)
    room.follow()
    others = OtherNodes()
    found = ask(room, others, ("t", 0), ("t", 1), ("u", 0))
    [(node_id, request, reply)] = others.asked
    assert node_id == 1
    assert {topic.name: len(topic.partitions) for topic in request.topics} == {"t": 2, "u": 1}
    assert {p.timestamp for topic in request.topics for p in topic.partitions} == {-1}
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    topic = ListOffsetsTopicResponse(
        name="t",
        partitions=[
            ListOffsetsPartitionResponse(partition_index=0, offset=9),
            ListOffsetsPartitionResponse(partition_index=1, error_code=refused),
        ],
    )
    assert found == []
    reply.resolve(ListOffsetsResponse(topics=[topic]))
    assert found == [{("t", 0): 9, ("t", 1): refused, ("u", 0): ErrorCode.REQUEST_TIMED_OUT}]


def test_a_leader_that_cannot_be_asked_leaves_its_partitions_unknown(room: RouterRoom) -> None:
    room.controller.place("t", 1, PartitionImage((1,), (1,), 1))
    room.follow()
    others = OtherNodes()
    found = ask(room, others, ("t", 0))
    others.asked[0][2].fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert found == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]
