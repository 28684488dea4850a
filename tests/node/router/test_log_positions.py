"""Offsets of partitions here and elsewhere."""

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from odradek.node.bus.reply import Reply
from odradek.node.router.handlers.offsets import list_offsets_here
from odradek.node.router.log_positions import Bounds, LogPositions
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.support.router_room import RouterRoom
from tests.support.stores import batch_of

T = TypeVar("T")
HERE, THERE = ("t", 0), ("u", 0)
OTHER = 7


class Elsewhere:
    """Another node, which says the timestamp it is asked for, times minus ten."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ListOffsetsRequest]] = []
        self.is_away = False

    def ask(self, node_id: int, request: object) -> Reply[object]:
        assert isinstance(request, ListOffsetsRequest)
        self.asked.append((node_id, request))
        reply: Reply[object] = Reply()
        if self.is_away:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return reply
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=at.partition_index, offset=30 + 10 * at.timestamp
                    )
                    for at in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        reply.resolve(ListOffsetsResponse(topics=topics))
        return reply


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    room.controller.has("t", 1, 1)
    room.controller.has("u", 2, 1)
    room.follow()
    room.append("t", batch_of(3), batch_of(2))
    room.lead("u", 5, OTHER)
    yield room
    room.close()


def positions_of(room: RouterRoom, there: Elsewhere) -> LogPositions:
    return LogPositions(room.services, there, partial(list_offsets_here, services=room.services))


def run(question: Coroutine[object, object, T]) -> T:
    async def ask() -> T:
        return await question

    return asyncio.run(ask())


def test_the_ends_are_asked_of_whoever_leads(room: RouterRoom) -> None:
    there = Elsewhere()
    positions = positions_of(room, there)
    bounds = run(positions.bounds([HERE, THERE], 1))
    assert bounds == {HERE: Bounds(0, 5), THERE: Bounds(10, 20)}
    assert [(node_id, asked.isolation_level) for node_id, asked in there.asked] == [
        (OTHER, 1),
        (OTHER, 1),
    ]


def test_how_far_logs_are_committed_is_no_matter_of_transactions(room: RouterRoom) -> None:
    there = Elsewhere()
    assert run(positions_of(room, there).ends([HERE, THERE])) == {HERE: 5, THERE: 20}
    assert [asked.isolation_level for _, asked in there.asked] == [0]


def test_times_are_looked_up_where_the_records_are(room: RouterRoom) -> None:
    positions = positions_of(room, Elsewhere())
    found = run(positions.at_times({HERE: 2**60, THERE: 7}, 0))
    assert found == {HERE: None, THERE: 100}
    assert run(positions.at_times({HERE: -2}, 0)) == {HERE: 0}


def test_who_cannot_be_asked_is_an_error_of_its_partitions(room: RouterRoom) -> None:
    there = Elsewhere()
    there.is_away = True
    positions = positions_of(room, there)
    bounds = run(positions.bounds([HERE, THERE, ("u", 9), ("x", 0)], 0))
    assert bounds == {
        HERE: Bounds(0, 5),
        THERE: ErrorCode.LEADER_NOT_AVAILABLE,
        ("u", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_partition_without_a_leader_has_no_ends_just_now(room: RouterRoom) -> None:
    room.lead("u", 6, -1)
    bounds = run(positions_of(room, Elsewhere()).bounds([THERE], 0))
    assert bounds == {THERE: ErrorCode.LEADER_NOT_AVAILABLE}
