"""ShareGroupHeartbeat: join, go on, leave (KIP-932, v1).

The member's epoch against what is known, in Kafka's order of checks (a request that breaks a rule
of the message itself gets INVALID_REQUEST before):

| Epoch | Member | Answer |
|---|---|---|
| 0 | unknown, room | new member, group epoch + 1 |
| 0 | unknown, no room | GROUP_MAX_SIZE_REACHED |
| 0 | known | goes on where it was, and is told its whole assignment |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | epoch is its own | goes on |
| > 0 | epoch is its previous one | an answer was lost: told again |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | gone, group epoch + 1 |
| -1 | unknown | UNKNOWN_MEMBER_ID |

"Goes on" is: take over what the member says anew, start a group epoch if its subscription changed,
and give it its target: there is nothing that others would have to give up first. A member whose
session ends is removed as if it had left. Called by `share.groups`.
"""

from collections.abc import Collection

from odradek.coordinator.group.consumer.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    fair_heartbeat_interval,
    is_blank_text,
)
from odradek.coordinator.group.modern.member_checks import unknown_member
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareGroupMember,
    ShareMemberRecord,
)
from odradek.coordinator.group.share.target_assignment import (
    ShareTargetAssignmentBuilder,
    assign_if_due,
    forget_member,
    is_due,
    session_key,
    start_epoch,
)
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.topics import (
    Partitions,
)
from odradek.coordinator.outcome import Command
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)


def check(request: ShareGroupHeartbeatRequest) -> None:
    """Whether the request is one at all; else ApiError."""
    violation = None
    if is_blank_text(request.member_id):
        violation = "MemberId can't be empty."
    elif is_blank_text(request.group_id):
        violation = "GroupId can't be empty."
    elif is_blank_text(request.rack_id):
        violation = "RackId can't be empty."
    elif request.member_epoch == JOIN_GROUP_EPOCH and not request.subscribed_topic_names:
        violation = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < LEAVE_GROUP_EPOCH:
        violation = "MemberEpoch is invalid."
    if violation is None and (
        len(request.group_id) > TEXT_LENGTH_MAX
        or len(request.member_id) > TEXT_LENGTH_MAX
        or len(request.rack_id or "") > TEXT_LENGTH_MAX
    ):
        violation = f"A text of more than {TEXT_LENGTH_MAX} letters cannot be stored."
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)


# -- joining and going on -------------------------------------------------------------------------


def heartbeat(
    group: ShareGroup, command: Command, request: ShareGroupHeartbeatRequest, step: GroupStep
) -> ShareGroupHeartbeatResponse:
    """A checked heartbeat of a member that joins or is there. ApiError if it is refused."""
    member_id = request.member_id
    known = group.member(member_id)
    if known is None:
        _check_new_member(group, request, step.settings.share.max_size)
    before = group.current(member_id)
    _check_epoch(request.member_epoch, before)
    member = _updated(known, command, request)
    epoch, target = _update_member(group, member_id, known, member, step)
    current = before
    # Who has not heard of its epoch comes no further, so that several answers may be lost in a row.
    has_heard = request.member_epoch in (JOIN_GROUP_EPOCH, before.member_epoch)
    if has_heard and (known is None or before.member_epoch != epoch or before.assigned != target):
        current = ShareCurrentAssignment(epoch, before.member_epoch, target)
        if epoch == before.member_epoch:
            current = ShareCurrentAssignment(epoch, before.previous_member_epoch, target)
        step.records.append(ShareCurrentRecord(group.group_id, member_id, current))
    refresh(group, member_id, step)
    settings = step.settings.share_of(group.group_id)
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=fair_heartbeat_interval(
            step,
            is_busy=bool(step.records or group.states.initializing)
            or group.epoch > current.member_epoch,
            own_ms=settings.heartbeat_interval_ms if settings.is_interval_fixed else None,
            longest_ms=step.settings.share.heartbeat_interval_ms,
        ),
    )
    is_full = request.member_epoch == JOIN_GROUP_EPOCH or request.subscribed_topic_names is not None
    is_new = current is not before and current.assigned != before.assigned
    if is_full or not has_heard or is_new:
        response.assignment = _assignment(current)
    return response


def _update_member(
    group: ShareGroup,
    member_id: str,
    known: ShareGroupMember | None,
    member: ShareGroupMember,
    step: GroupStep,
) -> tuple[int, Partitions]:
    """Write what is new of the member, and of the group with it; returns epoch and target."""
    is_news = known is None or known.topic_names != member.topic_names
    epoch = group.epoch
    if member is not known and member != known:
        step.records.append(ShareMemberRecord(group.group_id, member_id, member))
    if not is_news and (epoch <= group.target_epoch or not is_due(group, step)):
        return group.target_epoch, group.target(member_id)
    builder = ShareTargetAssignmentBuilder(group)
    builder.members[member_id] = member
    if is_news:
        epoch = start_epoch(builder, step)
    targets = assign_if_due(builder, epoch, step)
    if targets is None:
        return group.target_epoch, group.target(member_id)
    return epoch, targets[member_id]


def refresh(group: ShareGroup, member_id: str, step: GroupStep) -> None:
    """The member has given a sign of life: its session starts anew."""
    timeout_ms = step.settings.share_of(group.group_id).session_timeout_ms
    step.set_timer(session_key(group.group_id, member_id), step.now_ms + timeout_ms)


def _check_new_member(
    group: ShareGroup, request: ShareGroupHeartbeatRequest, size_max: int
) -> None:
    if group.member_count >= size_max:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {size_max} members.",
        )
    if request.member_epoch != JOIN_GROUP_EPOCH:
        raise unknown_member(group.group_id, request.member_id)


def _check_epoch(epoch: int, current: ShareCurrentAssignment) -> None:
    known = current.member_epoch
    if epoch in (JOIN_GROUP_EPOCH, known, current.previous_member_epoch):
        return
    relation = "greater" if epoch > known else "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {relation} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _updated(
    member: ShareGroupMember | None, command: Command, request: ShareGroupHeartbeatRequest
) -> ShareGroupMember:
    """The member with what it says anew; null says that nothing has changed."""
    if (
        member is not None
        and request.subscribed_topic_names is None
        and request.rack_id is None
        and command.client_id == member.client_id
        and command.client_host == member.client_host
    ):
        return member
    known = member or ShareGroupMember()
    names = request.subscribed_topic_names
    updated = ShareGroupMember(
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=known.topic_names if names is None else tuple(sorted(set(names))),
    )
    return known if updated == member else updated


def _assignment(current: ShareCurrentAssignment) -> ShareGroupHeartbeatAssignment:
    return ShareGroupHeartbeatAssignment(
        topic_partitions=[
            ShareGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in current.assigned.items()
            if indexes
        ]
    )


# -- leaving --------------------------------------------------------------------------------------


def remove(group: ShareGroup, member_ids: Collection[str], step: GroupStep) -> None:
    """Members are gone, whatever the reason: the others share what they had."""
    builder = ShareTargetAssignmentBuilder(group)
    for member_id in member_ids:
        builder.members.pop(member_id, None)
        forget_member(group.group_id, member_id, step)
    assign_if_due(builder, start_epoch(builder, step), step)
