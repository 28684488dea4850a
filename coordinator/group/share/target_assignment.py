"""The target assignment of a share group, and the share states that it needs (KIP-932).

Only partitions whose share state is initialized are assigned. The initialization of states starts a
group epoch. Called by `share.heartbeats` and `share.groups`.
"""

from collections.abc import Mapping

from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.modern.target_assignment import TargetAssignmentBuilder
from odradek.coordinator.group.share.assignor import ShareMemberSpec, assign_shared
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareGroupMember,
    ShareStatePartitionsRecord,
    StatePartitions,
    TopicStates,
)
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, InitializeStates
from odradek.coordinator.group.share.state_partitions import initializing, missing
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import Partitions, TopicCatalog, TopicDigest, metadata_hash


class ShareTargetAssignmentBuilder(
    TargetAssignmentBuilder[ShareGroupMember, Partitions, GroupEpoch]
):
    """See TargetAssignmentBuilder. It also holds the states of partitions."""

    group: ShareGroup

    def __init__(self, group: ShareGroup) -> None:
        super().__init__(group)
        self.states: StatePartitions = group.states

    def hash(self, topics: TopicCatalog) -> int:
        """The hash of the topics that the group will subscribe to."""
        return metadata_hash(topics.existing(self.topic_names()).values(), with_racks=False)

    def start_epoch(self, step: GroupStep) -> GroupEpoch:
        """See TargetAssignmentBuilder. Missing states are initialized in this epoch."""
        epoch = super().start_epoch(step)
        self.ask_for_states(epoch.epoch, step)
        return epoch

    def next_epoch(self, step: GroupStep) -> GroupEpoch:
        """See TargetAssignmentBuilder."""
        return GroupEpoch(self.group.epoch + 1, self.hash(step.topics))

    def targets(self, _epoch: GroupEpoch, step: GroupStep) -> Mapping[str, Partitions]:
        """See TargetAssignmentBuilder."""
        topics = step.topics.existing(self.topic_names())
        specs = [
            ShareMemberSpec(
                member_id,
                frozenset(topics[name].topic_id for name in member.topic_names if name in topics),
                self.group.target(member_id),
            )
            for member_id, member in self.members().items()
        ]
        return assign_shared(specs, self._assignable(topics))

    def topic_names(self) -> set[str]:
        """Every topic that a member subscribes to."""
        return {name for member in self.members().values() for name in member.topic_names}

    def _assignable(self, topics: Mapping[str, TopicDigest]) -> Partitions:
        """The partitions that exist and have a share state."""
        return {
            topic.topic_id: frozenset(
                index
                for index in self.states.initialized[topic.topic_id].indexes
                if index < topic.partition_count
            )
            for topic in topics.values()
            if topic.topic_id in self.states.initialized
        }

    def store_states(self, states: StatePartitions, step: GroupStep) -> None:
        """Write the partitions that have a state, if they have changed."""
        if states != self.states:
            self.states = states
            step.records.append(ShareStatePartitionsRecord(self.group.group_id, states))

    def ask_for_states(self, epoch: int, step: GroupStep) -> None:
        """Initialize the states of subscribed partitions without one, in the given state epoch."""
        wanted = missing(self.states, step.topics.existing(self.topic_names()).values())
        if wanted:
            self.store_states(initializing(self.states, wanted), step)
            step.send(initialize_states(self.group.group_id, epoch, wanted))


def initialize_states(group_id: str, epoch: int, topics: TopicStates) -> InitializeStates:
    """The instruction to initialize states without a start offset."""
    offsets = {
        topic_id: dict.fromkeys(sorted(indexes), UNKNOWN_OFFSET)
        for topic_id, (_, indexes) in topics.items()
    }
    return InitializeStates(group_id, epoch, offsets)
