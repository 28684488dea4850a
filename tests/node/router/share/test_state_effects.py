"""Effects of a group's shard initialize and delete share states; the shard gets the results."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import cast

import pytest

from odradek.coordinator.group.share.requests import (
    DeleteStates,
    InitializeStates,
    RestartStates,
    StatesDeleted,
    StatesInitialized,
    StatesRestarted,
)
from odradek.coordinator.share.requests import DeleteShareState, InitializeShareState
from odradek.node.bus.reply import Reply
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.node.router.share.state_effects import ShareStateEffect, ShareStateEffects
from odradek.node.router.share.state_reload import ShareStateReloader
from odradek.protocol.errors import ApiError, ErrorCode

T = bytes(range(16))
AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


class Desk:
    """A persister, a reloader and a group's shard. Calls wait until the test answers them."""

    def __init__(self) -> None:
        self.told: list[TopicIdPartition] = []
        self.asked: dict[tuple[object, ...], Reply[None]] = {}
        self.reports: list[tuple[object, Reply[object]]] = []
        self.is_current = True
        self.told_again = asyncio.Event()
        self.keeper = ShareStateEffects(
            cast("SharePersister", self), cast("ShareStateReloader", self)
        )

    def call(self, request: InitializeShareState | DeleteShareState) -> Reply[None]:
        reply: Reply[None] = Reply()
        if isinstance(request, InitializeShareState):
            self.asked["make", *request.key, request.state_epoch, request.start_offset] = reply
        else:
            self.asked["delete", *request.key] = reply
        return reply

    async def reload_on_leaders(
        self, group_id: str, places: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """All leaders succeed but that of partition 7."""
        self.told += places
        return {
            place: ErrorCode.NOT_LEADER_OR_FOLLOWER if place.partition == 7 else ErrorCode.NONE
            for place in self.told
        }

    def tell(self, report: object) -> Reply[object]:
        reply: Reply[object] = Reply()
        self.reports.append((report, reply))
        if len(self.reports) > 1:
            self.told_again.set()
        return reply

    def run_effect(self, instruction: ShareStateEffect) -> None:
        context = EffectContext(0, lambda: self.is_current, self.tell, 0)
        self.keeper.run(instruction, context)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_every_partition_is_initialized_and_the_results_are_reported_together() -> None:
    desk = Desk()
    desk.run_effect(InitializeStates("g", 3, {T: {0: -1, 1: 7}}, 9))
    first, second = desk.asked.values()
    assert list(desk.asked) == [("make", "g", T, 0, 3, -1), ("make", "g", T, 1, 3, 7)]
    second.fail(ApiError(AWAY))
    assert desk.reports == []
    first.resolve(None)
    [(report, _)] = desk.reports
    assert report == StatesInitialized("g", {T: {0: ErrorCode.NONE, 1: AWAY}}, 9)


def test_states_are_deleted_and_topics_without_states_are_reported_too() -> None:
    desk = Desk()
    other = bytes(16)
    desk.run_effect(DeleteStates("g", {T: frozenset({1, 0}), other: frozenset()}, 9))
    assert list(desk.asked) == [("delete", "g", T, 0), ("delete", "g", T, 1)]
    for reply in desk.asked.values():
        reply.resolve(None)
    [(report, _)] = desk.reports
    none = ErrorCode.NONE
    assert report == StatesDeleted("g", {T: {0: none, 1: none}, other: {}}, 9)


def test_a_report_that_was_not_recorded_is_repeated(loop: asyncio.AbstractEventLoop) -> None:
    desk = Desk()

    async def scene() -> None:
        desk.run_effect(DeleteStates("g", {}))
        [(_, refused)] = desk.reports
        refused.fail(ApiError(AWAY))
        async with asyncio.timeout(5):
            await desk.told_again.wait()
        desk.reports[1][1].resolve(None)

    loop.run_until_complete(scene())
    assert [report for report, _ in desk.reports] == [StatesDeleted("g", {})] * 2


def test_nothing_is_reported_to_a_shard_that_has_moved() -> None:
    desk = Desk()
    desk.run_effect(InitializeStates("g", 3, {T: {0: -1}}))
    desk.is_current = False
    for reply in desk.asked.values():
        reply.resolve(None)
    assert desk.reports == []


def test_only_restarted_states_are_reloaded_on_their_leaders() -> None:
    desk = Desk()
    desk.run_effect(RestartStates("g", 3, {T: {0: 5, 1: 6, 7: 8}}))
    assert list(desk.asked) == [("make", "g", T, at, 3, to) for at, to in ((0, 5), (1, 6), (7, 8))]
    for key, reply in desk.asked.items():
        assert desk.told == []
        if key[3] == 1:
            reply.fail(ApiError(AWAY))
        else:
            reply.resolve(None)
    assert desk.told == [TopicIdPartition(T, 0), TopicIdPartition(T, 7)]
    [(report, _)] = desk.reports
    codes = {0: ErrorCode.NONE, 1: AWAY, 7: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert report == StatesRestarted("g", 3, {T: codes})
