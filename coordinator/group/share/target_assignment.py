"""A share group's epochs and targets: when they change, and to what (KIP-932).

As in consumer groups (`assigning`), the group epoch goes up when who is in the group changes, or
what they subscribe to, or those topics, and the target assignment is made anew, at once or (after
group.share.assignment.interval.ms) by a timer. Assigned are only partitions whose share state has
been made; when that happens, the group gets an epoch for it.

What a transition is about to write is not in the tables yet; `ShareTargetAssignmentBuilder` is the
group as it will be. Called by `share.heartbeats` and `share.groups`.
"""

from collections.abc import Mapping

from odradek.coordinator.group.consumer.records import (
    GroupEpoch,
    TargetEpoch,
)
from odradek.coordinator.group.consumer.target_assignment import (
    is_interval_over,
)
from odradek.coordinator.group.share.assignor import ShareMemberSpec, assign_shared
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareGroupMember,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
    TopicStates,
)
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, InitializeStates
from odradek.coordinator.group.share.state_partitions import initializing, missing
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.topics import (
    Partitions,
    TopicDigest,
    metadata_hash,
)
from odradek.coordinator.outcome import NO_REQUEST, TimerKey


def session_key(group_id: str, member_id: str) -> TimerKey:
    """The timer of a member's session."""
    return ("share-session", group_id, member_id)


def assignment_key(group_id: str) -> TimerKey:
    """The timer of a target assignment that was put off."""
    return ("share-assignment", group_id)


class ShareTargetAssignmentBuilder:
    """The group's members and states as they will be when the step has been replayed."""

    __slots__ = ("group", "members", "states")

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.members: dict[str, ShareGroupMember] = dict(group.members())
        self.states: StatePartitions = group.states

    def topics(self, step: GroupStep) -> dict[str, TopicDigest]:
        """The topics that members subscribe to, as far as they exist, by name."""
        found = {}
        for name in {name for member in self.members.values() for name in member.topic_names}:
            topic = step.topics.topic(name)
            if topic is not None:
                found[name] = topic
        return found

    def specs(self, topics: Mapping[str, TopicDigest]) -> list[ShareMemberSpec]:
        """The members as the assignor sees them."""
        return [
            ShareMemberSpec(
                member_id,
                frozenset(topics[name].topic_id for name in member.topic_names if name in topics),
                self.group.target(member_id),
            )
            for member_id, member in self.members.items()
        ]

    def assignable(self, topics: Mapping[str, TopicDigest]) -> Partitions:
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


def store_states(
    builder: ShareTargetAssignmentBuilder, states: StatePartitions, step: GroupStep
) -> None:
    """Write which partitions have a state, if that is news."""
    if states != builder.states:
        builder.states = states
        step.records.append(ShareStatePartitionsRecord(builder.group.group_id, states))


def forget_member(group_id: str, member_id: str, step: GroupStep) -> None:
    """Write that a member is gone, and cancel its timer."""
    step.records += (
        ShareCurrentRecord(group_id, member_id, None),
        ShareTargetRecord(group_id, member_id, None),
        ShareMemberRecord(group_id, member_id, None),
    )
    step.cancel_timer(session_key(group_id, member_id))


def hash_of(builder: ShareTargetAssignmentBuilder, step: GroupStep) -> int:
    """The hash of the topics that the group will read."""
    return metadata_hash(builder.topics(step).values(), with_racks=False)


def start_epoch(builder: ShareTargetAssignmentBuilder, step: GroupStep) -> int:
    """Begin the next group epoch, in which states are asked for that are missing."""
    group = builder.group
    epoch = group.epoch + 1
    stored = GroupEpoch(epoch, hash_of(builder, step))
    step.records.append(ShareEpochRecord(group.group_id, stored))
    ask_for_states(builder, epoch, step)
    return epoch


def ask_for_states(builder: ShareTargetAssignmentBuilder, epoch: int, step: GroupStep) -> None:
    """Have states made for subscribed partitions that have none, in the given state epoch."""
    wanted = missing(builder.states, builder.topics(step).values())
    if wanted:
        store_states(builder, initializing(builder.states, wanted), step)
        step.send(initialize_states(builder.group.group_id, epoch, wanted))


def initialize_states(group_id: str, epoch: int, topics: TopicStates) -> InitializeStates:
    """The instruction to make states that say nothing yet."""
    return InitializeStates(
        group_id,
        epoch,
        {
            topic_id: dict.fromkeys(sorted(indexes), UNKNOWN_OFFSET)
            for topic_id, (_, indexes) in topics.items()
        },
        NO_REQUEST,
    )


def is_due(group: ShareGroup, step: GroupStep) -> bool:
    """Whether the last target assignment is long enough ago for another one."""
    interval_ms = step.settings.share_of(group.group_id).assignment_interval_ms
    return is_interval_over(group.assigned_at_ms, interval_ms, step.now_ms)


def assign_if_due(
    builder: ShareTargetAssignmentBuilder, epoch: int, step: GroupStep
) -> dict[str, Partitions] | None:
    """The new targets of all members, written; None if there are, or will be later."""
    group = builder.group
    if epoch <= group.target_epoch:
        return None
    if not is_due(group, step):
        assert group.assigned_at_ms is not None
        interval_ms = step.settings.share_of(group.group_id).assignment_interval_ms
        due_ms = group.assigned_at_ms + interval_ms
        step.set_timer(assignment_key(group.group_id), due_ms)
        return None
    return assign_now(builder, epoch, step)


def assign_now(
    builder: ShareTargetAssignmentBuilder, epoch: int, step: GroupStep
) -> dict[str, Partitions]:
    """Make the target assignment of the epoch, and write what differs."""
    group = builder.group
    step.cancel_timer(assignment_key(group.group_id))
    topics = builder.topics(step)
    found: dict[str, Partitions] = {}
    targets = assign_shared(builder.specs(topics), builder.assignable(topics))
    for member_id, target in targets.items():
        found[member_id] = target
        if target != group.target(member_id) or not group.has_target(member_id):
            step.records.append(ShareTargetRecord(group.group_id, member_id, target))
    stored = TargetEpoch(epoch, step.now_ms)
    step.records.append(ShareTargetEpochRecord(group.group_id, stored))
    return found
