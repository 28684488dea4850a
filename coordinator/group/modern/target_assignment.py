"""The target assignment of a newer group: when it is made, and which records it takes (KIP-848).

The group epoch increases when members, their subscriptions or the subscribed topics change. Then a
new target assignment is made: at once if the last one is old enough
(group.<type>.assignment.interval.ms, KIP-1263), else by a timer, so that twenty members that join
together cause two assignments, not twenty. Only targets that differ are written, and then the epoch
of the target assignment.

Records that a transition adds are not in the tables yet; a builder represents the group with these
records applied. Each type of group has a builder, which knows its assignor. Called by
`modern.heartbeats`, `modern.group_type` and the types.
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
    """The members of a group, as they will be when the step's records have been replayed.

    It holds the changes only: it iterates over all members when it makes a target assignment, not
    when a member joins or leaves.
    """

    def __init__(self, group: ModernGroup[M, T, Any, E]) -> None:
        self._changed: dict[str, M | None] = {}
        self._replaced: dict[str, str] = {}
        self.group = group
        """The group without the changes."""
        self.not_before_ms = 0
        """No target assignment is made before this time, whatever the interval."""

    def put(self, member_id: str, member: M, replaced_id: str | None = None) -> None:
        """Add or change a member, which may replace a static one: then it keeps the target."""
        if replaced_id is not None:
            self._change(replaced_id, None)
            self._replaced[member_id] = replaced_id
        self._change(member_id, member)

    def remove(self, member_id: str) -> None:
        """Remove a member."""
        self._change(member_id, None)

    def _change(self, member_id: str, member: M | None) -> None:
        self._changed[member_id] = member

    def members(self) -> dict[str, M]:
        """All members by id."""
        members = dict(self.group.members())
        for member_id, member in self._changed.items():
            if member is None:
                members.pop(member_id, None)
            else:
                members[member_id] = member
        return members

    def target(self, member_id: str) -> T:
        """The member's target so far."""
        return self.group.target(self._replaced.get(member_id, member_id))

    @abstractmethod
    def next_epoch(self, step: GroupStep) -> E:
        """The epoch after the group's, with the topics as they are now."""

    @abstractmethod
    def targets(self, epoch: E, step: GroupStep) -> Mapping[str, T]:
        """The assignor's target for every member."""

    def start_epoch(self, step: GroupStep) -> E:
        """Write the next group epoch."""
        epoch = self.next_epoch(step)
        step.records.append(self.group.records.epoch(self.group.group_id, epoch))
        return epoch

    def assign_if_due(self, epoch: E, step: GroupStep) -> Mapping[str, T] | None:
        """Write the new targets and return those of all members; None if they are up to date, or
        not due yet."""
        if epoch.epoch <= self.group.target_epoch:
            return None
        due_ms = max(self.not_before_ms, assignment_due_ms(self.group, step))
        if step.now_ms < due_ms:
            step.set_timer(self.group.assignment_key(), due_ms)
            return None
        return self.assign_now(epoch, step)

    def assign_now(self, epoch: E, step: GroupStep) -> Mapping[str, T]:
        """Make the target assignment of the epoch, and write the targets that differ."""
        group = self.group
        step.cancel_timer(group.assignment_key())
        targets = self.targets(epoch, step)
        for member_id, target in targets.items():
            if target != self.target(member_id) or not group.has_target(member_id):
                step.records.append(group.records.target(group.group_id, member_id, target))
        stored = TargetEpoch(epoch.epoch, step.now_ms)
        step.records.append(group.records.target_epoch(group.group_id, stored))
        return targets


def assignment_due_ms(group: AnyGroup, step: GroupStep) -> int:
    """The earliest time at which the interval allows another target assignment."""
    assigned_at_ms = group.assigned_at_ms
    # A clock that was set back must not delay it.
    if assigned_at_ms is None or assigned_at_ms > step.now_ms:
        return 0
    return assigned_at_ms + group.settings_of(step.settings, group.group_id).assignment_interval_ms
