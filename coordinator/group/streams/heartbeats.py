"""StreamsGroupHeartbeat: join, go on, leave (KIP-1071).

The member's epoch against what is known, in Kafka's order of checks (a request that breaks a rule
of the message itself gets INVALID_REQUEST before, a topology that makes no sense
STREAMS_INVALID_TOPOLOGY):

| Epoch | Member | Answer |
|---|---|---|
| 0 | unknown, room | new member, group epoch + 1 |
| 0 | unknown, no room | GROUP_MAX_SIZE_REACHED |
| 0 | known | goes on where it was, and is told all its tasks |
| 0 | static, the id's holder stepped out (-2) | takes its place over |
| 0 | static, the id's holder is there | UNRELEASED_INSTANCE_ID |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | static, the id is another's | FENCED_INSTANCE_ID |
| > 0 | epoch is its own | goes on |
| > 0 | epoch is its previous one, has no task it should not | goes on: an answer was lost |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | gone, group epoch + 1 |
| -2 | static | its place is kept until its session ends |

The first member's topology is the group's; another one of the same or a higher epoch is refused
(INVALID_REQUEST), one of a lower epoch is told that it is stale. Topics are looked at whenever they
change. While they are not as the topology needs them nobody has tasks, and every answer says why;
internal topics that are missing are for the caller to make.

Called by `streams.groups`.
"""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import msgspec

from odradek.coordinator.group.consumer.group import LEAVE_GROUP_STATIC_EPOCH
from odradek.coordinator.group.consumer.heartbeats import (
    JOIN_GROUP_EPOCH,
    fair_heartbeat_interval,
    is_blank_text,
)
from odradek.coordinator.group.consumer.reconciliation import FencedMember
from odradek.coordinator.group.modern.member_checks import (
    check_instance_id,
    epoch_mismatch,
    fenced_epoch,
    unknown_member,
)
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.streams.group import (
    StreamsGroup,
    StreamsGroupState,
    tasks_by_role,
    tasks_of,
)
from odradek.coordinator.group.streams.reconciliation import (
    TaskRole,
    is_reconciled_to,
    is_within,
    reconcile,
)
from odradek.coordinator.group.streams.records import (
    NO_TASKS_WITH_EPOCHS,
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsMemberRecord,
    StreamsMemberState,
    StreamsTargetRecord,
    StreamsTopologyRecord,
    TasksTuple,
    Topology,
)
from odradek.coordinator.group.streams.target_assignment import (
    AssignmentInputs,
    StreamsTargetAssignmentBuilder,
    assign_if_due,
    assignment_configs,
    assignment_key,
    forget_member,
    revocation_key,
    session_key,
    start_epoch,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology, StatusCode, topology_of
from odradek.coordinator.group.streams.warmups import has_caught_up
from odradek.coordinator.outcome import Command
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest, TaskIds

_fenced = partial(fenced_epoch, "streams", "tasks")


class ResolvedStreamsMember(msgspec.Struct, frozen=True, gc=False):
    """Whom a heartbeat comes from: the member as stored, if it is, and whose place it takes."""

    member_id: str
    member: StreamsGroupMember | None
    current: StreamsCurrentAssignment
    replaced_id: str | None = None


class StreamsHeartbeatOutcome(NamedTuple):
    """What became of a heartbeat; the tables will say so when the step has been replayed."""

    found: ResolvedStreamsMember
    current: StreamsCurrentAssignment
    member: StreamsGroupMember
    topology: Topology
    configured: ConfiguredTopology
    epoch: StreamsGroupEpoch
    is_delayed: bool
    owned: TasksTuple | None

    @property
    def topology_error(self) -> tuple[StatusCode, str] | None:
        """What keeps the group from having tasks."""
        is_validated = self.epoch.validated_topology_epoch == self.topology.epoch
        return None if is_validated else self.configured.topology_error

    def includes_tasks(self, request: StreamsGroupHeartbeatRequest) -> bool:
        """Whether the answer says which tasks the member may have: it joins, they are not what they
        were, or it says that it has others, as after an answer that was lost."""
        if request.member_epoch == JOIN_GROUP_EPOCH:
            return True
        before, after = self.found.current.assigned, self.current.assigned
        if before is after and self.owned is None:
            return False
        told = set(tasks_by_role(after))
        return set(tasks_by_role(before)) != told or (
            self.owned is not None and set(tasks_by_role(self.owned)) != told
        )


# -- the request by itself ------------------------------------------------------------------------


def check(request: StreamsGroupHeartbeatRequest) -> None:
    """Whether the request is one at all; else ApiError(INVALID_REQUEST)."""
    violation = _violation(request)
    if violation is None and not _can_be_stored(request):
        violation = f"A text of more than {TEXT_LENGTH_MAX} letters cannot be stored."
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)


def _violation(request: StreamsGroupHeartbeatRequest) -> str | None:
    epoch = request.member_epoch
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if is_blank_text(request.instance_id):
        return "InstanceId can't be empty."
    if is_blank_text(request.rack_id):
        return "RackId can't be empty."
    if epoch == JOIN_GROUP_EPOCH:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        for name, found in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), tasks, strict=True):
            if found:
                return f"{name} must be empty when (re-)joining."
        if request.topology is None:
            return "Topology must be non-null when (re-)joining."
    elif epoch == LEAVE_GROUP_STATIC_EPOCH and request.instance_id is None:
        return "InstanceId can't be null."
    elif epoch < LEAVE_GROUP_STATIC_EPOCH:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if None in tasks and tasks != (None, None, None):
        return "If one task-type is non-null, all must be non-null."
    if epoch != JOIN_GROUP_EPOCH and request.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return None


def _can_be_stored(request: StreamsGroupHeartbeatRequest) -> bool:
    return (
        len(request.group_id) <= TEXT_LENGTH_MAX
        and len(request.member_id) <= TEXT_LENGTH_MAX
        and len(request.instance_id or "") <= TEXT_LENGTH_MAX
        and len(request.rack_id or "") <= TEXT_LENGTH_MAX
        and len(request.process_id or "") <= TEXT_LENGTH_MAX
    )


# -- joining and going on -------------------------------------------------------------------------


def heartbeat(
    group: StreamsGroup,
    command: Command,
    request: StreamsGroupHeartbeatRequest,
    known: AssignmentInputs,
    step: GroupStep,
) -> StreamsHeartbeatOutcome:
    """A heartbeat of a member that joins or is there. ApiError if it is refused."""
    owned = _owned(request)
    found = _find(group, request, owned, step)
    requested = None if request.topology is None else topology_of(request.topology)
    member = _updated(found.member, command, request)
    topology = _update_topology(group, requested, step)
    is_as_before = member is found.member or member == found.member
    is_news = found.replaced_id is not None or not is_as_before
    if is_news:
        _store(group, found, member, step)
    configured = group.configured(topology, step.topics)
    if configured.is_ready and owned is not None:
        _check_owned_tasks(owned, found.current, configured)
    stored = group.stored_epoch
    # Topics that were in order are looked at when they are said to have changed, and no sooner:
    # a node that is still reading its metadata does not see all of them yet.
    is_warm = has_caught_up(group.target(found.member_id).warmup, found.member_id, known.lags)
    if is_warm and stored.epoch == group.target_epoch:
        is_news = True
    if is_news or _has_epoch_inputs_changed(group, topology, configured, step):
        stored = start_epoch(group, topology, configured, step)
    goal = group.target_epoch, group.target(found.replaced_id or found.member_id)
    is_delayed = False
    if stored.epoch > group.target_epoch:
        builder = StreamsTargetAssignmentBuilder(group)
        builder.put(found.member_id, member, found.replaced_id)
        targets = assign_if_due(group, stored, configured, builder, known, step)
        is_delayed = targets is None
        if targets is not None:
            goal = stored.epoch, targets[found.member_id]
    current = _maybe_reconcile(group, found, member, goal, owned, step)
    refresh(group.group_id, found.member_id, step)
    return StreamsHeartbeatOutcome(
        found, current, member, topology, configured, stored, is_delayed, owned
    )


def _has_epoch_inputs_changed(
    group: StreamsGroup, topology: Topology, configured: ConfiguredTopology, step: GroupStep
) -> bool:
    """Whether the group epoch was chosen for something else than what there is."""
    stored = group.stored_epoch
    if stored.assignment_configs != assignment_configs(group.group_id, step):
        return True
    if stored.validated_topology_epoch == topology.epoch:
        return False
    return configured.is_ready or stored.metadata_hash != configured.metadata_hash


def _find(
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest,
    owned: TasksTuple | None,
    step: GroupStep,
) -> ResolvedStreamsMember:
    """Who asks, by the table above."""
    member_id, instance_id = request.member_id, request.instance_id
    is_join = request.member_epoch == JOIN_GROUP_EPOCH
    holder = None if instance_id is None else group.static_member_id(instance_id)
    if is_join and holder is not None and holder != member_id:
        held = group.member(holder)
        assert held is not None
        current = group.current(holder)
        if current.member_epoch != LEAVE_GROUP_STATIC_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group"
                f" because the instance id is owned by member {holder}.",
            )
        return ResolvedStreamsMember(
            member_id, held, StreamsCurrentAssignment(0, 0, current.state, current.assigned), holder
        )
    member = group.member(member_id)
    if not is_join:
        check_instance_id(group, member_id, instance_id)
    if member is None:
        if not is_join:
            raise unknown_member(group.group_id, member_id)
        if group.member_count >= step.settings.streams_of(group.group_id).max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The streams group has reached its maximum capacity of"
                f" {step.settings.streams_of(group.group_id).max_size} members.",
            )
    current = group.current(member_id)
    _check_epoch(request.member_epoch, current, owned)
    return ResolvedStreamsMember(member_id, member, current)


def _check_epoch(epoch: int, current: StreamsCurrentAssignment, owned: TasksTuple | None) -> None:
    known = current.member_epoch
    if epoch in (JOIN_GROUP_EPOCH, known):
        return
    # Whoever did not get the answer of an epoch tells what it had before.
    is_retry = epoch == current.previous_member_epoch
    if not is_retry or owned is None or not is_within(owned, current.assigned):
        raise _fenced(epoch_mismatch(epoch, known))


def _check_owned_tasks(
    owned: TasksTuple, current: StreamsCurrentAssignment, configured: ConfiguredTopology
) -> None:
    """Whether the member has tasks that there are, or were when it was given them; else ApiError:
    a topic may have been made again with fewer partitions."""
    held = {*tasks_of(current.assigned), *tasks_of(current.pending_revocation)}
    for tasks in owned:
        for subtopology, indexes in tasks.items():
            if all((subtopology, index) in held for index in indexes):
                continue
            count = configured.task_counts.get(subtopology)
            if count is None:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Subtopology {subtopology} does not exist in the topology.",
                )
            for index in indexes:
                if not 0 <= index < count:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"Task {index} for subtopology {subtopology} is invalid. Number of tasks"
                        f" for this subtopology: {count}",
                    )


def _owned(request: StreamsGroupHeartbeatRequest) -> TasksTuple | None:
    if request.active_tasks is None:
        return None
    return TasksTuple(
        _tasks(request.active_tasks), _tasks(request.standby_tasks), _tasks(request.warmup_tasks)
    )


def _tasks(requested: list[TaskIds] | None) -> dict[str, frozenset[int]]:
    return {
        tasks.subtopology_id: frozenset(tasks.partitions)
        for tasks in requested or ()
        if tasks.partitions
    }


def _updated(
    member: StreamsGroupMember | None, command: Command, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupMember:
    """The member with what it says anew; null says that nothing has changed."""
    if member is not None and _is_unchanged(member, command, request):
        return member
    known = member or StreamsGroupMember()
    endpoint, tags = request.user_endpoint, request.client_tags
    timeout_ms = request.rebalance_timeout_ms
    updated = StreamsGroupMember(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=(
            known.topology_epoch if request.topology is None else request.topology.epoch
        ),
        process_id=known.process_id if request.process_id is None else request.process_id,
        endpoint=known.endpoint if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=(
            known.client_tags
            if tags is None
            else tuple(sorted((tag.key, tag.value) for tag in tags))
        ),
    )
    return known if updated == member else updated


def _is_unchanged(
    member: StreamsGroupMember, command: Command, request: StreamsGroupHeartbeatRequest
) -> bool:
    """Whether a heartbeat says nothing of the member itself, as most do."""
    return (
        request.topology is None
        and request.process_id is None
        and request.user_endpoint is None
        and request.client_tags is None
        and request.rebalance_timeout_ms == -1
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and command.client_id == member.client_id
        and command.client_host == member.client_host
    )


def _update_topology(group: StreamsGroup, requested: Topology | None, step: GroupStep) -> Topology:
    known = group.topology
    if known is None:
        if requested is None:
            raise _fenced("belongs to a group whose topology is not known")
        step.records.append(StreamsTopologyRecord(group.group_id, requested))
        return requested
    if requested is not None and requested.epoch >= known.epoch and requested != known:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _store(
    group: StreamsGroup, found: ResolvedStreamsMember, member: StreamsGroupMember, step: GroupStep
) -> None:
    group_id, member_id = group.group_id, found.member_id
    if found.replaced_id is not None:
        target = group.target(found.replaced_id)
        forget_member(group_id, found.replaced_id, step)
        step.records += (
            StreamsMemberRecord(group_id, member_id, member),
            StreamsTargetRecord(group_id, member_id, target),
            StreamsCurrentRecord(group_id, member_id, found.current),
        )
        return
    step.records.append(StreamsMemberRecord(group_id, member_id, member))


def _maybe_reconcile(
    group: StreamsGroup,
    found: ResolvedStreamsMember,
    member: StreamsGroupMember,
    goal: tuple[int, TasksTuple],
    owned: TasksTuple | None,
    step: GroupStep,
) -> StreamsCurrentAssignment:
    """The member's next step towards its target, written if there is one."""
    member_id, before = found.member_id, found.current
    if is_reconciled_to(before, goal[0]):
        return before
    runners = (None, member_id, found.replaced_id)
    # What it has itself is no obstacle to its having it in another role: it gave that up.
    mine = {*tasks_of(before.assigned), *tasks_of(before.pending_revocation)}
    stored = found.member

    def is_free(role: TaskRole, subtopology: str, index: int) -> bool:
        if role is TaskRole.ACTIVE and group.runner(subtopology, index) not in runners:
            return False
        count = group.held_count(subtopology, index, member.process_id)
        if stored is not None and stored.process_id == member.process_id:
            count -= (subtopology, index) in mine
        return count <= 0

    try:
        current = reconcile(
            before, target_epoch=goal[0], target=goal[1], owned=owned, is_free=is_free
        )
    except FencedMember:
        raise _fenced("is in a state that is not known here") from None
    if current is before:
        return before
    step.records.append(StreamsCurrentRecord(group.group_id, member_id, current))
    key = revocation_key(group.group_id, member_id)
    if current.state is StreamsMemberState.UNREVOKED_TASKS:
        step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
    elif before.state is StreamsMemberState.UNREVOKED_TASKS:
        step.cancel_timer(key)
    return current


def refresh(group_id: str, member_id: str, step: GroupStep) -> None:
    """The member has given a sign of life: its session starts anew."""
    timeout_ms = step.settings.streams_of(group_id).session_timeout_ms
    step.set_timer(session_key(group_id, member_id), step.now_ms + timeout_ms)


def interval_ms(group: StreamsGroup, step: GroupStep) -> int:
    """When the member should come again: as in consumer groups (`heartbeats`)."""
    settings = step.settings.streams_of(group.group_id)
    longest_ms = settings.heartbeat_interval_ms
    return fair_heartbeat_interval(
        step,
        is_busy=bool(step.records) or group.state is not StreamsGroupState.STABLE,
        own_ms=longest_ms if settings.is_interval_fixed else None,
        longest_ms=longest_ms,
    )


# -- leaving --------------------------------------------------------------------------------------


def leave_static(group: StreamsGroup, member_id: str, step: GroupStep) -> None:
    """A static member leaves for a while (-2): it has what it had until its session ends."""
    before = group.current(member_id)
    left = msgspec.structs.replace(
        before, member_epoch=LEAVE_GROUP_STATIC_EPOCH, pending_revocation=NO_TASKS_WITH_EPOCHS
    )
    step.records.append(StreamsCurrentRecord(group.group_id, member_id, left))
    step.cancel_timer(revocation_key(group.group_id, member_id))


def remove(
    group: StreamsGroup, member_ids: Collection[str], known: AssignmentInputs, step: GroupStep
) -> None:
    """Members are gone, whatever the reason: the others share what they had."""
    builder = StreamsTargetAssignmentBuilder(group)
    for member_id in member_ids:
        builder.remove(member_id)
        forget_member(group.group_id, member_id, step)
    topology = group.topology
    stored = group.stored_epoch
    epoch = msgspec.structs.replace(stored, epoch=stored.epoch + 1)
    step.records.append(StreamsEpochRecord(group.group_id, epoch))
    if builder.members and topology is not None:
        configured = group.configured(topology, step.topics)
        assign_if_due(group, epoch, configured, builder, known, step)
    else:
        step.cancel_timer(assignment_key(group.group_id))
