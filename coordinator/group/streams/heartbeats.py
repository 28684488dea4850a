"""StreamsGroupHeartbeat: join, continue, leave (KIP-1071).

The member epoch of the request against the known one, in Kafka's order of checks (an invalid
request gets INVALID_REQUEST before, an invalid topology STREAMS_INVALID_TOPOLOGY):

| Epoch | Member | Result |
|---|---|---|
| 0 | unknown, group not full | new member, group epoch + 1 |
| 0 | unknown, group full | GROUP_MAX_SIZE_REACHED |
| 0 | known | continues, and gets all its tasks |
| 0 | static, the id's owner has left temporarily (-2) | replaces the owner |
| 0 | static, the id's owner is active | UNRELEASED_INSTANCE_ID |
| > 0 | unknown | UNKNOWN_MEMBER_ID |
| > 0 | static, another member owns the id | FENCED_INSTANCE_ID |
| > 0 | epoch is its own | continues |
| > 0 | epoch is its previous one, owns only assigned tasks | gets the lost response again |
| > 0 | any other epoch | FENCED_MEMBER_EPOCH |
| -1 | known | removed, group epoch + 1 |
| -2 | static | keeps its tasks until its session ends |

Responses may be lost, several in a row. As in consumer groups (`consumer.heartbeats`), a member
that has not received its epoch gets it again and does not advance until it sends that epoch. Over
another connection than that of its last response with news, its previous epoch is valid without
tasks, too, and the member gets its tasks until it confirms them.

The first member's topology is the group's. A different topology of the same or a higher epoch is
refused (INVALID_REQUEST), one of a lower epoch gets the status STALE_TOPOLOGY. Topics are validated
whenever they change. While they do not match the topology, members have no tasks, and every
response has the reason; the caller creates missing internal topics.

Called by `streams.groups`.
"""

from typing import NamedTuple

from odradek.coordinator.group.modern import heartbeats as modern
from odradek.coordinator.group.modern.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    ResolvedMember,
    check_texts,
    fenced,
    is_lost_response,
    may_be_lost,
    resolve_member,
    schedule_session_timeout,
    store_member,
    with_sent,
)
from odradek.coordinator.group.modern.reconciliation import is_reconciled_to
from odradek.coordinator.group.modern.records import flat
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.group import StreamsGroup, tasks_by_role
from odradek.coordinator.group.streams.reconciliation import TASKS, TaskRole
from odradek.coordinator.group.streams.records import (
    StoredPair,
    StreamsCurrentAssignment,
    StreamsEndpoint,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsTopologyRecord,
    TasksTuple,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.coordinator.group.streams.target_assignment import (
    AssignmentInputs,
    StreamsTargetAssignmentBuilder,
    assignment_configs,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology, StatusCode, topology_of
from odradek.coordinator.group.streams.warmups import has_caught_up
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest, TaskIds

Resolved = ResolvedMember[StreamsGroupMember, StreamsCurrentAssignment]


class StreamsHeartbeatOutcome(NamedTuple):
    """The result of a heartbeat, as it will be when the step's records have been replayed."""

    resolved: Resolved
    current: StreamsCurrentAssignment
    member: StreamsGroupMember
    topology: Topology
    configured: ConfiguredTopology
    epoch: StreamsGroupEpoch
    is_delayed: bool
    owned: TasksTuple | None
    may_be_lost: bool
    """The member may not have received its epoch or its tasks: the response has them again."""

    @property
    def topology_error(self) -> tuple[StatusCode, str] | None:
        """Why the group has no tasks; None if it has."""
        is_validated = self.epoch.validated_topology_epoch == self.topology.epoch
        return None if is_validated else self.configured.topology_error

    def includes_tasks(self, request: StreamsGroupHeartbeatRequest) -> bool:
        """Whether the response has the member's tasks: it joins, its tasks have changed, it may not
        have received them, or it has sent others."""
        if request.member_epoch == JOIN_GROUP_EPOCH or self.may_be_lost:
            return True
        before, after = self.resolved.current.assigned, self.current.assigned
        if before is after and self.owned is None:
            return False
        assigned = set(tasks_by_role(after))
        return set(tasks_by_role(before)) != assigned or (
            self.owned is not None and set(tasks_by_role(self.owned)) != assigned
        )


# -- the request by itself ------------------------------------------------------------------------


def check(request: StreamsGroupHeartbeatRequest) -> None:
    """Validate the fields of the request; ApiError(INVALID_REQUEST) if they are invalid."""
    violation = _violation(request) or check_texts(
        request.group_id,
        request.member_id,
        request.instance_id,
        request.rack_id,
        request.process_id,
    )
    if violation is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, violation)


def _violation(request: StreamsGroupHeartbeatRequest) -> str | None:
    epoch = request.member_epoch
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        return "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
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


# -- joining and continuing -----------------------------------------------------------------------


def heartbeat(
    group: StreamsGroup,
    command: Command,
    request: StreamsGroupHeartbeatRequest,
    inputs: AssignmentInputs,
    step: GroupStep,
) -> StreamsHeartbeatOutcome:
    """A heartbeat of a member that joins or continues. ApiError if it is refused."""
    owned = _owned(request)
    is_unconfirmed = may_be_lost(group, request.member_id, command.connection_id)
    resolved: Resolved = resolve_member(
        group,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        step,
        is_retry=lambda current: is_lost_response(
            TASKS, owned, current, is_other_connection=is_unconfirmed
        ),
    )
    requested = None if request.topology is None else topology_of(request.topology)
    member = _updated(resolved.member, command, request)
    topology = _update_topology(group, requested, step)
    member_id = resolved.member_id
    configured = group.configured(topology, step.topics)
    if configured.is_ready and owned is not None:
        _check_owned_tasks(owned, resolved.current, configured)
    epoch, goal = _update_member(group, resolved, member, configured, topology, inputs, step)
    current = resolved.current
    has_epoch = request.member_epoch in (JOIN_GROUP_EPOCH, current.member_epoch)
    if has_epoch:
        current = _maybe_reconcile(group, resolved, member, goal, owned, step)
    schedule_session_timeout(group, member_id, member, step)
    if owned is not None and is_unconfirmed and _is_exactly(owned, current.assigned):
        del group.unconfirmed_connections[member_id]
        is_unconfirmed = False
    outcome = StreamsHeartbeatOutcome(
        resolved,
        current,
        member,
        topology,
        configured,
        epoch,
        epoch.epoch > goal[0],
        owned,
        may_be_lost=is_unconfirmed or not has_epoch,
    )
    is_news = request.member_epoch not in (JOIN_GROUP_EPOCH, current.member_epoch)
    if is_news or (request.member_epoch != JOIN_GROUP_EPOCH and outcome.includes_tasks(request)):
        group.unconfirmed_connections[member_id] = command.connection_id
    return outcome


def _update_member(
    group: StreamsGroup,
    resolved: Resolved,
    member: StreamsGroupMember,
    configured: ConfiguredTopology,
    topology: Topology,
    inputs: AssignmentInputs,
    step: GroupStep,
) -> tuple[StreamsGroupEpoch, tuple[int, TasksTuple]]:
    """Write the changes of the member and of its group; returns the group epoch, and epoch and
    tasks of the member's target."""
    member_id, before = resolved.member_id, resolved.member
    is_changed = resolved.replaced_id is not None or (member is not before and member != before)
    epoch, target_epoch = group.stored_epoch, group.target_epoch
    # Validated topics are validated again only when they are reported as changed: a node that
    # is still loading its metadata does not see all of them yet.
    is_warm = has_caught_up(group.target(member_id).warmup, member_id, inputs.lags)
    needs_epoch = (
        is_changed
        or (is_warm and epoch.epoch == target_epoch)
        or _has_epoch_inputs_changed(group, topology, configured, step)
    )
    goal = target_epoch, group.target(resolved.replaced_id or member_id)
    if needs_epoch or epoch.epoch > target_epoch:
        builder = StreamsTargetAssignmentBuilder(group, topology, inputs)
        if is_changed:
            store_member(builder, resolved, member, step)
        if needs_epoch:
            epoch = builder.start_epoch(step)
        targets = builder.assign_if_due(epoch, step)
        if targets is not None:
            goal = epoch.epoch, targets[member_id]
    return epoch, goal


def _is_exactly(owned: TasksTuple, assigned: TasksTupleWithEpochs) -> bool:
    return set(tasks_by_role(owned)) == set(tasks_by_role(assigned))


def _has_epoch_inputs_changed(
    group: StreamsGroup, topology: Topology, configured: ConfiguredTopology, step: GroupStep
) -> bool:
    """Whether the topics or configs differ from those of the group epoch."""
    stored = group.stored_epoch
    if stored.assignment_configs != assignment_configs(group.group_id, step):
        return True
    if stored.validated_topology_epoch == topology.epoch:
        return False
    return configured.is_ready or stored.metadata_hash != configured.metadata_hash


def _check_owned_tasks(
    owned: TasksTuple, current: StreamsCurrentAssignment, configured: ConfiguredTopology
) -> None:
    """Whether the member's tasks exist, or existed when they were assigned to it; else ApiError. A
    topic may have been recreated with fewer partitions."""
    held = set(flat(*current.assigned, *current.pending_revocation))
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
    """The member with the fields of the request; null stands for no change."""
    topology, endpoint, tags = request.topology, request.user_endpoint, request.client_tags
    timeout_ms = request.rebalance_timeout_ms
    # Most heartbeats have no field of the member itself.
    if (
        member is not None
        and topology is None
        and request.process_id is None
        and endpoint is None
        and tags is None
        and timeout_ms == -1
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and command.client_id == member.client_id
        and command.client_host == member.client_host
    ):
        return member
    pairs = (StoredPair(tag.key, tag.value) for tag in tags or ())
    return with_sent(
        member or StreamsGroupMember(),
        command,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms == -1 else timeout_ms,
        topology_epoch=None if topology is None else topology.epoch,
        process_id=request.process_id,
        endpoint=None if endpoint is None else StreamsEndpoint(endpoint.host, endpoint.port),
        client_tags=None if tags is None else tuple(sorted(pairs)),
    )


def _update_topology(group: StreamsGroup, requested: Topology | None, step: GroupStep) -> Topology:
    known = group.topology
    if known is None:
        if requested is None:
            raise fenced(group, "belongs to a group whose topology is not known")
        step.records.append(StreamsTopologyRecord(group.group_id, requested))
        return requested
    if requested is not None and requested.epoch >= known.epoch and requested != known:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _maybe_reconcile(
    group: StreamsGroup,
    resolved: Resolved,
    member: StreamsGroupMember,
    goal: tuple[int, TasksTuple],
    owned: TasksTuple | None,
    step: GroupStep,
) -> StreamsCurrentAssignment:
    """The member's next step towards its target, written if there is one."""
    member_id, before = resolved.member_id, resolved.current
    if is_reconciled_to(before, goal[0]):
        return before
    runners = (None, member_id, resolved.replaced_id)
    # The member may get a task that it has had in another role: it has revoked that one.
    held = set(flat(*before.assigned, *before.pending_revocation))
    stored = resolved.member

    def is_free(role: TaskRole, subtopology: str, index: int) -> bool:
        if role is TaskRole.ACTIVE and group.runner(subtopology, index) not in runners:
            return False
        count = group.held_count(subtopology, index, member.process_id)
        if stored is not None and stored.process_id == member.process_id:
            count -= (subtopology, index) in held
        return count <= 0

    return modern.maybe_reconcile(group, resolved, member, TASKS, goal, owned, is_free, step)
