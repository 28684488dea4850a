"""Offsets of partitions on this and other brokers."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from odradek.node.bus.reply import Reply
from odradek.node.router import offset_lookup
from odradek.node.router.offset_lookup import LogBounds, OffsetLookup
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.support.router_harness import LocalInterBrokerClient, RouterHarness
from tests.support.stores import batch_of

T = TypeVar("T")
HERE, THERE = ("t", 0), ("u", 0)
OTHER = 7


class Elsewhere:
    """Another node. Its offsets are 30 plus ten times the requested timestamp."""

    def __init__(self, harness: RouterHarness) -> None:
        self._local = LocalInterBrokerClient(harness)
        self.asked: list[tuple[int, ListOffsetsRequest]] = []
        self.is_away = False
        self.asked_here = 0
        self.away_for_count = 0
        """How many requests it does not answer before it is back."""

    def send(self, node_id: int, request: object) -> Reply[Any]:
        assert isinstance(request, ListOffsetsRequest)
        if node_id != OTHER:
            self.asked_here += 1
            return self._local.send(node_id, request)
        self.asked.append((node_id, request))
        reply: Reply[object] = Reply()
        if self.is_away or len(self.asked) <= self.away_for_count:
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
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 1)
    harness.controller.has("u", 2, 1)
    harness.follow()
    harness.append("t", batch_of(3), batch_of(2))
    harness.lead("u", 5, OTHER)
    yield harness
    harness.close()


def positions_of(harness: RouterHarness, there: Elsewhere) -> OffsetLookup:
    return OffsetLookup(harness.services.metadata, there)


def run(question: Coroutine[object, object, T]) -> T:
    async def send() -> T:
        return await question

    return asyncio.run(send())


def test_bounds_come_from_the_leaders(harness: RouterHarness) -> None:
    there = Elsewhere(harness)
    positions = positions_of(harness, there)
    bounds = run(positions.bounds([HERE, THERE], 1))
    assert bounds == {HERE: LogBounds(0, 5), THERE: LogBounds(10, 20)}
    assert [(node_id, asked.isolation_level) for node_id, asked in there.asked] == [
        (OTHER, 1),
        (OTHER, 1),
    ]


def test_end_offsets_are_high_watermarks_despite_open_transactions(harness: RouterHarness) -> None:
    there = Elsewhere(harness)
    assert run(positions_of(harness, there).end_offsets([HERE, THERE])) == {HERE: 5, THERE: 20}
    assert [asked.isolation_level for _, asked in there.asked] == [0]


def test_offsets_for_times_come_from_the_leaders(harness: RouterHarness) -> None:
    positions = positions_of(harness, Elsewhere(harness))
    found = run(positions.offsets_for_times({HERE: 2**60, THERE: 7}, 0))
    assert found == {HERE: None, THERE: 100}
    assert run(positions.offsets_for_times({HERE: -2}, 0)) == {HERE: 0}


def test_an_unreachable_leader_is_an_error_of_its_partitions(harness: RouterHarness) -> None:
    there = Elsewhere(harness)
    there.is_away = True
    positions = positions_of(harness, there)
    bounds = run(positions.bounds([HERE, THERE, ("u", 9), ("x", 0)], 0))
    assert bounds == {
        HERE: LogBounds(0, 5),
        THERE: ErrorCode.LEADER_NOT_AVAILABLE,
        ("u", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_partition_without_a_leader_is_an_error(harness: RouterHarness) -> None:
    harness.lead("u", 6, -1)
    bounds = run(positions_of(harness, Elsewhere(harness)).bounds([THERE], 0))
    assert bounds == {THERE: ErrorCode.LEADER_NOT_AVAILABLE}


def test_end_offsets_are_asked_for_again_while_a_leader_moves(harness: RouterHarness) -> None:
    there = Elsewhere(harness)
    there.away_for_count = 2
    assert run(positions_of(harness, there).end_offsets([HERE, THERE])) == {HERE: 5, THERE: 20}
    asked = [topic.name for _, request in there.asked for topic in request.topics]
    assert asked == ["u"] * 3
    assert there.asked_here == 1, "an offset is no error code, whatever its number"


def test_end_offsets_of_a_leader_that_stays_away_are_an_error(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_lookup, "RETRY_S_MIN", 0.001)
    monkeypatch.setattr(offset_lookup, "RETRY_S_MAX", 0.001)
    there = Elsewhere(harness)
    there.is_away = True
    wanted = [THERE, ("x", 0)]
    assert run(positions_of(harness, there).end_offsets(wanted)) == {
        THERE: ErrorCode.LEADER_NOT_AVAILABLE,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len(there.asked) == offset_lookup.ATTEMPTS_MAX
