"""ShareGroupHeartbeat: join, continue, leave (KIP-932, v1).

The member epoch of the request against the known one, in Kafka's order of checks (an invalid
request gets INVALID_REQUEST before):

| Epoch | Member | Result |
|---|---|---|
| 0 | unknown, group not full | new member, group epoch + 1 |
| 0 | unknown, group full | GROUP_MAX_SIZE_REACHED |
| 0 | known | continues, and gets its full assignment |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | epoch is its own | continues |
| > 0 | epoch is its previous one | gets the lost response again |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | removed, group epoch + 1 |
| -1 | unknown | UNKNOWN_MEMBER_ID |

"Continues" means: store changes of the member, start a group epoch if its subscription has changed,
and assign its target at once, as no member has to revoke anything first. A member whose session
ends is removed as if it had left. Called by `share.groups`.
"""

from odradek.coordinator.group.modern.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    ResolvedMember,
    check_group_size,
    check_texts,
    heartbeat_assignment,
    heartbeat_interval_ms,
    resolve_member,
    schedule_session_timeout,
    store_member,
    with_sent,
)
from odradek.coordinator.group.modern.target_assignment import assignment_due_ms
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareGroupMember,
)
from odradek.coordinator.group.share.target_assignment import ShareTargetAssignmentBuilder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import Partitions
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


def check(request: ShareGroupHeartbeatRequest) -> None:
    """Validate the fields of the request; ApiError if they are invalid."""
    violation = None
    if not request.member_id.strip():
        violation = "MemberId can't be empty."
    elif not request.group_id.strip():
        violation = "GroupId can't be empty."
    elif request.rack_id is not None and not request.rack_id.strip():
        violation = "RackId can't be empty."
    elif request.member_epoch == JOIN_GROUP_EPOCH and not request.subscribed_topic_names:
        violation = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < LEAVE_GROUP_EPOCH:
        violation = "MemberEpoch is invalid."
    violation = violation or check_texts(request.group_id, request.member_id, request.rack_id)
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)


# -- joining and continuing -----------------------------------------------------------------------


def heartbeat(
    group: ShareGroup, command: Command, request: ShareGroupHeartbeatRequest, step: GroupStep
) -> ShareGroupHeartbeatResponse:
    """A validated heartbeat of a member that joins or continues. ApiError if it is refused."""
    member_id = request.member_id
    if group.member(member_id) is None:
        check_group_size(group, step)
    resolved: ResolvedMember[ShareGroupMember, ShareCurrentAssignment] = resolve_member(
        group, member_id, request.member_epoch, None, step, is_retry=lambda _: True
    )
    before = resolved.current
    member = _updated(resolved.member, command, request)
    epoch, target = _update_member(group, resolved, member, step)
    current = before
    # A member that has not received its epoch does not advance: several responses may be lost.
    has_epoch = request.member_epoch in (JOIN_GROUP_EPOCH, before.member_epoch)
    if has_epoch and (
        resolved.member is None or before.member_epoch != epoch or before.assigned != target
    ):
        is_same = epoch == before.member_epoch
        previous = before.previous_member_epoch if is_same else before.member_epoch
        current = ShareCurrentAssignment(epoch, previous, assigned=target)
        step.records.append(ShareCurrentRecord(group.group_id, member_id, current))
    schedule_session_timeout(group, member_id, member, step)
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms(
            group,
            step,
            is_busy=bool(step.records or group.states.initializing)
            or group.epoch > current.member_epoch,
        ),
    )
    is_full = request.member_epoch == JOIN_GROUP_EPOCH or request.subscribed_topic_names is not None
    is_new = current is not before and current.assigned != before.assigned
    if is_full or not has_epoch or is_new:
        response.assignment = heartbeat_assignment(current.assigned)
    return response


def _update_member(
    group: ShareGroup,
    resolved: ResolvedMember[ShareGroupMember, ShareCurrentAssignment],
    member: ShareGroupMember,
    step: GroupStep,
) -> tuple[int, Partitions]:
    """Write the changes of the member and of its group; returns epoch and target."""
    known, member_id = resolved.member, resolved.member_id
    is_changed = member is not known and member != known
    goal = group.target_epoch, group.target(member_id)
    if not is_changed and (group.epoch <= goal[0] or step.now_ms < assignment_due_ms(group, step)):
        return goal
    builder = ShareTargetAssignmentBuilder(group)
    if is_changed:
        store_member(builder, resolved, member, step)
    needs_epoch = known is None or known.topic_names != member.topic_names
    epoch = builder.start_epoch(step) if needs_epoch else group.stored_epoch
    targets = builder.assign_if_due(epoch, step)
    return goal if targets is None else (epoch.epoch, targets[member_id])


def _updated(
    member: ShareGroupMember | None, command: Command, request: ShareGroupHeartbeatRequest
) -> ShareGroupMember:
    """The member with the fields of the request; null stands for no change."""
    if (
        member is not None
        and request.subscribed_topic_names is None
        and request.rack_id is None
        and command.client_id == member.client_id
        and command.client_host == member.client_host
    ):
        return member
    names = request.subscribed_topic_names
    return with_sent(
        member or ShareGroupMember(),
        command,
        rack_id=request.rack_id,
        topic_names=None if names is None else tuple(sorted(set(names))),
    )
