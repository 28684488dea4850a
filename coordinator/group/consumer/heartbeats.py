"""ConsumerGroupHeartbeat: join, go on, leave (KIP-848, KIP-1082 for v1).

The member's epoch against what is known, in Kafka's order of checks (a request that breaks a rule
of the message itself gets INVALID_REQUEST or UNSUPPORTED_ASSIGNOR before):

| Epoch | Member | Answer |
|---|---|---|
| 0 | unknown, room | new member, group epoch + 1 |
| 0 | unknown, no room | GROUP_MAX_SIZE_REACHED |
| 0 | known | goes on where it was, and is told its whole assignment |
| 0 | static, its instance id free | new member |
| 0 | static, the id's holder stepped out (-2) or is classic | takes its place over |
| 0 | static, the id's holder is there | UNRELEASED_INSTANCE_ID |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | static, the id is another's | FENCED_INSTANCE_ID |
| > 0 | epoch is its own | goes on |
| > 0 | epoch is its previous one, owns nothing it should not | an answer was lost: told again |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | gone, group epoch + 1 |
| -2 | static | its place is kept until its session ends |
| -1, -2 | unknown, or the instance id another's | UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID |

"Goes on" is: take over what the member says anew, start a group epoch if its subscription changed,
and take the next step of `reconciliation`. A member whose session ends, or that does not give up
partitions within its rebalance timeout, is removed as if it had left.

Answers get lost, several in a row, and fencing a member has records delivered again that it has
read. So who has not heard of its epoch is told of it until it has, and comes no further meanwhile.
Who comes over another connection than the one that it was last told something over may not have
heard it: it is told its partitions again until it says that it has them, and its previous epoch
counts, too, if it names no partitions or some that it has still to give up. For clients that send
once more what a lost answer belonged to (librdkafka, after one interval) say nothing of partitions
if they had nothing to say of them; Kafka, with its interval of five seconds, fences them.

The answer tells when to come again: soon while the group reconciles, and while it is small
anyway, so that a change reaches members before the configured interval has passed. Called by
`consumer.groups`.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

import msgspec

from odradek.coordinator.group.consumer.group import (
    LEAVE_GROUP_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerGroupState,
)
from odradek.coordinator.group.consumer.reconciliation import (
    FencedMember,
    is_reconciled_to,
    reconcile,
)
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerTargetRecord,
    MemberState,
    PartitionEpochs,
)
from odradek.coordinator.group.consumer.target_assignment import (
    ConsumerTargetAssignmentBuilder,
    assign_if_due,
    drop_unused_regexes,
    forget_member,
    is_due,
    resolve_regex,
    revocation_key,
    session_key,
    start_epoch,
)
from odradek.coordinator.group.modern.member_checks import (
    check_instance_id,
    epoch_mismatch,
    fenced_epoch,
    unknown_member,
)
from odradek.coordinator.group.requests import ConsumerHeartbeat
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.topics import (
    Partitions,
)
from odradek.coordinator.outcome import Command
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)

JOIN_GROUP_EPOCH: Final = 0
LEAVE_GROUP_EPOCH: Final = -1
CLIENT_GENERATED_ID_SINCE: Final = 1

_HEARTBEATS_A_SECOND_MAX: Final = 200
"""How many heartbeats a process asks for while nothing happens: 1 to 2 % of a core."""
_HEARTBEATS_A_SECOND_MAX_RECONCILING: Final = 1_000
_INTERVAL_MS_MIN: Final = 200
"""Half of what "a member joins" and "a member leaves" may take to be known to all."""
_INTERVAL_MS_MIN_RECONCILING: Final = 100
_LOOP_DELAY_FACTOR: Final = 5
"""Members are told to come again after so many times what a request waits here."""

_fenced = partial(fenced_epoch, "consumer", "partitions")


class ResolvedMember(msgspec.Struct, frozen=True, gc=False):
    """Whom a heartbeat comes from: the member as stored, if it is, and whose place it takes."""

    member_id: str
    member: ConsumerGroupMember | None
    current: ConsumerCurrentAssignment
    replaced_id: str | None = None


def is_blank_text(text: str | None) -> bool:
    """Whether a text is there but says nothing: white space names nobody."""
    return text is not None and not text.strip()


def check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Whether the request is one at all; else ApiError."""
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
    if violation is None and not _can_be_stored(request):
        violation = f"A text of more than {TEXT_LENGTH_MAX} letters cannot be stored."
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(assignors)}.",
        )


def _can_be_stored(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        len(request.group_id) <= TEXT_LENGTH_MAX
        and len(request.member_id) <= TEXT_LENGTH_MAX
        and len(request.instance_id or "") <= TEXT_LENGTH_MAX
        and len(request.rack_id or "") <= TEXT_LENGTH_MAX
        and len(request.subscribed_topic_regex or "") <= TEXT_LENGTH_MAX
    )


# -- joining and going on -------------------------------------------------------------------------


def beat(
    group: ConsumerGroup,
    command: Command,
    heartbeat: ConsumerHeartbeat,
    member_id: str,
    step: GroupStep,
) -> ConsumerGroupHeartbeatResponse:
    """A heartbeat of a member that joins or is there. ApiError if it is refused."""
    request = heartbeat.request
    owned = _owned(request)
    # An answer that went over another connection may not have reached the member.
    connection_id = command.connection_id
    may_be_lost = group.unconfirmed_connections.get(member_id, connection_id) != connection_id
    resolved = _find(group, member_id, request, owned, step, may_be_lost=may_be_lost)
    member = _updated(resolved.member, command, request)
    goal = update_member(group, resolved, member, heartbeat.regex_names, step)
    current = resolved.current
    has_heard = request.member_epoch in (JOIN_GROUP_EPOCH, current.member_epoch)
    if has_heard:
        current = maybe_reconcile(group, resolved, member, goal, owned, step)
    refresh(group, member_id, member, step)
    is_full = request.member_epoch == JOIN_GROUP_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=_interval(group, step),
    )
    if owned is not None and may_be_lost and _is_exactly(owned, current.assigned):
        del group.unconfirmed_connections[member_id]
        may_be_lost = False
    is_news = not has_heard or may_be_lost or _has_other_partitions(resolved.current, current)
    if is_full or is_news:
        response.assignment = _assignment(current)
    if is_news or (current.member_epoch != request.member_epoch != JOIN_GROUP_EPOCH):
        group.unconfirmed_connections[member_id] = connection_id
    return response


def update_member(
    group: ConsumerGroup,
    resolved: ResolvedMember,
    member: ConsumerGroupMember,
    regex_names: tuple[str, ...] | None,
    step: GroupStep,
) -> tuple[int, Partitions]:
    """Write what is new of the member, and of the group with it; returns epoch and target."""
    before = resolved.member
    is_replacing = resolved.replaced_id is not None
    is_as_before = member is before or member == before
    epoch, target_epoch = group.epoch, group.target_epoch
    target = group.target(resolved.replaced_id or resolved.member_id)
    if (
        is_as_before
        and not is_replacing
        and regex_names is None
        and (epoch <= target_epoch or not is_due(group, step))
    ):
        return target_epoch, target
    builder = ConsumerTargetAssignmentBuilder(group)
    if not is_as_before or is_replacing:
        _store(group, resolved, member, builder, step)
    is_news = before is None or _subscription_of(before) != _subscription_of(member)
    if member.topic_regex and regex_names is not None:
        is_resolved = resolve_regex(group, builder, member.topic_regex, regex_names, step)
        is_news = is_resolved or is_news
    if is_news:
        drop_unused_regexes(group, builder, step)
        epoch = start_epoch(group, builder, step)
    targets = assign_if_due(group, epoch, builder, step)
    if targets is None:
        return target_epoch, target
    return epoch, targets[resolved.member_id]


def _subscription_of(member: ConsumerGroupMember) -> tuple[object, ...]:
    """What the group must be assigned anew for when it changes."""
    return (member.topic_names, member.topic_regex, member.server_assignor, member.rack_id)


def maybe_reconcile(
    group: ConsumerGroup,
    resolved: ResolvedMember,
    member: ConsumerGroupMember,
    goal: tuple[int, Partitions],
    owned: Partitions | None,
    step: GroupStep,
) -> ConsumerCurrentAssignment:
    """The member's next step towards its target, written if there is one."""
    member_id, before = resolved.member_id, resolved.current
    if is_reconciled_to(before, goal[0]):
        return before
    owners = (None, member_id, resolved.replaced_id)
    try:
        current = reconcile(
            before,
            target_epoch=goal[0],
            target=goal[1],
            owned=owned,
            is_free=lambda topic_id, index: group.owner(topic_id, index) in owners,
        )
    except FencedMember:
        raise _fenced("is in a state that is not known here") from None
    if current is before:
        return before
    step.records.append(ConsumerCurrentRecord(group.group_id, member_id, current))
    if member.classic is None:
        key = revocation_key(group.group_id, member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
        elif before.state is MemberState.UNREVOKED_PARTITIONS:
            step.cancel_timer(key)
    return current


def check_group_size(group: ConsumerGroup, size_max: int) -> None:
    """Whether the group may have one more member; else ApiError."""
    if group.member_count >= size_max:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def _find(
    group: ConsumerGroup,
    member_id: str,
    request: ConsumerGroupHeartbeatRequest,
    owned: Partitions | None,
    step: GroupStep,
    *,
    may_be_lost: bool,
) -> ResolvedMember:
    """Who asks, by the table above."""
    is_join = request.member_epoch == JOIN_GROUP_EPOCH
    instance_id = request.instance_id
    holder = None if instance_id is None else group.static_member_id(instance_id)
    if is_join and holder is not None and holder != member_id:
        held = group.member(holder)
        assert held is not None
        current = group.current(holder)
        if held.classic is None and current.member_epoch != LEAVE_GROUP_STATIC_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by member {holder}.",
            )
        taken_over = ConsumerCurrentAssignment(0, 0, current.state, current.assigned, {})
        return ResolvedMember(member_id, held, taken_over, holder)
    check_instance_id(group, member_id, None if is_join else instance_id)
    member = group.member(member_id)
    if member is None:
        if not is_join:
            raise unknown_member(group.group_id, member_id)
        check_group_size(group, step.settings.consumer.max_size)
    current = group.current(member_id)
    _check_epoch(request.member_epoch, current, owned, may_be_lost=may_be_lost)
    return ResolvedMember(member_id, member, current)


def _check_epoch(
    epoch: int, current: ConsumerCurrentAssignment, owned: Partitions | None, *, may_be_lost: bool
) -> None:
    known = current.member_epoch
    if epoch in (JOIN_GROUP_EPOCH, known):
        return
    # Whoever did not get the answer of an epoch tells what it had before, as Kafka wants it. Where
    # the answer may indeed be lost it need not: it may send once more what it had to say.
    is_retry = epoch == current.previous_member_epoch and epoch < known
    if may_be_lost:
        is_its_own = owned is None or _is_within(
            owned, current.assigned, current.pending_revocation
        )
    else:
        is_its_own = owned is not None and _is_within(owned, current.assigned)
    if not (is_retry and is_its_own):
        raise _fenced(epoch_mismatch(epoch, known))


def _is_within(owned: Partitions, *known: PartitionEpochs) -> bool:
    return all(
        any(index in partitions.get(topic_id, ()) for partitions in known)
        for topic_id, indexes in owned.items()
        for index in indexes
    )


def _is_exactly(owned: Partitions, assigned: PartitionEpochs) -> bool:
    return _is_within(owned, assigned) and sum(map(len, owned.values())) == sum(
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
    """The member with what it says anew; null says that nothing has changed."""
    if member is not None and _is_unchanged(member, command, request):
        return member
    known = member or ConsumerGroupMember()
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    updated = ConsumerGroupMember(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=known.topic_names if names is None else tuple(sorted(set(names))),
        # An empty expression takes one back.
        topic_regex=known.topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=known.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
    )
    return known if updated == member else updated


def _is_unchanged(
    member: ConsumerGroupMember, command: Command, request: ConsumerGroupHeartbeatRequest
) -> bool:
    """Whether a heartbeat says nothing of the member itself, as most do."""
    return (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and command.client_id == member.client_id
        and command.client_host == member.client_host
        and member.classic is None
    )


def _store(
    group: ConsumerGroup,
    resolved: ResolvedMember,
    member: ConsumerGroupMember,
    builder: ConsumerTargetAssignmentBuilder,
    step: GroupStep,
) -> None:
    group_id, member_id = group.group_id, resolved.member_id
    if resolved.replaced_id is not None:
        builder.replace(resolved.replaced_id, member_id, member)
        target = group.target(resolved.replaced_id)
        forget_member(group_id, resolved.replaced_id, step)
        step.records += (
            ConsumerMemberRecord(group_id, member_id, member),
            ConsumerTargetRecord(group_id, member_id, target),
            ConsumerCurrentRecord(group_id, member_id, resolved.current),
        )
        return
    builder.put(member_id, member)
    step.records.append(ConsumerMemberRecord(group_id, member_id, member))


def _has_other_partitions(
    before: ConsumerCurrentAssignment, after: ConsumerCurrentAssignment
) -> bool:
    if before is after:
        return False
    return {topic: set(epochs) for topic, epochs in before.assigned.items()} != {
        topic: set(epochs) for topic, epochs in after.assigned.items()
    }


def _assignment(current: ConsumerCurrentAssignment) -> ConsumerGroupHeartbeatAssignment:
    return ConsumerGroupHeartbeatAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(epochs))
            for topic_id, epochs in current.assigned.items()
            if epochs
        ]
    )


def _interval(group: ConsumerGroup, step: GroupStep) -> int:
    """When the member should come again."""
    settings = step.settings.consumer_of(group.group_id)
    return fair_heartbeat_interval(
        step,
        is_busy=bool(step.records) or group.state is not ConsumerGroupState.STABLE,
        own_ms=settings.heartbeat_interval_ms if settings.is_interval_fixed else None,
        longest_ms=step.settings.consumer.heartbeat_interval_ms,
    )


def fair_heartbeat_interval(
    step: GroupStep, *, is_busy: bool, own_ms: int | None, longest_ms: int
) -> int:
    """When one of all the members of this process should come again, in ms.

    What was set for its group (`own_ms`) is kept to while nothing happens there. Else members come
    as often as a bound on the heartbeats of all of them allows, and at least at the broker's
    interval (`longest_ms`). A client may wait for an answer no longer than that, and cut its
    connection then (librdkafka): so it is a multiple of how late answers are here.
    """
    if is_busy:
        rate, floor_ms = _HEARTBEATS_A_SECOND_MAX_RECONCILING, _INTERVAL_MS_MIN_RECONCILING
    elif own_ms is not None:
        return own_ms
    else:
        rate, floor_ms = _HEARTBEATS_A_SECOND_MAX, _INTERVAL_MS_MIN
    fair_ms = max(1000 * step.member_count_total // rate, _LOOP_DELAY_FACTOR * step.loop_delay_ms)
    return min(max(fair_ms, floor_ms), longest_ms)


def refresh(
    group: ConsumerGroup, member_id: str, member: ConsumerGroupMember, step: GroupStep
) -> None:
    """The member has given a sign of life: its session starts anew."""
    timeout_ms = session_timeout_of(group, member, step)
    step.set_timer(session_key(group.group_id, member_id), step.now_ms + timeout_ms)


def session_timeout_of(group: ConsumerGroup, member: ConsumerGroupMember, step: GroupStep) -> int:
    """After how long a silence the member is taken for gone, in ms."""
    if member.classic is None:
        return step.settings.consumer_of(group.group_id).session_timeout_ms
    return member.classic.session_timeout_ms


# -- leaving --------------------------------------------------------------------------------------


def leave_static(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, step: GroupStep
) -> ConsumerGroupHeartbeatResponse:
    """A static member leaves for a while (-2): it owns what it owned until its session ends."""
    member_id = request.member_id
    check_instance_id(group, member_id, request.instance_id)
    before = group.current(member_id)
    left = msgspec.structs.replace(
        before, member_epoch=LEAVE_GROUP_STATIC_EPOCH, pending_revocation={}
    )
    step.records.append(ConsumerCurrentRecord(group.group_id, member_id, left))
    step.cancel_timer(revocation_key(group.group_id, member_id))
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=LEAVE_GROUP_STATIC_EPOCH
    )


def remove(group: ConsumerGroup, member_ids: Collection[str], step: GroupStep) -> None:
    """Members are gone, whatever the reason: the others share what they had."""
    builder = ConsumerTargetAssignmentBuilder(group)
    for member_id in member_ids:
        builder.remove(member_id)
        forget_member(group.group_id, member_id, step)
    drop_unused_regexes(group, builder, step)
    epoch = start_epoch(group, builder, step)
    assign_if_due(group, epoch, builder, step)
