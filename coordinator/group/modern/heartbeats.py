"""The heartbeats of the newer groups: the part that all types have in common (KIP-848 and later).

A heartbeat finds its member (`resolve_member`), stores the member if it has changed
(`store_member`), takes one step towards the target assignment (`maybe_reconcile`) and returns the
heartbeat interval (`heartbeat_interval_ms`). A member leaves (`remove_members`), or a static member
leaves temporarily (`leave_static`). The types of groups validate the request, decide which changes
of a member start a group epoch, and make the response. Called by their `heartbeats` and `groups`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from odradek.coordinator.group.modern.group import AnyGroup, GroupMember, ModernGroup
from odradek.coordinator.group.modern.reconciliation import (
    AssignmentUnit,
    FencedMember,
    IsFree,
    reconcile,
)
from odradek.coordinator.group.modern.records import CurrentAssignment, MemberState
from odradek.coordinator.group.modern.target_assignment import TargetAssignmentBuilder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import HeartbeatAssignment
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.types import Uuid

JOIN_GROUP_EPOCH: Final = 0
LEAVE_GROUP_EPOCH: Final = -1
LEAVE_GROUP_STATIC_EPOCH: Final = -2
"""The member epoch of a static member that has left and may come back (KIP-345)."""

_HEARTBEATS_A_SECOND_MAX: Final = 200
"""The heartbeats that a process requests while its groups are stable: 1 to 2 % of a core."""
_HEARTBEATS_A_SECOND_MAX_RECONCILING: Final = 1_000
_INTERVAL_MS_MIN: Final = 200
"""Half of the time in which all members must learn that a member has joined or left."""
_INTERVAL_MS_MIN_RECONCILING: Final = 100
_LOOP_DELAY_FACTOR: Final = 5
"""The heartbeat interval is at least this multiple of the delay of requests in this process."""

M = TypeVar("M", bound=GroupMember)
C = TypeVar("C", bound=CurrentAssignment)
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class ResolvedMember(msgspec.Struct, Generic[M, C], frozen=True):
    """The sender of a heartbeat: the stored member (None if new), and the id of the static member
    that it replaces."""

    member_id: str
    member: M | None
    current: C
    replaced_id: str | None = None


# -- the request by itself ------------------------------------------------------------------------


def check_texts(
    group_id: str,
    member_id: str,
    instance_id: str | None = None,
    rack_id: str | None = None,
    other: str | None = None,
) -> str | None:
    """Why the texts cannot be stored in a record; None if they can."""
    if (
        len(group_id) <= TEXT_LENGTH_MAX
        and len(member_id) <= TEXT_LENGTH_MAX
        and (instance_id is None or len(instance_id) <= TEXT_LENGTH_MAX)
        and (rack_id is None or len(rack_id) <= TEXT_LENGTH_MAX)
        and (other is None or len(other) <= TEXT_LENGTH_MAX)
    ):
        return None
    return f"A string of more than {TEXT_LENGTH_MAX} characters cannot be stored."


# -- the member's identity ------------------------------------------------------------------------


def check_member(group: AnyGroup, member_id: str, instance_id: str | None) -> None:
    """Whether there is such a member and the instance id, if there is one, is its own; else
    ApiError."""
    check_instance_id(group, member_id, instance_id)
    if group.member(member_id) is None:
        raise unknown_member(group.group_id, member_id)


def check_instance_id(group: AnyGroup, member_id: str, instance_id: str | None) -> None:
    """Whether the instance id, if there is one, is the member's.

    ApiError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if it is another member's.
    """
    if instance_id is None:
        return
    holder = group.static_member_id(instance_id)
    if holder is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown to the group."
        )
    if holder != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member"
            f" {holder}.",
        )


def unknown_member(group_id: str, member_id: str) -> ApiError:
    """The group has no member of that id."""
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def fenced(group: AnyGroup, why: str) -> ApiError:
    """The member must rejoin."""
    return ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {group.group_type} group member {why}. The member must abandon all its {group.unit}"
        " and rejoin.",
    )


# -- joining and going on -------------------------------------------------------------------------


def resolve_member(
    group: AnyGroup,
    member_id: str,
    epoch: int,
    instance_id: str | None,
    step: GroupStep,
    *,
    is_retry: Callable[[Any], bool],
) -> ResolvedMember[Any, Any]:
    """The member that a heartbeat comes from; else ApiError.

    `is_retry` takes the current assignment, and returns whether a heartbeat with the previous
    epoch is valid: it claims only what was assigned to the member.
    """
    is_join = epoch == JOIN_GROUP_EPOCH
    holder = None if instance_id is None else group.static_member_id(instance_id)
    if is_join and holder is not None and holder != member_id:
        held, current = group.member(holder), group.current(holder)
        if current.member_epoch != LEAVE_GROUP_STATIC_EPOCH and not group.is_classic(held):
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by member {holder}.",
            )
        return replacement(group, member_id, holder)
    if not is_join and instance_id is not None:
        check_instance_id(group, member_id, instance_id)
    member = group.member(member_id)
    if member is None:
        if not is_join:
            raise unknown_member(group.group_id, member_id)
        check_group_size(group, step)
    current = group.current(member_id)
    known = current.member_epoch
    # A member that did not get the response with its epoch sends its previous one.
    if epoch not in (JOIN_GROUP_EPOCH, known) and not (
        epoch == current.previous_member_epoch and epoch < known and is_retry(current)
    ):
        relation = "greater" if epoch > known else "smaller"
        raise fenced(
            group,
            f"has a {relation} member epoch ({epoch}) than the one known by the group"
            f" coordinator ({known})",
        )
    return ResolvedMember(member_id, member, current)


def may_be_lost(group: AnyGroup, member_id: str, connection_id: int) -> bool:
    """Whether the member may not have received its last response with news: that was sent over
    another connection, and the member has not confirmed it."""
    return group.unconfirmed_connections.get(member_id, connection_id) != connection_id


def is_lost_response(
    unit: AssignmentUnit[T, Any],
    owned: T | None,
    current: CurrentAssignment,
    *,
    is_other_connection: bool,
) -> bool:
    """Whether a heartbeat with the previous epoch may come from a member that lost a response.

    The member must send what it owns, as in Kafka, unless the connection shows that a response may
    be lost: then it may repeat its last request.
    """
    if is_other_connection:
        return owned is None or unit.is_within(owned, current.assigned, current.pending_revocation)
    return owned is not None and unit.is_within(owned, current.assigned)


def replacement(group: AnyGroup, member_id: str, holder: str) -> ResolvedMember[Any, Any]:
    """A member that replaces a static one, with the assignment of that one."""
    current = msgspec.structs.replace(
        group.current(holder),
        member_epoch=0,
        previous_member_epoch=0,
        pending_revocation=group.new_current.pending_revocation,
    )
    return ResolvedMember(member_id, group.member(holder), current, holder)


def check_group_size(group: AnyGroup, step: GroupStep) -> None:
    """Whether the group may have one more member; else ApiError."""
    size_max = group.settings_of(step.settings, group.group_id).max_size
    if group.member_count >= size_max:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The {group.group_type} group has reached its maximum capacity of {size_max} members.",
        )


def with_sent(member: S, command: Command, **sent: object) -> S:
    """The member with the fields that a heartbeat has sent; None stands for no change."""
    changed = {name: value for name, value in sent.items() if value is not None}
    return msgspec.structs.replace(
        member, client_id=command.client_id, client_host=command.client_host, **changed
    )


def store_member(
    builder: TargetAssignmentBuilder[M, Any, Any],
    resolved: ResolvedMember[M, Any],
    member: M,
    step: GroupStep,
) -> None:
    """Write a member that is new, has changed, or replaces a static one."""
    group, member_id, replaced_id = builder.group, resolved.member_id, resolved.replaced_id
    builder.put(member_id, member, replaced_id)
    stored = group.records.member(group.group_id, member_id, member)
    if replaced_id is None:
        step.records.append(stored)
        return
    target = group.target(replaced_id)
    forget_member(group, replaced_id, step)
    step.records += (
        stored,
        group.records.target(group.group_id, member_id, target),
        group.records.current(group.group_id, member_id, resolved.current),
    )


def maybe_reconcile(
    group: ModernGroup[M, T, C, Any],
    resolved: ResolvedMember[M, C],
    member: M,
    unit: AssignmentUnit[T, Any],
    goal: tuple[int, T],
    owned: T | None,
    is_free: IsFree,
    step: GroupStep,
) -> C:
    """The member's next step towards its target (epoch, assignment), written if there is one."""
    before = resolved.current
    try:
        current = reconcile(
            before, unit, target_epoch=goal[0], target=goal[1], owned=owned, is_free=is_free
        )
    except FencedMember:
        raise fenced(group, "is in a state that is not known here") from None
    if current is before:
        return before
    step.records.append(group.records.current(group.group_id, resolved.member_id, current))
    # Classic members have timers of their own.
    if not group.is_classic(member):
        key = group.member_key(group.timers.revocation, resolved.member_id)
        if current.state is MemberState.UNREVOKED:
            step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
        elif before.state is MemberState.UNREVOKED:
            step.cancel_timer(key)
    return current


def schedule_session_timeout(
    group: ModernGroup[M, Any, Any, Any], member_id: str, member: M, step: GroupStep
) -> None:
    """Restart the member's session timeout."""
    timeout_ms = group.session_timeout_ms(member, step.settings)
    key = (group.timers.session, group.group_id, member_id)
    step.set_timer(key, step.now_ms + timeout_ms)


def heartbeat_interval_ms(group: AnyGroup, step: GroupStep, *, is_busy: bool) -> int:
    """The heartbeat interval of a member.

    An interval that is set for the group is used while the group is stable. Otherwise members send
    heartbeats as often as the bound on all heartbeats of this process allows, and at least at the
    broker's interval. Clients (librdkafka) close the connection if a response takes longer than
    the interval, so it is a multiple of the delay of responses.
    """
    if is_busy:
        rate, floor_ms = _HEARTBEATS_A_SECOND_MAX_RECONCILING, _INTERVAL_MS_MIN_RECONCILING
    else:
        own = group.settings_of(step.settings, group.group_id)
        if own.is_interval_fixed:
            return own.heartbeat_interval_ms
        rate, floor_ms = _HEARTBEATS_A_SECOND_MAX, _INTERVAL_MS_MIN
    fair_ms = max(1000 * step.member_count_total // rate, _LOOP_DELAY_FACTOR * step.loop_delay_ms)
    return min(max(fair_ms, floor_ms), group.longest_interval_ms(step.settings))


def heartbeat_assignment(assigned: Mapping[Uuid, Collection[int]]) -> HeartbeatAssignment:
    """A member's partitions as its heartbeat returns them."""
    return HeartbeatAssignment(
        topic_partitions=[
            TopicIdPartitions(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in assigned.items()
            if indexes
        ]
    )


# -- leaving --------------------------------------------------------------------------------------


def leave_static(group: AnyGroup, member_id: str, step: GroupStep) -> None:
    """A static member leaves temporarily (-2): it keeps its assignment until its session ends."""
    left = msgspec.structs.replace(
        group.current(member_id),
        member_epoch=LEAVE_GROUP_STATIC_EPOCH,
        pending_revocation=group.new_current.pending_revocation,
    )
    step.records.append(group.records.current(group.group_id, member_id, left))
    step.cancel_timer(group.member_key(group.timers.revocation, member_id))


def remove_members(
    builder: TargetAssignmentBuilder[Any, Any, Any], member_ids: Collection[str], step: GroupStep
) -> None:
    """Remove members and assign their partitions or tasks to the others."""
    for member_id in member_ids:
        builder.remove(member_id)
        forget_member(builder.group, member_id, step)
    builder.assign_if_due(builder.start_epoch(step), step)


def forget_member(group: AnyGroup, member_id: str, step: GroupStep) -> None:
    """Write the tombstones of a member, and cancel its timers."""
    group_id, records = group.group_id, group.records
    step.records += (
        records.current(group_id, member_id, None),
        records.target(group_id, member_id, None),
        records.member(group_id, member_id, None),
    )
    for key in group.member_keys(member_id):
        step.cancel_timer(key)
