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

from odradek.coordinator.group.consumer.assigning import ConsumerStep
from odradek.coordinator.group.consumer.heartbeats import JOIN, LEAVE, fair_interval, is_blank
from odradek.coordinator.group.consumer.records import Partitions
from odradek.coordinator.group.known_members import unknown_member
from odradek.coordinator.group.records import TEXT_LETTERS_MAX
from odradek.coordinator.group.share.assigning import (
    ShareMembership,
    assign_if_due,
    forget_member,
    is_due,
    session_key,
    start_epoch,
)
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareAssignment,
    ShareCurrentStored,
    ShareMember,
    ShareMemberStored,
)
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share import (
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)


def check(request: ShareGroupHeartbeatRequest) -> None:
    """Whether the request is one at all; else ApiError."""
    complaint = None
    if is_blank(request.member_id):
        complaint = "MemberId can't be empty."
    elif is_blank(request.group_id):
        complaint = "GroupId can't be empty."
    elif is_blank(request.rack_id):
        complaint = "RackId can't be empty."
    elif request.member_epoch == JOIN and not request.subscribed_topic_names:
        complaint = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < LEAVE:
        complaint = "MemberEpoch is invalid."
    if complaint is None and (
        len(request.group_id) > TEXT_LETTERS_MAX
        or len(request.member_id) > TEXT_LETTERS_MAX
        or len(request.rack_id or "") > TEXT_LETTERS_MAX
    ):
        complaint = f"A text of more than {TEXT_LETTERS_MAX} letters cannot be stored."
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, complaint)


# -- joining and going on -------------------------------------------------------------------------


def beat(
    group: ShareGroup, command: Command, request: ShareGroupHeartbeatRequest, step: ConsumerStep
) -> ShareGroupHeartbeatResponse:
    """A checked heartbeat of a member that joins or is there. ApiError if it is refused."""
    member_id = request.member_id
    known = group.member(member_id)
    if known is None:
        _check_newcomer(group, request, step.settings.share_size_max)
    before = group.current(member_id)
    _check_epoch(request.member_epoch, before)
    member = _updated(known, command, request)
    epoch, target = _take_over(group, member_id, known, member, step)
    current = before
    # Who has not heard of its epoch comes no further, so that several answers may be lost in a row.
    has_heard = request.member_epoch in (JOIN, before.member_epoch)
    if has_heard and (known is None or before.member_epoch != epoch or before.assigned != target):
        current = ShareAssignment(epoch, before.member_epoch, target)
        if epoch == before.member_epoch:
            current = ShareAssignment(epoch, before.previous_member_epoch, target)
        step.records.append(ShareCurrentStored(group.group_id, member_id, current))
    refresh(group, member_id, step)
    own = step.settings.share_overrides.get(group.group_id)
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=fair_interval(
            step,
            is_busy=bool(step.records or group.states.initializing)
            or group.epoch > current.member_epoch,
            own_ms=None if own is None else own.heartbeat_interval_ms,
            longest_ms=step.settings.share_heartbeat_interval_ms,
        ),
    )
    is_full = request.member_epoch == JOIN or request.subscribed_topic_names is not None
    is_new = current is not before and current.assigned != before.assigned
    if is_full or not has_heard or is_new:
        response.assignment = _assignment(current)
    return response


def _take_over(
    group: ShareGroup,
    member_id: str,
    known: ShareMember | None,
    member: ShareMember,
    step: ConsumerStep,
) -> tuple[int, Partitions]:
    """Write what is new of the member, and of the group with it; returns epoch and target."""
    is_news = known is None or known.topic_names != member.topic_names
    epoch = group.epoch
    if member is not known and member != known:
        step.records.append(ShareMemberStored(group.group_id, member_id, member))
    if not is_news and (epoch <= group.target_epoch or not is_due(group, step)):
        return group.target_epoch, group.target(member_id)
    membership = ShareMembership(group)
    membership.members[member_id] = member
    if is_news:
        epoch = start_epoch(membership, step)
    targets = assign_if_due(membership, epoch, step)
    if targets is None:
        return group.target_epoch, group.target(member_id)
    return epoch, targets[member_id]


def refresh(group: ShareGroup, member_id: str, step: ConsumerStep) -> None:
    """The member has given a sign of life: its session starts anew."""
    timeout_ms = step.settings.share_session_of(group.group_id)
    step.set_timer(session_key(group.group_id, member_id), step.now_ms + timeout_ms)


def _check_newcomer(group: ShareGroup, request: ShareGroupHeartbeatRequest, size_max: int) -> None:
    if group.member_count >= size_max:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {size_max} members.",
        )
    if request.member_epoch != JOIN:
        raise unknown_member(group.group_id, request.member_id)


def _check_epoch(epoch: int, current: ShareAssignment) -> None:
    known = current.member_epoch
    if epoch in (JOIN, known, current.previous_member_epoch):
        return
    relation = "greater" if epoch > known else "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {relation} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _updated(
    member: ShareMember | None, command: Command, request: ShareGroupHeartbeatRequest
) -> ShareMember:
    """The member with what it says anew; null says that nothing has changed."""
    if (
        member is not None
        and request.subscribed_topic_names is None
        and request.rack_id is None
        and command.client_id == member.client_id
        and command.client_host == member.client_host
    ):
        return member
    known = member or ShareMember()
    names = request.subscribed_topic_names
    updated = ShareMember(
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=known.topic_names if names is None else tuple(sorted(set(names))),
    )
    return known if updated == member else updated


def _assignment(current: ShareAssignment) -> ShareGroupHeartbeatAssignment:
    return ShareGroupHeartbeatAssignment(
        topic_partitions=[
            ShareGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in current.assigned.items()
            if indexes
        ]
    )


# -- leaving --------------------------------------------------------------------------------------


def remove(group: ShareGroup, member_ids: Collection[str], step: ConsumerStep) -> None:
    """Members are gone, whatever the reason: the others share what they had."""
    membership = ShareMembership(group)
    for member_id in member_ids:
        membership.members.pop(member_id, None)
        forget_member(group.group_id, member_id, step)
    assign_if_due(membership, start_epoch(membership, step), step)
