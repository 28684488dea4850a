"""Share states are reloaded on the leaders of this and other brokers."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from odradek.node.bus.reply import Reply
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.node.router.share.state_reload import ShareStateReloader, topic_id_partitions
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.rewinds import ReloadShareStateRequest, ReloadShareStateResponse
from tests.support.router_harness import RouterHarness

OTHER, AWAY, LOST = 7, 8, 9


class Circle:
    """This node's share partitions, and two other nodes: one that is not the leader any
    more, and one that cannot be reached."""

    def __init__(self, harness: RouterHarness) -> None:
        self.forgotten: list[tuple[str, TopicIdPartition]] = []
        self.asked: list[tuple[int, ReloadShareStateRequest]] = []
        self.reloader = ShareStateReloader(
            harness.services.metadata, self, cast("SharePartitions", self)
        )

    def forget(self, group_id: str, partitions: Iterable[TopicIdPartition]) -> None:
        self.forgotten += ((group_id, place) for place in partitions)

    def send(self, node_id: int, request: object) -> Reply[Any]:
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
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    for number, name in enumerate(("here", "other", "away", "lost", "nobody")):
        harness.controller.has(name, number + 1, 1)
    harness.follow()
    for name, leader in (("other", OTHER), ("away", AWAY), ("lost", LOST), ("nobody", -1)):
        harness.lead(name, 5, leader)
    yield harness
    harness.close()


def place(harness: RouterHarness, name: str) -> TopicIdPartition:
    return TopicIdPartition(harness.image.topics_by_name[name].topic_id, 0)


def test_every_leader_reloads_and_its_result_is_returned(harness: RouterHarness) -> None:
    circle = Circle(harness)
    names = ("here", "other", "away", "lost", "nobody")
    found = asyncio.run(
        circle.reloader.reload_on_leaders("g", [place(harness, name) for name in names])
    )
    assert [found[place(harness, name)] for name in names] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]
    assert circle.forgotten == [("g", place(harness, "here"))]
    assert [node_id for node_id, _ in circle.asked] == [OTHER, AWAY, LOST]


def test_partitions_that_another_broker_leads_are_not_reloaded_here(harness: RouterHarness) -> None:
    circle = Circle(harness)
    here, other = place(harness, "here"), place(harness, "other")
    assert circle.reloader.reload_local("g", [here]) is ErrorCode.NONE
    code = circle.reloader.reload_local("g", [here, other])
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert circle.forgotten == [("g", here), ("g", here)]


def test_topic_id_partitions_lists_each_partition() -> None:
    topic = bytes(16)
    assert topic_id_partitions({topic: [2, 0]}) == [
        TopicIdPartition(topic, 2),
        TopicIdPartition(topic, 0),
    ]


def test_a_partition_that_does_not_exist_has_no_leader(harness: RouterHarness) -> None:
    circle = Circle(harness)
    here = place(harness, "here")
    for index in (-1, -(2**31), 2**31 - 1):
        code = circle.reloader.reload_local("g", [here._replace(partition=index)])
        assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not circle.forgotten
