"""Live rewinds of share groups: a new state epoch, and the leaders that load it."""

from odradek.coordinator.group.events import EventKind
from odradek.coordinator.group.rewind.requests import (
    CANCEL,
    RewindGroup,
    RewindPosition,
    RewindResult,
)
from odradek.coordinator.group.share.requests import RestartStates, StatesRestarted
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID
from tests.support.consumer_playbook import id_of
from tests.support.group_playbook import GroupCall
from tests.support.rewind_playbook import END
from tests.support.share_group_playbook import ShareStage


def share_stage() -> ShareStage:
    stage = ShareStage({"a": 2})
    stage.share("m")
    stage.keep_states()
    return stage


def share_rewind(stage: ShareStage, to: int) -> GroupCall:
    positions = (
        RewindPosition(
            topic="a",
            topic_id=id_of("a"),
            partition=1,
            start_offset=0,
            end_offset=END,
            offset=to,
            previous=10,
        ),
    )
    request = RewindGroup(group_id="s", rewind_id=b"1" * 16, positions=positions)
    return stage.ask(request)


def restarted(stage: ShareStage, code: ErrorCode = ErrorCode.NONE) -> RestartStates:
    """The requested restart, which succeeds or fails with `code`."""
    [asked] = [sent for sent in stage.sent if isinstance(sent, RestartStates)]
    stage.sent.clear()
    outcomes = {topic_id: dict.fromkeys(at, code) for topic_id, at in asked.topics.items()}
    stage.ask(StatesRestarted(asked.group_id, asked.state_epoch, outcomes))
    return asked


def test_a_rewind_restarts_a_share_group_in_a_higher_state_epoch() -> None:
    """B.14: "set start offset with state epoch +1 per partition"."""
    stage = share_stage()
    before = stage.states["s", id_of("a"), 1][0]
    call = share_rewind(stage, 3)
    assert call.is_parked
    asked = restarted(stage)
    assert asked.topics == {id_of("a"): {1: 3}}
    assert asked.state_epoch > before
    (move,) = call.response(RewindResult).moves
    assert (move.previous, move.offset) == (10, 3)
    assert share_rewind(stage, 3).response(RewindResult).moves == (move,)
    points = stage.shard.rewinds.undo_points("s")
    undone = share_rewind_back(stage, max(points))
    assert restarted(stage).topics == {id_of("a"): {1: 10}}
    assert undone.response(RewindResult).error_code is ErrorCode.NONE
    assert not stage.shard.rewinds.undo_points("s")


def test_a_rewind_is_among_the_events_of_a_share_group() -> None:
    stage = share_stage()
    share_rewind(stage, 3)
    restarted(stage)
    events = stage.explained("s").events
    assert [
        event.kind
        for event in events
        if event.kind in (EventKind.REWIND_STARTED, EventKind.REWOUND)
    ] == [
        EventKind.REWIND_STARTED,
        EventKind.REWOUND,
    ]
    assert any(event.reason.endswith(": live rewind") for event in events)


def share_rewind_back(stage: ShareStage, number: int) -> GroupCall:
    (move,) = stage.shard.rewinds.undo_points("s")[number].moves
    at = RewindPosition(
        topic="a",
        topic_id=id_of("a"),
        partition=1,
        start_offset=0,
        end_offset=END,
        offset=move.previous,
        previous=3,
    )
    return stage.ask(RewindGroup(group_id="s", rewind_id=b"2" * 16, positions=(at,), undoes=number))


def test_a_failed_restart_is_retried() -> None:
    stage = share_stage()
    call = share_rewind(stage, 3)
    first = restarted(stage, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert call.is_parked
    stage.tick(1_000)
    second = restarted(stage)
    assert second.state_epoch > first.state_epoch
    assert call.response(RewindResult).error_code is ErrorCode.NONE


def test_a_loaded_shard_restarts_a_share_group_with_a_pending_rewind() -> None:
    stage = share_stage()
    share_rewind(stage, 3)
    stage.reload()
    stage.tick(1)
    again = share_rewind(stage, 3)
    assert restarted(stage).topics == {id_of("a"): {1: 3}}
    assert again.response(RewindResult).error_code is ErrorCode.NONE
    assert len(stage.shard.rewinds.undo_points("s")) == 1


def test_the_rewind_of_a_share_group_cannot_be_cancelled() -> None:
    stage = share_stage()
    share_rewind(stage, 3)
    withdrawal = stage.ask(
        RewindGroup(group_id="s", rewind_id=ZERO_UUID, positions=(), undoes=CANCEL)
    )
    assert withdrawal.response(RewindResult).error_code is ErrorCode.INVALID_REQUEST
