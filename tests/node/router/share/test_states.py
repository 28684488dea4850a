"""Share states are the same wherever one asks, and come back from whatever happens to a shard."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.coordinator.share.batches import RecordState, StateBatch
from odradek.coordinator.share.requests import NOTHING_KNOWN, StateRead, Summary
from odradek.node.router.share.states import ShareStates
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from tests.support.share_room import GROUP, TOPIC, ShareRoom

BATCHES = (
    StateBatch(3, 4, RecordState.ACKNOWLEDGED, 1),
    StateBatch(6, 6, RecordState.AVAILABLE, 2),
)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareRoom]:
    with ShareRoom(tmp_path) as room:
        yield room


@pytest.fixture(params=["here", "there"])
def states(room: ShareRoom, request: pytest.FixtureRequest) -> ShareStates:
    found: ShareStates = getattr(room, request.param)
    return found


def refusal(room: ShareRoom, *reply: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        room.result(*reply)  # type: ignore[arg-type]  # of whatever
    return raised.value.code


def test_what_is_written_is_read(room: ShareRoom, states: ShareStates) -> None:
    name = GROUP, room.topic_id, 1
    room.result(states.initialize(*name, 1, 0))
    assert room.result(states.read(*name, 0)) == StateRead(1, 0, ())
    room.result(states.write(*name, 1, 0, 2, 3, BATCHES))
    assert room.result(states.read(*name, 0)) == StateRead(1, 2, BATCHES)
    expected = {(room.topic_id, 1): Summary(1, 0, 2, 3), (room.topic_id, 2): NOTHING_KNOWN}
    assert (
        room.result(states.summaries(GROUP, [(room.topic_id, 1), (room.topic_id, 2)])) == expected
    )
    room.result(states.delete(*name))
    assert refusal(room, states.read(*name, 0)) == ErrorCode.INVALID_REQUEST


def test_both_nodes_see_the_same(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 0
    room.result(room.there.initialize(*name, 1, 5))
    room.result(room.here.write(*name, 1, 0, 6, 0, BATCHES[1:]))
    assert room.result(room.there.read(*name, 0)) == StateRead(1, 6, BATCHES[1:])


def test_refusals_are_handed_on_with_their_words(room: ShareRoom, states: ShareStates) -> None:
    name = GROUP, room.topic_id, 1
    room.result(states.initialize(*name, 2, 0))
    room.result(states.read(*name, 4))
    assert refusal(room, states.read(*name, 3)) == ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(room, states.write(*name, 2, 3, 1, 0, ())) == ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(ApiError, match="state epoch is 2") as raised:
        room.result(states.write(*name, 1, 4, 1, 0, ()))
    assert raised.value.code == ErrorCode.FENCED_STATE_EPOCH
    stranger = GROUP, b"\1" * 16, 0
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(room, states.initialize(*stranger, 1, 0)) == expected
    assert room.result(states.summaries(GROUP, [stranger[1:]])) == {stranger[1:]: expected}


def test_nothing_asked_is_nothing_answered(room: ShareRoom) -> None:
    assert room.result(room.here.summaries(GROUP, [])) == {}


def test_one_turns_writes_travel_together(room: ShareRoom) -> None:
    other = room.have_topic("other", 2, 2)
    names = [(GROUP, topic, at) for at in (1, 0) for topic in (room.topic_id, other)]
    for name in names:
        room.result(room.there.initialize(*name, 1, 0))
    room.passage.asked.clear()
    replies = [
        room.there.write(*name, 1, 0, at, -1, ())
        for at, name in enumerate([*names, *names], start=1)
    ]
    for reply in replies:
        room.result(reply)
    [request] = room.passage.asked
    assert isinstance(request, WriteShareGroupStateRequest)
    # Two writes of one share-partition stay two, in their order.
    assert sum(len(topic.partitions) for topic in request.topics) == 8
    for at, name in enumerate(names, start=5):
        assert room.result(room.there.read(*name, 0)).start_offset == at


def test_the_topic_is_made_when_it_is_first_needed(tmp_path: Path) -> None:
    with ShareRoom(tmp_path, has_states=False) as room:
        name = GROUP, room.topic_id, 1
        first, second = room.here.initialize(*name, 1, 0), room.there.initialize(*name, 1, 0)
        room.result(first)
        room.result(second)
        assert room.result(room.here.read(*name, 0)) == StateRead(1, 0, ())


def test_a_request_that_is_lost_is_asked_again(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 1
    room.passage.lost_requests = 3
    room.result(room.there.initialize(*name, 1, 0))
    assert len(room.passage.asked) == 4


def test_an_answer_that_is_lost_does_no_harm(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 1
    room.passage.lost_answers = 2
    room.result(room.there.initialize(*name, 1, 0))
    room.passage.lost_answers = 2
    room.result(room.there.write(*name, 1, 0, 2, 3, BATCHES))
    room.passage.lost_answers = 1
    assert room.result(room.there.read(*name, 2)) == StateRead(1, 2, BATCHES)
    assert [type(request) for request in room.passage.asked[-2:]] == [
        ReadShareGroupStateRequest
    ] * 2


def test_what_was_acknowledged_outlives_the_router(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 2
    room.result(room.there.initialize(*name, 1, 0))
    room.result(room.there.write(*name, 1, 0, 2, 3, BATCHES))
    room.restart_router()
    # Asked while the shard loads.
    assert room.result(room.there.read(*name, 0)) == StateRead(1, 2, BATCHES)
    assert room.result(room.here.read(*name, 0)) == StateRead(1, 2, BATCHES)


def test_a_worker_that_is_away_is_waited_for(room: ShareRoom, states: ShareStates) -> None:
    name = GROUP, room.topic_id, 0
    room.result(states.initialize(*name, 1, 0))
    room.bus.is_away = True
    reply = states.write(*name, 1, 0, 2, 3, BATCHES)
    room.turn_loop(0.05)
    assert not reply.is_done
    room.bus.come_back()
    room.result(reply)


def test_nobody_is_asked_any_more_at_the_end(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 1
    room.passage.lost_requests = 1_000
    reply = room.there.initialize(*name, 1, 0)
    room.turn_loop(0.02)
    room.there.close()
    assert refusal(room, reply) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_deleted_topic_is_forgotten(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 1
    room.result(room.here.initialize(*name, 1, 0))
    room.drop_topic(TOPIC)
    assert refusal(room, room.here.read(*name, 0)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    room.restart_router()
    room.loop.run_until_complete(asyncio.sleep(0.05))
    assert not any(len(shard.states) for shard in room.shards())


def test_a_partition_that_is_not_there_is_not_waited_for(
    room: ShareRoom, states: ShareStates
) -> None:
    reply = states.read(GROUP, room.topic_id, 99, 0)
    room.turn_loop(0.2)
    assert reply.is_done
    assert refusal(room, reply) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_is_named_often_is_asked_for_once(room: ShareRoom) -> None:
    name = room.topic_id, 0
    room.result(room.there.summaries(GROUP, [name] * 5))
    [request] = room.passage.asked
    assert isinstance(request, ReadShareGroupStateSummaryRequest)
    [topic] = request.topics
    assert len(topic.partitions) == 1
