"""LeaveGroup of a classic group: members that go, and ids that will not be used.

A request names members one by one and is answered one by one; the group rebalances once for all of
them. An administrator names static members by instance id alone (KIP-345); a reason comes with v5
(KIP-800). Called by `shard`.
"""

from coordinator.group.classic import ClassicGroup, GroupState, Step
from coordinator.group.events import REASON_NOT_PROVIDED, EventKind
from coordinator.outcome import Command
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

SEVERAL_MEMBERS_SINCE = 3


def leave(group: ClassicGroup, command: Command, request: LeaveGroupRequest, step: Step) -> None:
    """LeaveGroup: v0-2 name one member, v3+ several."""
    if command.api_version < SEVERAL_MEMBERS_SINCE:
        error = _leave_one(group, MemberIdentity(member_id=request.member_id), step)
        response = LeaveGroupResponse(error_code=error)
        left_count = int(error is ErrorCode.NONE)
    else:
        members = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=_leave_one(group, identity, step),
            )
            for identity in request.members
        ]
        response = LeaveGroupResponse(members=members)
        left_count = sum(not member.error_code for member in members)
    if left_count and group.state is not GroupState.EMPTY:
        group.rebalance(step, f"{left_count} members left")
    step.reply(command.request_id, response)


def leave_unknown_group(command: Command, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """The answer where there is no such group: nobody is known."""
    error = ErrorCode.UNKNOWN_MEMBER_ID
    if command.api_version < SEVERAL_MEMBERS_SINCE:
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
            for identity in request.members
        ]
    )


def _leave_one(group: ClassicGroup, identity: MemberIdentity, step: Step) -> ErrorCode:
    member_id = identity.member_id
    instance_id = identity.group_instance_id
    if not member_id:
        held_by = group.roster.static_member_id(instance_id) if instance_id is not None else None
        if held_by is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = held_by
    elif member_id in group.pending:
        group.forget_pending(member_id, step)
        return ErrorCode.NONE
    else:
        error = group.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    member = group.roster.get(member_id)
    assert member is not None
    group.remove(member, step)
    reason = identity.reason or REASON_NOT_PROVIDED
    group.events.add(step.now_ms, EventKind.MEMBER_LEFT, member_id, reason)
    return ErrorCode.NONE
