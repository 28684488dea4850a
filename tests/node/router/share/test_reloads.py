"""Leaders of share partitions are told, here and elsewhere."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from odradek.node.bus.reply import Reply
from odradek.node.router.share.reloads import ShareReloads, places_of
from odradek.node.router.share.sessions import TopicPartition
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.odradek import ReloadShareStateRequest, ReloadShareStateResponse
from tests.support.router_room import RouterRoom

OTHER, AWAY, LOST = 7, 8, 9


class Circle:
    """This node's share partitions, and other nodes: one that is not the leader any more, and one
    that cannot be reached."""

    def __init__(self, room: RouterRoom) -> None:
        self.node_id = room.services.node_id
        self.image = room.image
        self.share_partitions = self
        self.forgotten: list[tuple[str, TopicPartition]] = []
        self.asked: list[tuple[int, ReloadShareStateRequest]] = []

    def forget(self, group_id: str, places: Iterable[TopicPartition] | None = None) -> None:
        self.forgotten += ((group_id, place) for place in places or ())

    def ask(self, node_id: int, request: object) -> Reply[object]:
        assert isinstance(request, ReloadShareStateRequest)
        self.asked.append((node_id, request))
        reply: Reply[object] = Reply()
        if node_id == AWAY:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            code = ErrorCode.NONE if node_id == OTHER else ErrorCode.NOT_LEADER_OR_FOLLOWER
            reply.resolve(ReloadShareStateResponse(error_code=code))
        return reply


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    for number, name in enumerate(("here", "other", "away", "lost", "nobody")):
        room.controller.has(name, number + 1, 1)
    room.follow()
    for name, leader in (("other", OTHER), ("away", AWAY), ("lost", LOST), ("nobody", -1)):
        room.lead(name, 5, leader)
    yield room
    room.close()


def place(room: RouterRoom, name: str) -> TopicPartition:
    return TopicPartition(room.image.topics_by_name[name].topic_id, 0)


def test_every_leader_is_told_and_says_how_it_went(room: RouterRoom) -> None:
    circle = Circle(room)
    reloads = ShareReloads(circle, circle)
    names = ("here", "other", "away", "lost", "nobody")
    found = asyncio.run(reloads.everywhere("g", [place(room, name) for name in names]))
    assert [found[place(room, name)] for name in names] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]
    assert circle.forgotten == [("g", place(room, "here"))]
    assert [node_id for node_id, _ in circle.asked] == [OTHER, AWAY, LOST]


def test_what_is_led_elsewhere_is_not_forgotten_here(room: RouterRoom) -> None:
    circle = Circle(room)
    here, other = place(room, "here"), place(room, "other")
    assert ShareReloads(circle, circle).here("g", [here]) is ErrorCode.NONE
    code = ShareReloads(circle, circle).here("g", [here, other])
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert circle.forgotten == [("g", here), ("g", here)]


def test_partitions_are_named_one_by_one() -> None:
    topic = bytes(16)
    assert places_of({topic: [2, 0]}) == [TopicPartition(topic, 2), TopicPartition(topic, 0)]


def test_a_partition_that_is_not_there_is_led_by_nobody(room: RouterRoom) -> None:
    circle = Circle(room)
    here = place(room, "here")
    for index in (-1, -(2**31), 2**31 - 1):
        code = ShareReloads(circle, circle).here("g", [here._replace(partition=index)])
        assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not circle.forgotten
