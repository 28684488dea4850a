"""A streams group's epochs and targets: when they change, and to what (KIP-1071).

The group epoch goes up when who is in the group changes, or what the assignor is told, or the
topics. The target assignment is then made anew, at once if the last one is some time ago
(group.streams.assignment.interval.ms, KIP-1263) and the group is not waiting for its first members
(group.streams.initial.rebalance.delay.ms), else by a timer. Only targets that differ are written,
and the epoch of all of them last.

What a transition is about to write is not in the tables yet; `StreamsTargetAssignmentBuilder` is
the group as it will be. Called by `streams.heartbeats` and `streams.groups`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.coordinator.group.consumer.records import TargetEpoch
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.streams.assignor import StreamsMemberSpec, assign
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import (
    NO_TASKS,
    NOT_VALIDATED,
    Pairs,
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsMemberRecord,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
    TasksTuple,
    Topology,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology
from odradek.coordinator.group.streams.warmups import NO_LAGS, Lags, insert_warmups
from odradek.coordinator.outcome import TimerKey

_STANDBY_KEY: Final = "num.standby.replicas"


def session_key(group_id: str, member_id: str) -> TimerKey:
    """The timer of a member's session."""
    return ("streams-session", group_id, member_id)


def revocation_key(group_id: str, member_id: str) -> TimerKey:
    """The timer that ends the wait for a member to give up tasks."""
    return ("streams-revocation", group_id, member_id)


def assignment_key(group_id: str) -> TimerKey:
    """The timer of a target assignment that was put off."""
    return ("streams-assignment", group_id)


class AssignmentInputs(NamedTuple):
    """What a coordinator knows besides the log: how long a new group waits for its other members,
    and how far tasks are behind."""

    delayed_until_ms: int = 0
    lags: Lags = NO_LAGS


class StreamsTargetAssignmentBuilder:
    """Who will be in the group when the step has been replayed, and what they were to have."""

    __slots__ = ("_group", "_replaced", "members")

    def __init__(self, group: StreamsGroup) -> None:
        self._group = group
        self._replaced: dict[str, str] = {}
        self.members: dict[str, StreamsGroupMember] = dict(group.members())

    def put(
        self, member_id: str, member: StreamsGroupMember, replaced_id: str | None = None
    ) -> None:
        """A member has come or has changed, or goes on for a static one under a new id."""
        self.members[member_id] = member
        if replaced_id is not None:
            self.members.pop(replaced_id, None)
            self._replaced[member_id] = replaced_id

    def remove(self, member_id: str) -> None:
        """A member has gone."""
        self.members.pop(member_id, None)

    def target(self, member_id: str) -> TasksTuple:
        """The tasks that the member was to have so far."""
        return self._group.target(self._replaced.get(member_id, member_id))


def assignment_configs(group_id: str, step: GroupStep) -> Pairs:
    """What the assignor is told, as it is stored."""
    return ((_STANDBY_KEY, str(step.settings.streams_of(group_id).num_standby_replicas)),)


def start_epoch(
    group: StreamsGroup, topology: Topology, configured: ConfiguredTopology, step: GroupStep
) -> StreamsGroupEpoch:
    """Begin the next group epoch."""
    epoch = StreamsGroupEpoch(
        group.epoch + 1,
        configured.metadata_hash,
        topology.epoch if configured.is_ready else NOT_VALIDATED,
        assignment_configs(group.group_id, step),
    )
    step.records.append(StreamsEpochRecord(group.group_id, epoch))
    return epoch


def assign_if_due(
    group: StreamsGroup,
    epoch: StreamsGroupEpoch,
    configured: ConfiguredTopology,
    builder: StreamsTargetAssignmentBuilder,
    known: AssignmentInputs,
    step: GroupStep,
) -> Mapping[str, TasksTuple] | None:
    """The new targets of all members, written; None if they will be made later."""
    settings = step.settings.streams_of(group.group_id)
    due_ms = known.delayed_until_ms
    # A clock that was set back must not put it off.
    if group.has_target_epoch and group.assigned_at_ms <= step.now_ms:
        due_ms = max(due_ms, group.assigned_at_ms + settings.assignment_interval_ms)
    if step.now_ms < due_ms:
        step.set_timer(assignment_key(group.group_id), due_ms)
        return None
    step.cancel_timer(assignment_key(group.group_id))
    return assign_now(group, epoch, configured, builder, known, step)


def assign_now(
    group: StreamsGroup,
    epoch: StreamsGroupEpoch,
    configured: ConfiguredTopology,
    builder: StreamsTargetAssignmentBuilder,
    known: AssignmentInputs,
    step: GroupStep,
) -> Mapping[str, TasksTuple]:
    """Make the target assignment of the epoch, and write what differs."""
    targets = dict.fromkeys(builder.members, NO_TASKS)
    if configured.is_ready:
        specs = [
            StreamsMemberSpec(member_id, member.process_id, builder.target(member_id))
            for member_id, member in builder.members.items()
        ]
        standby_count = int(dict(epoch.assignment_configs).get(_STANDBY_KEY, "0"))
        stateful = configured.stateful
        targets = assign(specs, configured.task_counts, stateful, standby_count)
        targets = insert_warmups(targets, specs, stateful, known.lags)
    for member_id, target in targets.items():
        if target != builder.target(member_id) or not group.has_target(member_id):
            step.records.append(StreamsTargetRecord(group.group_id, member_id, target))
    stored = TargetEpoch(epoch.epoch, step.now_ms)
    step.records.append(StreamsTargetEpochRecord(group.group_id, stored))
    return targets


def forget_member(group_id: str, member_id: str, step: GroupStep) -> None:
    """Write that a member is gone, and cancel its timers."""
    step.records += (
        StreamsCurrentRecord(group_id, member_id, None),
        StreamsTargetRecord(group_id, member_id, None),
        StreamsMemberRecord(group_id, member_id, None),
    )
    step.cancel_timer(session_key(group_id, member_id))
    step.cancel_timer(revocation_key(group_id, member_id))
