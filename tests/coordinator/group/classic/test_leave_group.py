"""LeaveGroup: one member and several, static and pending ones."""

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.support.group_playbook import Playbook


def leave_old(play: Playbook, member_id: str, *, group: str = "g") -> int:
    """LeaveGroup v2: one member, one error."""
    request = LeaveGroupRequest(group_id=group, member_id=member_id)
    response = play.ask(request, version=2).response(LeaveGroupResponse)
    assert response.members == []
    return response.error_code


def test_old_versions_name_one_member_and_get_a_top_level_error() -> None:
    play = Playbook()
    [member] = play.stable()
    assert leave_old(play, "x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave_old(play, member, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave_old(play, member, group="") == ErrorCode.INVALID_GROUP_ID
    assert leave_old(play, member) == ErrorCode.NONE
    assert play.state() == "Empty"


def test_the_last_leave_empties_the_group_and_keeps_its_offsets() -> None:
    play = Playbook()
    [member] = play.stable()
    play.commit({("t", 0): 5}, member_id=member, generation_id=1)
    left = play.leave(MemberIdentity(member_id=member, reason="closing"))
    assert left.error_code == ErrorCode.NONE
    assert [answer.error_code for answer in left.members] == [ErrorCode.NONE]
    assert play.state() == "Empty"
    assert play.fetch("t", 0).committed_offset == 5
    assert play.generation() == 2
    assert "member left" in play.explain()


def test_a_leave_starts_a_rebalance() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.leave(MemberIdentity(member_id=first))
    assert play.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = play.join(second).joined
    assert joined.leader == second
    assert joined.generation_id == 3


def test_several_members_have_one_error_each() -> None:
    play = Playbook()
    first, second, third = play.stable(3)
    left = play.leave(
        MemberIdentity(member_id=first),
        MemberIdentity(member_id="x"),
        MemberIdentity(member_id=second, group_instance_id="i"),
    )
    assert [answer.error_code for answer in left.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert [answer.member_id for answer in left.members] == [first, "x", second]
    play.join(second)
    assert play.join(third).joined.generation_id == 4


def test_an_administrator_removes_static_members_by_instance_id() -> None:
    play = Playbook()
    first, _ = play.stable(2, instances=["a", "b"])
    left = play.leave(
        MemberIdentity(member_id="", group_instance_id="b"),
        MemberIdentity(member_id="", group_instance_id="c"),
        MemberIdentity(member_id=""),
    )
    assert [answer.error_code for answer in left.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert play.heartbeat(first, 2, instance="a") == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_pending_member_may_leave() -> None:
    play = Playbook()
    [first] = play.stable()
    pending = play.give_id()
    rejoin = play.join(first)
    assert rejoin.is_parked
    left = play.leave(MemberIdentity(member_id=pending))
    assert left.members[0].error_code == ErrorCode.NONE
    assert rejoin.joined.generation_id == 2
    assert play.join(pending).joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_an_unknown_group_has_an_error_for_every_member() -> None:
    play = Playbook()
    left = play.leave(MemberIdentity(member_id="x"), MemberIdentity(member_id="y"), group="no")
    assert left.error_code == ErrorCode.NONE
    assert [answer.error_code for answer in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_parked_requests_of_a_member_that_leaves_are_answered() -> None:
    play = Playbook()
    first, second = play.stable(2)
    joining = play.join(first)
    play.leave(MemberIdentity(member_id=first))
    assert joining.joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    third = play.join(play.give_id())
    play.join(second)
    waiting = play.sync(third.joined.member_id, 3)
    play.leave(MemberIdentity(member_id=third.joined.member_id))
    assert waiting.synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_response_waits_until_the_empty_group_is_stored() -> None:
    play = Playbook()
    [member] = play.stable()
    play.hold_log()
    call = play.leave_call(MemberIdentity(member_id=member))
    assert call.is_parked
    play.release_log()
    assert call.response(LeaveGroupResponse).error_code == ErrorCode.NONE
