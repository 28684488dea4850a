"""JoinGroup: every response, by version, type of member and state."""

import pytest

from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from tests.support.group_playbook import SESSION_MS, Playbook

STICKY = [("sticky", b"s")]


def limited(size_max: int) -> GroupSettings:
    return GroupSettings(initial_rebalance_delay_ms=0, size_max=size_max)


# -- checks in their order ------------------------------------------------------------------------


def test_an_empty_group_id_is_refused_first() -> None:
    play = Playbook()
    joined = play.join(group="", session_ms=1).joined
    assert joined.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_session_timeouts_outside_the_bounds_are_refused(session_ms: int) -> None:
    play = Playbook()
    joined = play.join(session_ms=session_ms).joined
    assert joined.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert play.list_groups() == {}


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_bounds_are_accepted(session_ms: int) -> None:
    joined = Playbook().join(session_ms=session_ms, version=3).joined
    assert joined.error_code == ErrorCode.NONE


def test_an_unknown_member_id_is_refused_whatever_the_group() -> None:
    play = Playbook()
    assert play.join("x").joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.list_groups() == {}
    [member] = play.stable()
    refused = play.join("x").joined
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.member_id == "x"
    play.leave(MemberIdentity(member_id=member))
    assert play.state() == "Empty"
    assert play.join(member).joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_protocols_must_be_given_and_common() -> None:
    play = Playbook()
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert play.join(protocol_type="").joined.error_code == wrong
    assert play.join(protocols=[]).joined.error_code == wrong
    assert play.list_groups() == {}
    play.stable()
    assert play.join(protocol_type="connect").joined.error_code == wrong
    assert play.join(protocols=STICKY).joined.error_code == wrong
    assert play.join(protocols=[]).joined.error_code == wrong
    play.stable(group="other", protocols=[("range", b""), ("sticky", b"")])
    play.join(play.give_id(group="other"), group="other", protocols=STICKY)
    assert play.join(group="other").joined.error_code == wrong


def test_an_empty_group_takes_any_protocol_type() -> None:
    play = Playbook()
    [member] = play.stable()
    play.leave(MemberIdentity(member_id=member))
    joined = play.join(version=3, protocol_type="connect").joined
    assert joined.error_code == ErrorCode.NONE
    assert joined.protocol_type == "connect"


@pytest.mark.parametrize(("version", "expected"), [(9, None), (7, None), (6, ""), (0, "")])
def test_refusals_have_a_null_protocol_name_from_version_7_on(
    version: int, expected: str | None
) -> None:
    joined = Playbook().join("x", version=version).joined
    assert joined.protocol_name == expected
    assert joined.protocol_type is None
    assert joined.generation_id == -1


@pytest.mark.parametrize("where", ["client", "instance", "protocol", "type"])
def test_a_member_with_texts_too_long_for_a_record_is_refused(where: str) -> None:
    play = Playbook()
    text = "x" * 9_000
    joined = play.join(
        version=5,
        client=text if where == "client" else "c",
        instance=text if where == "instance" else None,
        protocols=[(text, b"")] if where == "protocol" else [("range", b"")],
        protocol_type=text if where == "type" else "consumer",
    ).joined
    assert joined.error_code == ErrorCode.INVALID_REQUEST
    assert play.join(group=text).joined.error_code == ErrorCode.INVALID_GROUP_ID
    assert play.commit({("t", 0): 1}, group=text) == ErrorCode.INVALID_GROUP_ID
    assert play.list_groups() == {}


# -- group.max.size -------------------------------------------------------------------------------


def test_a_full_group_takes_known_members_only() -> None:
    play = Playbook(limited(2))
    first, _ = play.stable(2)
    refused = play.join(version=3).joined
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.member_id == ""
    assert play.state() == "Stable"
    play.join(first)
    assert play.state() == "PreparingRebalance"


def test_a_group_above_a_lowered_limit_refuses_the_last_members() -> None:
    play = Playbook()
    first, second, third = play.stable(3)
    play.shard.settings = limited(2)
    again = play.join(first)
    play.join(second)
    assert play.join(third).joined.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(again.joined.members) == 2


# -- KIP-394 --------------------------------------------------------------------------------------


def test_from_version_4_on_a_member_gets_its_id_first() -> None:
    play = Playbook()
    told = play.join(client="app", version=4).joined
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("app-")
    assert told.generation_id == -1
    assert play.state() == "Empty"
    assert play.join(told.member_id, version=4).joined.error_code == ErrorCode.NONE


def test_before_version_4_a_member_joins_at_once() -> None:
    joined = Playbook().join(client="app", version=3).joined
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("app-")


def test_a_pending_member_expires_after_the_session_timeout() -> None:
    play = Playbook()
    member = play.give_id()
    play.tick(SESSION_MS)
    assert play.join(member).joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.list_groups() == {}


def test_a_join_phase_waits_for_pending_members() -> None:
    play = Playbook()
    [first] = play.stable(session_ms=600_000)
    slow = play.give_id()
    rejoin = play.join(first)
    assert rejoin.is_parked
    play.tick(SESSION_MS)
    assert rejoin.joined.generation_id == 2
    assert play.join(slow).joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_id_cannot_use_a_dynamic_members_id() -> None:
    play = Playbook()
    member = play.give_id()
    joined = play.join(member, instance="i").joined
    assert joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- known members --------------------------------------------------------------------------------


def test_a_repeated_join_during_completing_rebalance_gets_the_same_response() -> None:
    play = Playbook()
    leader = play.join(play.give_id()).joined
    again = play.join(leader.member_id).joined
    assert again == leader
    assert play.state() == "CompletingRebalance"


def test_new_metadata_during_completing_rebalance_starts_another_rebalance() -> None:
    play = Playbook()
    first = play.join(play.give_id()).joined
    second = play.join(first.member_id, protocols=[("range", b"new")]).joined
    assert second.generation_id == 2
    assert second.members[0].metadata == b"new"


def test_a_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    play = Playbook()
    first, second = play.stable(2)
    again = play.join(second).joined
    assert again.generation_id == 2
    assert again.leader == first
    assert again.members == []
    assert play.state() == "Stable"


def test_the_leaders_rejoin_starts_a_rebalance() -> None:
    play = Playbook()
    first, second = play.stable(2)
    leader = play.join(first)
    assert leader.is_parked
    play.join(second)
    assert leader.joined.generation_id == 3


def test_a_followers_new_metadata_starts_a_rebalance() -> None:
    play = Playbook()
    first, second = play.stable(2)
    changed = play.join(second, protocols=[("range", b"new")], reason="new topics")
    leader = play.join(first)
    assert changed.joined.generation_id == 3
    assert [member.metadata for member in leader.joined.members] == [b"range metadata", b"new"]


def test_a_second_join_of_a_waiting_member_answers_the_first() -> None:
    play = Playbook()
    first, second = play.stable(2)
    waiting = play.join(first)
    again = play.join(first)
    assert waiting.joined.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    play.join(second)
    assert again.joined.generation_id == 3


def test_reasons_are_in_the_events() -> None:
    play = Playbook()
    play.join(play.give_id(), reason="started with a good reason")
    group = play.shard.classic.group("g")
    assert group is not None
    reasons = [event.reason for event in group.events.newest()]
    assert "started with a good reason" in reasons


# -- KIP-345 and KIP-814 --------------------------------------------------------------------------


def test_static_members_join_at_once_under_their_instance_id() -> None:
    joined = Playbook().join(instance="i").joined
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("i-")
    assert joined.members[0].group_instance_id == "i"


def test_a_restarted_static_follower_continues_without_a_rebalance() -> None:
    play = Playbook()
    first, second = play.stable(2, instances=["a", "b"])
    restarted = play.join(instance="b").joined
    assert restarted.generation_id == 2
    assert restarted.member_id not in (first, second)
    assert restarted.leader == first
    assert not restarted.skip_assignment
    assert restarted.members == []
    assert play.sync(restarted.member_id, 2, instance="b").synced.assignment == b"1"
    assert play.state() == "Stable"


def test_the_old_id_of_a_restarted_static_member_is_fenced() -> None:
    play = Playbook()
    _, second = play.stable(2, instances=["a", "b"])
    play.join(instance="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert play.heartbeat(second, 2, instance="b") == fenced
    assert play.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.join(second, instance="b").joined.error_code == fenced
    assert play.sync(second, 2, instance="b").synced.error_code == fenced
    commit = play.commit({("t", 0): 1}, member_id=second, generation_id=2, instance="b")
    assert commit == fenced
    left = play.leave(MemberIdentity(member_id=second, group_instance_id="b"))
    assert left.members[0].error_code == fenced


def test_an_unknown_instance_id_is_an_unknown_member() -> None:
    play = Playbook()
    [member] = play.stable()
    assert play.heartbeat(member, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_static_leader_skips_the_assignment() -> None:
    play = Playbook()
    play.stable(2, instances=["a", "b"])
    restarted = play.join(instance="a", version=9).joined
    assert restarted.skip_assignment
    assert restarted.leader == restarted.member_id
    assert len(restarted.members) == 2


def test_a_restarted_static_leader_with_an_old_version_is_no_longer_the_leader() -> None:
    play = Playbook()
    old_leader, _ = play.stable(2, instances=["a", "b"])
    restarted = play.join(instance="a", version=8).joined
    assert not restarted.skip_assignment
    assert restarted.leader == old_leader
    assert restarted.members == []
    assert play.sync(restarted.member_id, 2, instance="a").synced.assignment == b"0"


def test_a_restarted_static_member_is_stored_under_its_new_id() -> None:
    play = Playbook()
    play.stable(2, instances=["a", "b"])
    restarted = play.join(instance="b").joined.member_id
    play.reload()
    assert play.heartbeat(restarted, 2, instance="b") == ErrorCode.NONE


def test_a_restart_that_cannot_be_stored_is_refused() -> None:
    play = Playbook()
    play.stable(2, instances=["a", "b"])
    play.hold_log()
    restarted = play.join(instance="b")
    assert restarted.is_parked
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert restarted.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.state() == "PreparingRebalance"


def test_a_restart_that_changes_the_groups_protocol_starts_a_rebalance() -> None:
    play = Playbook()
    both = [("range", b"r"), ("sticky", b"s")]
    [member] = play.stable(1, instances=["a"], protocols=both)
    restarted = play.join(instance="a", protocols=[("sticky", b"s"), ("range", b"r")]).joined
    assert restarted.generation_id == 2
    assert restarted.protocol_name == "sticky"
    assert restarted.member_id != member


def test_a_restart_during_completing_rebalance_starts_a_rebalance() -> None:
    play = Playbook()
    first = play.join(instance="a").joined
    restarted = play.join(instance="a").joined
    assert restarted.generation_id == 2
    assert restarted.member_id != first.member_id


def test_a_waiting_join_is_fenced_when_its_static_member_restarts() -> None:
    play = Playbook()
    first, _ = play.stable(2, instances=["a", "b"])
    waiting = play.join(first, instance="a")
    assert waiting.is_parked
    play.join(instance="a")
    assert waiting.joined.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert waiting.joined.member_id == first


def test_static_members_that_do_not_rejoin_stay_in_the_group() -> None:
    play = Playbook()
    first, second = play.stable(2, instances=["a", "b"], session_ms=600_000)
    leader = play.join(first, instance="a", session_ms=600_000)
    play.tick(60_000)
    assert leader.joined.generation_id == 3
    assert [member.member_id for member in leader.joined.members] == [first, second]


def test_a_static_member_expires_with_its_session() -> None:
    play = Playbook()
    first, second = play.stable(2, instances=["a", "b"])
    play.tick(SESSION_MS - 1)
    play.heartbeat(first, 2)
    play.tick(1)
    assert play.heartbeat(second, 2, instance="b") == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_join_phase_without_joined_members_waits_for_a_static_member() -> None:
    play = Playbook()
    _, second = play.stable(2, instances=["a", "b"], session_ms=600_000)
    play.leave(MemberIdentity(member_id="", group_instance_id="a"))
    play.tick(60_000)
    assert play.state() == "PreparingRebalance"
    assert play.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert play.join(second, instance="b").joined.generation_id == 3
