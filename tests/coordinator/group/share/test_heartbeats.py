"""ShareGroupHeartbeat, row by row of its table: joining, epochs, leaving."""

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import ShareGroupHeartbeatResponse
from tests.support.share_group_playbook import (
    AT_ONCE,
    SESSION_MS,
    ShareConsumerMember,
    ShareStage,
    settle,
)


def refused(stage: ShareStage, member_id: str, epoch: int, **given: object) -> int:
    call = stage.share_call(member_id, epoch, **given)  # type: ignore[arg-type]  # as it is
    return call.response(ShareGroupHeartbeatResponse).error_code


@pytest.mark.parametrize(
    ("member_id", "epoch", "given"),
    [
        ("", 0, {"topics": ["a"]}),
        ("", 1, {}),
        ("m", 0, {"topics": ["a"], "group": ""}),
        ("m", 0, {"topics": ["a"], "rack": ""}),
        ("m", 0, {"topics": ["a"], "group": " "}),
        (" ", 0, {"topics": ["a"]}),
        ("m", 0, {"topics": []}),
        ("m", 0, {}),
        ("m", -2, {}),
        ("m", 0, {"topics": ["a"], "rack": "r" * 9_000}),
    ],
)
def test_an_invalid_heartbeat_gets_invalid_request(
    member_id: str, epoch: int, given: dict[str, object]
) -> None:
    stage = ShareStage()
    assert refused(stage, member_id, epoch, **given) == ErrorCode.INVALID_REQUEST
    assert stage.list_groups() == {}


def test_a_partition_is_assigned_after_its_state_is_initialized() -> None:
    stage = ShareStage({"a": 3})
    joined = stage.share("m")
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 2)
    assert stage.assigned(joined) == {}
    stage.keep_states()
    response = stage.share("m", 2)
    assert (response.member_epoch, stage.assigned(response)) == (3, {"a": [0, 1, 2]})
    assert stage.assigned(stage.share("m", 3)) is None


def test_members_share_a_partition_if_there_are_more_of_them() -> None:
    stage = ShareStage({"a": 1})
    members = [ShareConsumerMember(stage, name) for name in ("m", "n", "o")]
    settle(stage, *members)
    assert [member.reads for member in members] == [{"a": [0]}] * 3


def test_the_partitions_of_a_leaving_member_are_assigned_to_the_others() -> None:
    stage = ShareStage({"a": 2})
    members = [ShareConsumerMember(stage, name) for name in ("m", "n")]
    settle(stage, *members)
    assert sorted(index for member in members for index in member.reads["a"]) == [0, 1]
    left = stage.share("n", -1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "n", -1)
    settle(stage, members[0])
    assert members[0].reads == {"a": [0, 1]}


def test_a_member_that_has_not_received_its_epoch_gets_it_again_and_does_not_advance() -> None:
    stage = ShareStage({"a": 1})
    stage.share("m")
    stage.keep_states()
    for count in range(2, 6):
        response = stage.share("m", 2)
        assert (response.error_code, response.member_epoch) == (ErrorCode.NONE, 3)
        assert stage.assigned(response) == {"a": [0]}
        stage.topics({"a": count})
        stage.keep_states()
    assert stage.share("m", 3).member_epoch > 4


def test_epochs_are_checked_against_the_members_own_and_its_previous_one() -> None:
    stage = ShareStage()
    stage.share("m")
    stage.keep_states()
    assert stage.share("m", 2).member_epoch == 3
    # The response may have been lost.
    assert stage.share("m", 2).member_epoch == 3
    assert refused(stage, "m", 4) == ErrorCode.FENCED_MEMBER_EPOCH
    stage.share("n")
    assert stage.share("m", 3).member_epoch == 4
    assert refused(stage, "m", 2) == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_rejoins_gets_its_full_assignment() -> None:
    stage = ShareStage({"a": 2})
    member = ShareConsumerMember(stage, "m")
    settle(stage, member)
    again = stage.share("m")
    assert (again.member_epoch, stage.assigned(again)) == (member.epoch, {"a": [0, 1]})


def test_heartbeats_to_missing_groups_get_an_error() -> None:
    stage = ShareStage()
    for epoch in (1, -1):
        assert refused(stage, "m", epoch) == ErrorCode.GROUP_ID_NOT_FOUND
    stage.share("m")
    for epoch in (1, -1):
        assert refused(stage, "n", epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_new_members_and_serves_its_own() -> None:
    stage = ShareStage(settings=GroupSettings(share=ShareGroupSettings(max_size=1)))
    assert stage.share("m").error_code == ErrorCode.NONE
    assert stage.share("n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused(stage, "n", 5) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.share("m", 2).error_code == ErrorCode.NONE


def test_a_changed_subscription_starts_an_epoch_and_changes_the_assignment() -> None:
    stage = ShareStage({"a": 1, "b": 1})
    member = ShareConsumerMember(stage, "m")
    settle(stage, member)
    epoch = stage.shares().epoch
    changed = stage.share("m", member.epoch, topics=["b"])
    assert (changed.member_epoch, stage.assigned(changed)) == (epoch + 1, {})
    stage.keep_states()
    assert stage.assigned(stage.share("m", changed.member_epoch)) == {"b": [0]}


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
    stage = ShareStage()
    stage.share("m")
    stage.share("n")
    stage.tick(SESSION_MS - 1)
    stage.share("n", 3)
    stage.tick(1)
    assert [member_id for member_id, _ in stage.shares().members()] == ["n"]
    assert refused(stage, "m", 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_session_and_interval_of_a_group_are_used() -> None:
    own = {
        "s": ShareGroupSettings(
            session_timeout_ms=50_000, heartbeat_interval_ms=7_000, is_interval_fixed=True
        )
    }
    stage = ShareStage(
        settings=GroupSettings(
            share_overrides=own, share=ShareGroupSettings(assignment_interval_ms=0)
        )
    )
    member = ShareConsumerMember(stage, "m")
    settle(stage, member)
    assert member.send_heartbeat().heartbeat_interval_ms == 7_000
    stage.tick(49_999)
    assert not stage.shares().is_empty
    stage.tick(1)
    assert stage.shares().is_empty


def test_the_heartbeat_interval_is_short_while_states_are_initialized() -> None:
    settings = GroupSettings(
        share=ShareGroupSettings(assignment_interval_ms=0, heartbeat_interval_ms=9_000)
    )
    stage = ShareStage(settings=settings)
    stage.shard.member_count_total = 2_000
    assert stage.share("m").heartbeat_interval_ms == 2_000
    assert stage.share("m", 2).heartbeat_interval_ms == 2_000
    stage.keep_states()
    assert stage.share("m", 2).heartbeat_interval_ms == 2_000
    assert stage.share("m", 3).heartbeat_interval_ms == 9_000


def test_changes_within_an_interval_are_assigned_together() -> None:
    stage = ShareStage(
        {"a": 2}, settings=GroupSettings(share=ShareGroupSettings(assignment_interval_ms=100))
    )
    first = ShareConsumerMember(stage, "m")
    first.send_heartbeat()
    stage.keep_states()
    first.send_heartbeat()
    second, third = ShareConsumerMember(stage, "n"), ShareConsumerMember(stage, "o")
    second.send_heartbeat()
    third.send_heartbeat()
    group = stage.shares()
    assert (group.epoch, group.target_epoch) == (5, 3)
    stage.tick(100)
    assert (group.epoch, group.target_epoch) == (5, 5)
    settle(stage, first, second, third)
    assert {member.epoch for member in (first, second, third)} == {5}
    assert all(member.reads for member in (first, second, third))


def test_a_heartbeat_of_a_stable_member_writes_nothing() -> None:
    stage = ShareStage(settings=AT_ONCE)
    member = ShareConsumerMember(stage, "m")
    settle(stage, member)
    written = len(stage.log)
    member.send_heartbeat()
    assert len(stage.log) == written
