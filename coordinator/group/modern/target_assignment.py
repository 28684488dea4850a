"""The target assignment of a newer group: when it is made, and which records it takes (KIP-848).

The group epoch goes up when the members change, or what they subscribe to, or those topics. The
target assignment is then made anew: at once if the last one is long enough ago
(group.<type>.assignment.interval.ms, KIP-1263), else by a timer, so that twenty members that join
together are assigned to twice, not twenty times. Only targets that differ are written, and the
epoch of all of them last.

What a transition is about to write is not in the tables yet; a builder is the group as it will be.
Each type of group has one of its own, which knows its assignor. Called by `modern.heartbeats`,
`modern.group_type` and the types.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from odradek.coordinator.group.modern.group import AnyGroup, GroupMember, ModernGroup
from odradek.coordinator.group.modern.records import GroupEpoch, TargetEpoch
from odradek.coordinator.group.step import GroupStep

M = TypeVar("M", bound=GroupMember)
T = TypeVar("T")
E = TypeVar("E", bound=GroupEpoch)


class TargetAssignmentBuilder(ABC, Generic[M, T, E]):
    """The members of a group, as they will be when the step has been replayed.

    It holds what changes. All members are iterated over when targets are made, and not whenever one
    comes or goes.
    """

    def __init__(self, group: ModernGroup[M, T, Any, E]) -> None:
        self._changed: dict[str, M | None] = {}
        self._replaced: dict[str, str] = {}
        self.base = group
        """The group as it is."""
        self.not_before_ms = 0
        """No target is made before this time, whatever the interval."""

    def put(self, member_id: str, member: M, replaced_id: str | None = None) -> None:
        """A member has come or has changed, or has replaced a static one, whose target it keeps."""
        if replaced_id is not None:
            self._change(replaced_id, None)
            self._replaced[member_id] = replaced_id
        self._change(member_id, member)

    def remove(self, member_id: str) -> None:
        """A member has gone."""
        self._change(member_id, None)

    def _change(self, member_id: str, member: M | None) -> None:
        self._changed[member_id] = member

    def members(self) -> dict[str, M]:
        """All members by id."""
        members = dict(self.base.members())
        for member_id, member in self._changed.items():
            if member is None:
                members.pop(member_id, None)
            else:
                members[member_id] = member
        return members

    def target(self, member_id: str) -> T:
        """The member's target so far."""
        return self.base.target(self._replaced.get(member_id, member_id))

    @abstractmethod
    def next_epoch(self, step: GroupStep) -> E:
        """The epoch behind the group's, with the topics that there are now."""

    @abstractmethod
    def targets(self, epoch: E, step: GroupStep) -> Mapping[str, T]:
        """What the type's assignor gives to every member."""

    def start_epoch(self, step: GroupStep) -> E:
        """Write the next group epoch."""
        epoch = self.next_epoch(step)
        step.records.append(self.base.records.epoch(self.base.group_id, epoch))
        return epoch

    def assign_if_due(self, epoch: E, step: GroupStep) -> Mapping[str, T] | None:
        """The new targets of all members, written; None if there are, or will be later."""
        if epoch.epoch <= self.base.target_epoch:
            return None
        due_ms = max(self.not_before_ms, assignment_due_ms(self.base, step))
        if step.now_ms < due_ms:
            step.set_timer(self.base.assignment_key(), due_ms)
            return None
        return self.assign_now(epoch, step)

    def assign_now(self, epoch: E, step: GroupStep) -> Mapping[str, T]:
        """Make the target assignment of the epoch, and write what differs."""
        group = self.base
        step.cancel_timer(group.assignment_key())
        targets = self.targets(epoch, step)
        for member_id, target in targets.items():
            if target != self.target(member_id) or not group.has_target(member_id):
                step.records.append(group.records.target(group.group_id, member_id, target))
        stored = TargetEpoch(epoch.epoch, step.now_ms)
        step.records.append(group.records.target_epoch(group.group_id, stored))
        return targets


def assignment_due_ms(group: AnyGroup, step: GroupStep) -> int:
    """The time from which on the interval allows another target assignment."""
    assigned_at_ms = group.assigned_at_ms
    # A clock that was set back must not put it off.
    if assigned_at_ms is None or assigned_at_ms > step.now_ms:
        return 0
    return assigned_at_ms + group.settings_of(step.settings, group.group_id).assignment_interval_ms
