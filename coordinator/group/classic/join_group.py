"""JoinGroup of a classic group: which member joins, with which id, and whether it rebalances.

The checks are in Kafka's order, because clients depend on the error that they get: size, protocols,
membership. This is the row "join" of the table in `group`. Called by `groups`.
"""

from odradek.coordinator.group.classic.group import (
    ClassicGroup,
    GroupState,
    join_error,
    session_key,
)
from odradek.coordinator.group.classic.members import ClassicGroupMember, protocols_of
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.events import REASON_NOT_PROVIDED, EventKind
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse

_REQUIRES_KNOWN_ID_SINCE = 4
_SKIP_ASSIGNMENT_SINCE = 9


def join(
    group: ClassicGroup,
    command: Command,
    request: JoinGroupRequest,
    step: GroupStep,
    *,
    is_unstored: bool = False,
) -> None:
    """JoinGroup; the caller has checked the group id and the session timeout.

    `is_unstored`: a previous coordinator may have generated the member id (see `unstored_members`).
    """
    member_id = request.member_id
    if not _has_room_for(group, member_id, step.settings):
        _refuse_for_size(group, command, member_id, step)
    elif not _supports(group, request):
        _refuse(command, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id, step)
    elif not _can_be_stored(command, request):
        _refuse(command, ErrorCode.INVALID_REQUEST, member_id, step)
    elif not member_id:
        _join_new(group, command, request, step)
    elif _is_expected(group, request, is_unstored=is_unstored):
        _add(group, member_id, command, request, step)
    else:
        _join_known(group, command, request, step)


def _is_expected(group: ClassicGroup, request: JoinGroupRequest, *, is_unstored: bool) -> bool:
    """Whether the client joins with a member id that was generated for it."""
    if request.member_id in group.pending and request.group_instance_id is None:
        return True
    error = group.member_error(request.member_id, request.group_instance_id)
    return is_unstored and error is ErrorCode.UNKNOWN_MEMBER_ID


def _refuse(command: Command, error_code: ErrorCode, member_id: str, step: GroupStep) -> None:
    step.reply(command.request_id, join_error(command, error_code, member_id))


def _has_room_for(group: ClassicGroup, member_id: str, settings: GroupSettings) -> bool:
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # Count the joined members: a group above a lowered limit refuses the last ones.
        member = group.members.get(member_id)
        is_in = member is not None and member.is_joining
        return is_in or group.members.joining_count < settings.size_max
    return member_id in group.members or len(group.members) < settings.size_max


def _refuse_for_size(
    group: ClassicGroup, command: Command, member_id: str, step: GroupStep
) -> None:
    group.remove_pending(member_id, step)
    member = group.members.get(member_id)
    if member is not None:
        group.remove(member, step)
    _refuse(command, ErrorCode.GROUP_MAX_SIZE_REACHED, "", step)
    if group.state is GroupState.PREPARING_REBALANCE:
        group.complete_if_all_joined(step)


def _supports(group: ClassicGroup, request: JoinGroupRequest) -> bool:
    if group.state is GroupState.EMPTY:
        return bool(request.protocol_type) and bool(request.protocols)
    names = [protocol.name for protocol in request.protocols]
    return request.protocol_type == group.protocol_type and group.members.has_common(names)


def _can_be_stored(command: Command, request: JoinGroupRequest) -> bool:
    """Whether the member fits into a record: otherwise no generation could be stored."""
    texts = [command.client_id, request.group_instance_id or "", request.protocol_type]
    texts += (protocol.name for protocol in request.protocols)
    return all(len(text) <= TEXT_LENGTH_MAX for text in texts)


def generated_member_id(command: Command, request: JoinGroupRequest) -> str:
    """The id of a new member: its client id or instance id, and a UUID."""
    instance_id = request.group_instance_id
    prefix = command.client_id if instance_id is None else instance_id
    return f"{prefix}-{command.fresh_id}"


def _join_new(
    group: ClassicGroup, command: Command, request: JoinGroupRequest, step: GroupStep
) -> None:
    instance_id = request.group_instance_id
    member_id = generated_member_id(command, request)
    if instance_id is not None:
        known_id = group.members.static_member_id(instance_id)
        known = group.members.get(known_id) if known_id is not None else None
        if known is not None:
            _replace_static(group, known, member_id, command, request, step)
        else:
            _add(group, member_id, command, request, step)
    elif command.api_version >= _REQUIRES_KNOWN_ID_SINCE:
        group.pending.add(member_id)
        step.set_timer(
            session_key(group.group_id, member_id), step.now_ms + request.session_timeout_ms
        )
        _refuse(command, ErrorCode.MEMBER_ID_REQUIRED, member_id, step)
    else:
        _add(group, member_id, command, request, step)


def _join_known(
    group: ClassicGroup, command: Command, request: JoinGroupRequest, step: GroupStep
) -> None:
    error = group.member_error(request.member_id, request.group_instance_id)
    member = group.members.get(request.member_id)
    if member is None or error is not ErrorCode.NONE:
        _refuse(command, error, request.member_id, step)
        return
    is_same = member.protocols == protocols_of(request.protocols)
    is_leader = group.members.leader_id == member.member_id
    # In CompletingRebalance it has not received the response to its JoinGroup. In Stable a follower
    # with the same metadata gets the current generation; a leader starts a rebalance.
    is_settled = group.state is GroupState.COMPLETING_REBALANCE or (
        group.state is GroupState.STABLE and not is_leader
    )
    if is_same and is_settled:
        group.refresh(member, step)
        step.reply(command.request_id, group.joined_response(member))
        return
    group.members.update(member, command, request)
    group.park_join(member, command, step)
    reason = request.reason or REASON_NOT_PROVIDED
    step_reason = "the leader joined again" if is_same else "a member changed its metadata"
    group.events.add(step.now_ms, EventKind.MEMBER_REJOINED, member.member_id, reason)
    group.rebalance(step, f"{step_reason}: {reason}")


def _add(
    group: ClassicGroup,
    member_id: str,
    command: Command,
    request: JoinGroupRequest,
    step: GroupStep,
) -> None:
    member = ClassicGroupMember.of_request(member_id, command, request)
    member.is_new = True
    if not len(group.members):
        group.protocol_type = request.protocol_type
    group.pending.discard(member_id)
    group.members.add(member)
    group.last_joined_ms = step.now_ms
    group.park_join(member, command, step)
    # Limit the wait of a new member, because its client may join again with another id.
    deadline_ms = step.now_ms + step.settings.new_member_join_timeout_ms
    step.set_timer(session_key(group.group_id, member_id), deadline_ms)
    reason = request.reason or REASON_NOT_PROVIDED
    group.events.add(step.now_ms, EventKind.MEMBER_JOINED, member_id, reason)
    group.rebalance(step, f"a member joined: {reason}")


def _replace_static(
    group: ClassicGroup,
    member: ClassicGroupMember,
    new_id: str,
    command: Command,
    request: JoinGroupRequest,
    step: GroupStep,
) -> None:
    """A static member has restarted; requests with its old id are fenced (KIP-345)."""
    old_leader_id = group.members.leader_id
    group.answer_parked(member, ErrorCode.FENCED_INSTANCE_ID, step)
    group.rename(member, new_id, step)
    group.members.update(member, command, request)
    group.refresh(member, step)
    reason = request.reason or REASON_NOT_PROVIDED
    group.events.add(step.now_ms, EventKind.MEMBER_REPLACED, new_id, reason)
    if group.state is GroupState.STABLE and group.protocol_name == group.members.select_protocol():
        # Only its id has changed: the generation stays.
        step.records.append(GroupMetadataRecord(group.group_id, group.to_metadata()))
        response = _restarted_response(group, member, command, old_leader_id)
        step.reply(command.request_id, response)
        return
    group.park_join(member, command, step)
    group.rebalance(step, f"a static member restarted: {reason}")


def _restarted_response(
    group: ClassicGroup, member: ClassicGroupMember, command: Command, old_leader_id: str | None
) -> JoinGroupResponse:
    """The assignment is kept: a restarted leader must not assign again."""
    response = group.joined_response(member)
    if command.api_version >= _SKIP_ASSIGNMENT_SINCE:
        response.skip_assignment = group.members.leader_id == member.member_id
    else:
        # Older clients do not know skip_assignment (KIP-814). A member that is not the leader does
        # not assign.
        response.leader = old_leader_id or ""
        response.members = []
    return response
