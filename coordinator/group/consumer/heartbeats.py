"""ConsumerGroupHeartbeat: join, continue, leave (KIP-848, KIP-1082 for v1).

The member epoch of the request against the known one, in Kafka's order of checks (an invalid
request gets INVALID_REQUEST or UNSUPPORTED_ASSIGNOR before):

| Epoch | Member | Result |
|---|---|---|
| 0 | unknown, group not full | new member, group epoch + 1 |
| 0 | unknown, group full | GROUP_MAX_SIZE_REACHED |
| 0 | known | continues, and gets its full assignment |
| 0 | static, its instance id unused | new member |
| 0 | static, the id's owner has left temporarily (-2) or is classic | replaces the owner |
| 0 | static, the id's owner is active | UNRELEASED_INSTANCE_ID |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | static, another member owns the id | FENCED_INSTANCE_ID |
| > 0 | epoch is its own | continues |
| > 0 | epoch is its previous one, owns nothing else | gets the lost response again |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | removed, group epoch + 1 |
| -2 | static | keeps its assignment until its session ends |
| -1, -2 | unknown, or another member owns the id | UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID |

"Continues" means: store changes of the member, start a group epoch if its subscription has changed,
and take the next step of `modern.reconciliation`. A member whose session ends, or that does not
revoke partitions within its rebalance timeout, is removed as if it had left.

Responses may be lost, several in a row, and fencing a member delivers records twice. So:

- A member that has not received its epoch gets it again with each response, and does not advance
  until it sends that epoch.
- A member on another connection than that of its last response with news may not have received
  it. It gets its assignment until it confirms it. Its previous epoch is valid, too, if it sends no
  partitions or only partitions that it must revoke: a client that repeats a request whose response
  was lost (librdkafka, after one interval) sends no partitions if it had none to report. Kafka,
  with its interval of five seconds, fences such a member.

The heartbeat interval of the response is short while the group reconciles or is small, so that
changes reach members before the configured interval has passed. Called by `consumer.groups`.
"""

from typing import Final

import msgspec

from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.reconciliation import PARTITIONS
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerGroupMember,
    PartitionEpochs,
)
from odradek.coordinator.group.consumer.target_assignment import ConsumerTargetAssignmentBuilder
from odradek.coordinator.group.modern import heartbeats as modern
from odradek.coordinator.group.modern.group import ModernGroupState
from odradek.coordinator.group.modern.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    ResolvedMember,
    check_texts,
    heartbeat_assignment,
    heartbeat_interval_ms,
    is_lost_response,
    may_be_lost,
    resolve_member,
    schedule_session_timeout,
    store_member,
    with_sent,
)
from odradek.coordinator.group.modern.reconciliation import is_reconciled_to
from odradek.coordinator.group.modern.target_assignment import assignment_due_ms
from odradek.coordinator.group.requests import ConsumerHeartbeat
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import Partitions
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

CLIENT_GENERATED_ID_SINCE: Final = 1

Resolved = ResolvedMember[ConsumerGroupMember, ConsumerCurrentAssignment]


def check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Validate the fields of the request; ApiError if they are invalid."""
    epoch = request.member_epoch
    violation = None
    if not request.group_id.strip():
        violation = "GroupId can't be empty."
    elif request.instance_id is not None and not request.instance_id.strip():
        violation = "InstanceId can't be empty."
    elif request.rack_id is not None and not request.rack_id.strip():
        violation = "RackId can't be empty."
    elif not request.member_id.strip() and (
        version >= CLIENT_GENERATED_ID_SINCE or epoch != JOIN_GROUP_EPOCH
    ):
        violation = "MemberId can't be empty."
    elif epoch == JOIN_GROUP_EPOCH:
        if request.rebalance_timeout_ms == -1:
            violation = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            violation = "TopicPartitions must be empty when (re-)joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            violation = (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining."
            )
    elif epoch == LEAVE_GROUP_STATIC_EPOCH:
        if request.instance_id is None:
            violation = "InstanceId can't be null."
    elif epoch < LEAVE_GROUP_STATIC_EPOCH:
        violation = "MemberEpoch is invalid."
    violation = violation or check_texts(
        request.group_id,
        request.member_id,
        request.instance_id,
        request.rack_id,
        request.subscribed_topic_regex,
    )
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(assignors)}.",
        )


# -- joining and continuing -----------------------------------------------------------------------


def heartbeat(
    group: ConsumerGroup,
    command: Command,
    sent: ConsumerHeartbeat,
    member_id: str,
    step: GroupStep,
) -> ConsumerGroupHeartbeatResponse:
    """A heartbeat of a member that joins or continues. ApiError if it is refused."""
    request = sent.request
    owned = _owned(request)
    connection_id = command.connection_id
    is_unconfirmed = may_be_lost(group, member_id, connection_id)
    resolved: Resolved = resolve_member(
        group,
        member_id,
        request.member_epoch,
        request.instance_id,
        step,
        is_retry=lambda current: is_lost_response(
            PARTITIONS, owned, current, is_other_connection=is_unconfirmed
        ),
    )
    member = _updated(resolved.member, command, request)
    goal = update_member(group, resolved, member, sent.regex_names, step)
    current = resolved.current
    has_epoch = request.member_epoch in (JOIN_GROUP_EPOCH, current.member_epoch)
    if has_epoch:
        current = maybe_reconcile(group, resolved, member, goal, owned, step)
    schedule_session_timeout(group, member_id, member, step)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms(
            group,
            step,
            is_busy=bool(step.records) or group.state is not ModernGroupState.STABLE,
        ),
    )
    if owned is not None and is_unconfirmed and _is_exactly(owned, current.assigned):
        del group.unconfirmed_connections[member_id]
        is_unconfirmed = False
    has_news = not has_epoch or is_unconfirmed or _has_other_partitions(resolved.current, current)
    if has_news or _is_full(request):
        response.assignment = heartbeat_assignment(current.assigned)
    if has_news or (current.member_epoch != request.member_epoch != JOIN_GROUP_EPOCH):
        group.unconfirmed_connections[member_id] = connection_id
    return response


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields, as when a member joins or has lost a response."""
    return request.member_epoch == JOIN_GROUP_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def update_member(
    group: ConsumerGroup,
    resolved: Resolved,
    member: ConsumerGroupMember,
    regex_names: tuple[str, ...] | None,
    step: GroupStep,
) -> tuple[int, Partitions]:
    """Write the changes of the member and of its group; returns epoch and target."""
    before, replaced_id = resolved.member, resolved.replaced_id
    is_changed = replaced_id is not None or (member is not before and member != before)
    target_epoch = group.target_epoch
    target = group.target(replaced_id or resolved.member_id)
    if (
        not is_changed
        and regex_names is None
        and (group.epoch <= target_epoch or step.now_ms < assignment_due_ms(group, step))
    ):
        return target_epoch, target
    builder = ConsumerTargetAssignmentBuilder(group)
    if is_changed:
        store_member(builder, resolved, member, step)
    needs_epoch = before is None or _subscription_of(before) != _subscription_of(member)
    if member.topic_regex and regex_names is not None:
        is_resolved = builder.resolve_regex(member.topic_regex, regex_names, step)
        needs_epoch = is_resolved or needs_epoch
    epoch = builder.start_epoch(step) if needs_epoch else group.stored_epoch
    targets = builder.assign_if_due(epoch, step)
    if targets is None:
        return target_epoch, target
    return epoch.epoch, targets[resolved.member_id]


def _subscription_of(member: ConsumerGroupMember) -> tuple[object, ...]:
    """A change of these starts a group epoch."""
    return (member.topic_names, member.topic_regex, member.server_assignor, member.rack_id)


def maybe_reconcile(
    group: ConsumerGroup,
    resolved: Resolved,
    member: ConsumerGroupMember,
    goal: tuple[int, Partitions],
    owned: Partitions | None,
    step: GroupStep,
) -> ConsumerCurrentAssignment:
    """The member's next step towards its target, written if there is one."""
    if is_reconciled_to(resolved.current, goal[0]):
        return resolved.current
    owners = (None, resolved.member_id, resolved.replaced_id)
    return modern.maybe_reconcile(
        group,
        resolved,
        member,
        PARTITIONS,
        goal,
        owned,
        lambda topic_id, index: group.owner(topic_id, index) in owners,
        step,
    )


def _is_exactly(owned: Partitions, assigned: PartitionEpochs) -> bool:
    return PARTITIONS.is_within(owned, assigned) and sum(map(len, owned.values())) == sum(
        map(len, assigned.values())
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return {
        topic.topic_id: frozenset(topic.partitions)
        for topic in request.topic_partitions
        if topic.partitions
    }


def _updated(
    member: ConsumerGroupMember | None, command: Command, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupMember:
    """The member with the fields of the request; null stands for no change."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    # Most heartbeats have no field of the member itself.
    if (
        member is not None
        and names is None
        and regex is None
        and timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and command.client_id == member.client_id
        and command.client_host == member.client_host
        and member.classic is None
    ):
        return member
    known = member or ConsumerGroupMember()
    # An empty expression removes the stored one.
    topic_regex = known.topic_regex if regex is None else regex or None
    return with_sent(
        msgspec.structs.replace(known, topic_regex=topic_regex, classic=None),
        command,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        topic_names=None if names is None else tuple(sorted(set(names))),
        rebalance_timeout_ms=None if timeout_ms == -1 else timeout_ms,
        server_assignor=request.server_assignor,
    )


def _has_other_partitions(
    before: ConsumerCurrentAssignment, after: ConsumerCurrentAssignment
) -> bool:
    if before is after:
        return False
    return {topic: set(epochs) for topic, epochs in before.assigned.items()} != {
        topic: set(epochs) for topic, epochs in after.assigned.items()
    }
