"""LeaveGroup of a classic group, for members and pending members.

Each member of the request has its own error; the group rebalances once for all. An administrator
names static members by instance id only (KIP-345); v5 has reasons (KIP-800). Called by `groups`.
"""

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.unstored_members import UnstoredMembers
from odradek.coordinator.group.events import REASON_NOT_PROVIDED, EventKind
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

SEVERAL_MEMBERS_SINCE = 3


def leave(
    group: ClassicGroup | None,
    command: Command,
    request: LeaveGroupRequest,
    unstored: UnstoredMembers,
    step: GroupStep,
) -> None:
    """LeaveGroup: v0-2 name one member, v3+ several. `group` is None if it does not exist."""
    is_of_one = command.api_version < SEVERAL_MEMBERS_SINCE
    identities = [MemberIdentity(member_id=request.member_id)] if is_of_one else request.members
    members: list[MemberResponse] = []
    left_count = 0
    for identity in identities:
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = _leave_one(group, identity, step)
            left_count += error is ErrorCode.NONE
        if error is ErrorCode.UNKNOWN_MEMBER_ID and unstored.accept_leave(
            identity, command.client_id, step.now_ms
        ):
            error = ErrorCode.NONE
        members.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
        )
    if group is not None and left_count and group.state is not GroupState.EMPTY:
        group.rebalance(step, f"{left_count} members left")
    response = LeaveGroupResponse(members=members)
    if is_of_one:
        response = LeaveGroupResponse(error_code=members[0].error_code)
    step.reply(command.request_id, response)


def _leave_one(group: ClassicGroup, identity: MemberIdentity, step: GroupStep) -> ErrorCode:
    member_id = identity.member_id
    instance_id = identity.group_instance_id
    if not member_id:
        held_by = group.members.static_member_id(instance_id) if instance_id is not None else None
        if held_by is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = held_by
    elif member_id in group.pending:
        group.remove_pending(member_id, step)
        return ErrorCode.NONE
    else:
        error = group.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    member = group.members.get(member_id)
    assert member is not None
    group.remove(member, step)
    reason = identity.reason or REASON_NOT_PROVIDED
    group.events.add(step.now_ms, EventKind.MEMBER_LEFT, member_id, reason)
    return ErrorCode.NONE
