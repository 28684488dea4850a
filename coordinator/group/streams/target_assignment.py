"""The target assignment of a streams group: topology, topics, and its assignor (KIP-1071).

A new group waits for more members (group.streams.initial.rebalance.delay.ms) before its first
target assignment. Called by `streams.heartbeats` and `streams.groups`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from odradek.coordinator.group.modern.target_assignment import TargetAssignmentBuilder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.assignor import StreamsMemberSpec, assign
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import (
    NO_TASKS,
    NOT_VALIDATED,
    Pairs,
    StoredPair,
    StreamsGroupEpoch,
    StreamsGroupMember,
    TasksTuple,
    Topology,
)
from odradek.coordinator.group.streams.warmups import NO_LAGS, Lags, insert_warmups

_STANDBY_KEY: Final = "num.standby.replicas"


class AssignmentInputs(NamedTuple):
    """Input of the assignment that is not in the log: until when a new group waits for more
    members, and the lags of tasks."""

    delayed_until_ms: int = 0
    lags: Lags = NO_LAGS


class StreamsTargetAssignmentBuilder(
    TargetAssignmentBuilder[StreamsGroupMember, TasksTuple, StreamsGroupEpoch]
):
    """See TargetAssignmentBuilder. `topology` is or becomes the group's. A group without topology
    or without members has no target assignment."""

    group: StreamsGroup

    def __init__(
        self, group: StreamsGroup, topology: Topology | None, inputs: AssignmentInputs
    ) -> None:
        super().__init__(group)
        self._topology = topology
        self._lags = inputs.lags
        self.not_before_ms = inputs.delayed_until_ms
        self.is_validating = True
        """Whether the next epoch validates the topics as they are now, or keeps the validation of
        the last epoch."""

    def next_epoch(self, step: GroupStep) -> StreamsGroupEpoch:
        """See TargetAssignmentBuilder."""
        stored = self.group.stored_epoch
        if self._topology is None or not self.is_validating:
            return msgspec.structs.replace(stored, epoch=stored.epoch + 1)
        configured = self.group.configured(self._topology, step.topics)
        return StreamsGroupEpoch(
            stored.epoch + 1,
            configured.metadata_hash,
            self._topology.epoch if configured.is_ready else NOT_VALIDATED,
            assignment_configs(self.group.group_id, step),
        )

    def assign_if_due(
        self, epoch: StreamsGroupEpoch, step: GroupStep
    ) -> Mapping[str, TasksTuple] | None:
        """See TargetAssignmentBuilder."""
        if self._topology is None or not self.members():
            step.cancel_timer(self.group.assignment_key())
            return None
        return super().assign_if_due(epoch, step)

    def targets(self, epoch: StreamsGroupEpoch, step: GroupStep) -> Mapping[str, TasksTuple]:
        """See TargetAssignmentBuilder. While topics are missing no member has tasks."""
        members = self.members()
        assert self._topology is not None
        configured = self.group.configured(self._topology, step.topics)
        if not configured.is_ready:
            return dict.fromkeys(members, NO_TASKS)
        specs = [
            StreamsMemberSpec(member_id, member.process_id, self.target(member_id))
            for member_id, member in members.items()
        ]
        configs = {pair.key: pair.value for pair in epoch.assignment_configs}
        standby_count = int(configs.get(_STANDBY_KEY, "0"))
        stateful = configured.stateful
        targets = assign(specs, configured.task_counts, stateful, standby_count)
        return insert_warmups(targets, specs, stateful, self._lags)


def assignment_configs(group_id: str, step: GroupStep) -> Pairs:
    """The assignor's configuration, as it is stored."""
    standby_count = step.settings.streams_of(group_id).num_standby_replicas
    return (StoredPair(_STANDBY_KEY, str(standby_count)),)
