"""Validation of rewinds, and its error messages."""

import pytest

from odradek.coordinator.group.rewind.requests import RewindGroup, RewindPosition, RewindResult
from odradek.coordinator.group.rewind.rewind_tables import MOVE_COUNT_MAX
from odradek.coordinator.group.streams.records import TasksTuple
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from odradek.protocol.types import ZERO_UUID
from tests.support.consumer_playbook import id_of
from tests.support.rewind_playbook import TOPIC, RewindStage
from tests.support.streams_playbook import REBALANCE_TIMEOUT_MS, StreamsStage, word_count

A0 = (TOPIC, 0)


@pytest.fixture
def stage() -> RewindStage:
    stage = RewindStage()
    stage.commit({A0: 7})
    return stage


def test_a_rewind_without_partitions_is_invalid(stage: RewindStage) -> None:
    assert stage.rewind({}).error_code is ErrorCode.INVALID_REQUEST


def test_too_many_partitions_are_invalid(stage: RewindStage) -> None:
    refused = stage.rewind({(TOPIC, index): 0 for index in range(MOVE_COUNT_MAX + 1)})
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert "2001 partitions; the limit is 2000" in (refused.error_message or "")


def test_a_partition_has_one_position(stage: RewindStage) -> None:
    (call,) = (stage.rewind_call({A0: 3}, dry_run=True),)
    assert call.response(RewindResult).error_code is ErrorCode.NONE
    request = RewindGroup(group_id="g", rewind_id=ZERO_UUID, positions=())
    assert stage.ask(request).response(RewindResult).error_code is ErrorCode.INVALID_REQUEST


def test_a_plan_has_previous_and_next_offsets(stage: RewindStage) -> None:
    plan = stage.rewind({A0: 3, (TOPIC, 1): 4}, dry_run=True)
    assert [(move.previous, move.offset) for move in plan.moves] == [(7, 3), (-1, 4)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_streams_group_with_members_is_refused(dry_run: bool) -> None:
    stage = StreamsStage()
    stage.commit({("in", 0): 7})
    joined = stage.streams_call(
        "m", plan=word_count(), owned=TasksTuple(), process="p", timeout_ms=REBALANCE_TIMEOUT_MS
    )
    assert not joined.response(StreamsHeartbeatResult).response.error_code
    refused = stage.ask(_to_beginning("in", dry_run=dry_run)).response(RewindResult)
    assert refused.error_code is ErrorCode.NON_EMPTY_GROUP
    assert "Stop every instance" in (refused.error_message or "")
    left = stage.streams_call("m", -1).response(StreamsHeartbeatResult)
    assert not left.response.error_code
    rewound = stage.ask(_to_beginning("in", dry_run=dry_run)).response(RewindResult)
    assert [(move.previous, move.offset) for move in rewound.moves] == [(7, 0)]


def test_kafka_streams_in_a_classic_group_is_refused(stage: RewindStage) -> None:
    """A member keeps its state stores, whichever protocol it speaks."""
    member = stage.join(protocols=[("stream", b"")])
    member = stage.join(member.joined.member_id, protocols=[("stream", b"")])
    refused = stage.ask(_to_beginning(TOPIC)).response(RewindResult)
    assert refused.error_code is ErrorCode.NON_EMPTY_GROUP
    assert "Stop every instance" in (refused.error_message or "")
    stage.leave(MemberIdentity(member_id=member.joined.member_id))
    assert stage.ask(_to_beginning(TOPIC)).response(RewindResult).error_code is ErrorCode.NONE


def _to_beginning(topic: str, *, dry_run: bool = False) -> RewindGroup:
    at = RewindPosition(
        topic=topic, topic_id=id_of(topic), partition=0, start_offset=0, end_offset=99, offset=0
    )
    return RewindGroup(group_id="g", rewind_id=ZERO_UUID, positions=(at,), is_dry_run=dry_run)
