"""A share group's epochs and targets: when they change, and to what (KIP-932).

As in consumer groups (`assigning`), the group epoch goes up when who is in the group changes, or
what they subscribe to, or those topics, and the target assignment is made anew, at once or (after
group.share.assignment.interval.ms) by a timer. Assigned are only partitions whose share state has
been made; when that happens, the group gets an epoch for it.

What a transition is about to write is not in the tables yet; `ShareMembership` is the group as it
will be. Called by `share.heartbeats` and `share.groups`.
"""

from collections.abc import Mapping

from odradek.coordinator.group.consumer.assigning import ConsumerStep, is_pause_over
from odradek.coordinator.group.consumer.records import GroupEpoch, Partitions, TargetEpoch
from odradek.coordinator.group.share.assignor import ShareCandidate, assign_shared
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.partition_states import initializing, missing
from odradek.coordinator.group.share.records import (
    PartitionStates,
    PartitionStatesStored,
    ShareCurrentStored,
    ShareEpochStored,
    ShareMember,
    ShareMemberStored,
    ShareTargetEpochStored,
    ShareTargetStored,
    TopicStates,
)
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, InitializeStates
from odradek.coordinator.group.topics import TopicDigest, metadata_hash
from odradek.coordinator.outcome import NO_REQUEST, TimerKey


def session_key(group_id: str, member_id: str) -> TimerKey:
    """The timer of a member's session."""
    return ("share-session", group_id, member_id)


def assignment_key(group_id: str) -> TimerKey:
    """The timer of a target assignment that was put off."""
    return ("share-assignment", group_id)


class ShareMembership:
    """The group's members and states as they will be when the step has been replayed."""

    __slots__ = ("group", "members", "states")

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.members: dict[str, ShareMember] = dict(group.members())
        self.states: PartitionStates = group.states

    def topics(self, step: ConsumerStep) -> dict[str, TopicDigest]:
        """The topics that members subscribe to, as far as they exist, by name."""
        found = {}
        for name in {name for member in self.members.values() for name in member.topic_names}:
            topic = step.topics.topic(name)
            if topic is not None:
                found[name] = topic
        return found

    def candidates(self, topics: Mapping[str, TopicDigest]) -> list[ShareCandidate]:
        """The members as the assignor sees them."""
        return [
            ShareCandidate(
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


def store_states(membership: ShareMembership, states: PartitionStates, step: ConsumerStep) -> None:
    """Write which partitions have a state, if that is news."""
    if states != membership.states:
        membership.states = states
        step.records.append(PartitionStatesStored(membership.group.group_id, states))


def forget_member(group_id: str, member_id: str, step: ConsumerStep) -> None:
    """Write that a member is gone, and cancel its timer."""
    step.records += (
        ShareCurrentStored(group_id, member_id, None),
        ShareTargetStored(group_id, member_id, None),
        ShareMemberStored(group_id, member_id, None),
    )
    step.cancel_timer(session_key(group_id, member_id))


def hash_of(membership: ShareMembership, step: ConsumerStep) -> int:
    """The hash of the topics that the group will read."""
    return metadata_hash(membership.topics(step).values(), with_racks=False)


def start_epoch(membership: ShareMembership, step: ConsumerStep) -> int:
    """Begin the next group epoch, in which states are asked for that are missing."""
    group = membership.group
    epoch = group.epoch + 1
    stored = GroupEpoch(epoch, hash_of(membership, step))
    step.records.append(ShareEpochStored(group.group_id, stored))
    ask_for_states(membership, epoch, step)
    return epoch


def ask_for_states(membership: ShareMembership, epoch: int, step: ConsumerStep) -> None:
    """Have states made for subscribed partitions that have none, in the given state epoch."""
    wanted = missing(membership.states, membership.topics(step).values())
    if wanted:
        store_states(membership, initializing(membership.states, wanted), step)
        step.send(initialize_states(membership.group.group_id, epoch, wanted))


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


def is_due(group: ShareGroup, step: ConsumerStep) -> bool:
    """Whether the last target assignment is long enough ago for another one."""
    interval_ms = step.settings.share_assignment_interval_of(group.group_id)
    return is_pause_over(group.assigned_at_ms, interval_ms, step.now_ms)


def assign_if_due(
    membership: ShareMembership, epoch: int, step: ConsumerStep
) -> dict[str, Partitions] | None:
    """The new targets of all members, written; None if there are, or will be later."""
    group = membership.group
    if epoch <= group.target_epoch:
        return None
    if not is_due(group, step):
        assert group.assigned_at_ms is not None
        interval_ms = step.settings.share_assignment_interval_of(group.group_id)
        due_ms = group.assigned_at_ms + interval_ms
        step.set_timer(assignment_key(group.group_id), due_ms)
        return None
    return assign_now(membership, epoch, step)


def assign_now(
    membership: ShareMembership, epoch: int, step: ConsumerStep
) -> dict[str, Partitions]:
    """Make the target assignment of the epoch, and write what differs."""
    group = membership.group
    step.cancel_timer(assignment_key(group.group_id))
    topics = membership.topics(step)
    found: dict[str, Partitions] = {}
    targets = assign_shared(membership.candidates(topics), membership.assignable(topics))
    for member_id, target in targets.items():
        found[member_id] = target
        if target != group.target(member_id) or not group.has_target(member_id):
            step.records.append(ShareTargetStored(group.group_id, member_id, target))
    stored = TargetEpoch(epoch, step.now_ms)
    step.records.append(ShareTargetEpochStored(group.group_id, stored))
    return found
