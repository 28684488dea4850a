"""A consumer group's epochs and targets: when they change, and to what (KIP-848).

The group epoch goes up when who is in the group changes, or what they subscribe to, or those
topics. The target assignment is then made anew, at once if the last one is some time ago
(group.consumer.assignment.interval.ms, KIP-1263), else by a timer: twenty members that join
together are assigned to twice, not twenty times. Only targets that differ are written, and the
epoch of all of them last.

What a transition is about to write is not in the tables yet; `ConsumerTargetAssignmentBuilder` is
the group as it will be. Called by `heartbeats`, `classic_members`, `migration` and
`consumer.groups`.
"""

from collections import Counter
from collections.abc import Mapping

from odradek.coordinator.group.consumer.assignors import MemberSpec, assign
from odradek.coordinator.group.consumer.group import (
    RACK,
    ConsumerGroup,
    MemberAttribute,
    attributes_of,
)
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    GroupEpoch,
    ResolvedRegex,
    TargetEpoch,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.topics import (
    Partitions,
    TopicDigest,
    metadata_hash,
)
from odradek.coordinator.outcome import TimerKey
from odradek.protocol.types import Uuid


def session_key(group_id: str, member_id: str) -> TimerKey:
    """The timer of a member's session."""
    return ("member-session", group_id, member_id)


def revocation_key(group_id: str, member_id: str) -> TimerKey:
    """The timer that ends the wait for a member to give up partitions."""
    return ("member-revocation", group_id, member_id)


def rejoin_key(group_id: str, member_id: str) -> TimerKey:
    """The timer that ends the wait for a classic member to join again."""
    return ("member-rejoin", group_id, member_id)


def sync_key(group_id: str, member_id: str) -> TimerKey:
    """The timer that ends the wait for a classic member to sync."""
    return ("member-sync", group_id, member_id)


def assignment_key(group_id: str) -> TimerKey:
    """The timer of a target assignment that was put off."""
    return ("assignment", group_id)


class ConsumerTargetAssignmentBuilder:
    """The group's members and expressions as they will be when the step has been replayed.

    It knows what changes. Who is in the group is gone over when targets are made, and not whenever
    somebody comes or goes.
    """

    __slots__ = ("_attribute_deltas", "_changed", "_group", "_replaced", "regexes")

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._replaced: dict[str, str] = {}
        self._changed: dict[str, ConsumerGroupMember | None] = {}
        # How many more than the group counts want the same.
        self._attribute_deltas: Counter[MemberAttribute] = Counter()
        self.regexes = dict(group.regexes())

    def put(self, member_id: str, member: ConsumerGroupMember) -> None:
        """A member has come or has changed."""
        self._change(member_id, member)

    def replace(self, old_id: str, new_id: str, member: ConsumerGroupMember) -> None:
        """A static member goes on under a new id, with its target."""
        self._change(old_id, None)
        self._change(new_id, member)
        self._replaced[new_id] = old_id

    def remove(self, member_id: str) -> None:
        """A member has gone."""
        self._change(member_id, None)

    def _change(self, member_id: str, member: ConsumerGroupMember | None) -> None:
        before = self._changed.get(member_id, self._group.member(member_id))
        self._changed[member_id] = member
        if before is not None:
            self._attribute_deltas.subtract(attributes_of(before))
        if member is not None:
            self._attribute_deltas.update(attributes_of(member))

    def members(self) -> dict[str, ConsumerGroupMember]:
        """All of them by id."""
        found = dict(self._group.members())
        for member_id, member in self._changed.items():
            if member is None:
                found.pop(member_id, None)
            else:
                found[member_id] = member
        return found

    def is_regex_used(self, regex: str) -> bool:
        """Whether a member subscribes by the expression."""
        return self._has(("regex", regex))

    @property
    def has_racks(self) -> bool:
        """Whether a member has told its rack."""
        return self._has(RACK)

    def _has(self, attribute: MemberAttribute) -> bool:
        return self._group.member_count_with(attribute) + self._attribute_deltas[attribute] > 0

    def topic_names(self) -> set[str]:
        """Every topic that a member subscribes to."""
        attributes = {*self._group.attributes(), *self._attribute_deltas}
        names = {name for kind, name in attributes if kind == "topic" and self._has((kind, name))}
        for regex, resolved in self.regexes.items():
            if self.is_regex_used(regex):
                names.update(resolved.topic_names)
        return names

    def target(self, member_id: str) -> Partitions:
        """What the member shall own so far."""
        return self._group.target(self._replaced.get(member_id, member_id))

    def specs(self, topics: Mapping[str, TopicDigest]) -> list[MemberSpec]:
        """The members as assignors see them."""
        known: dict[tuple[tuple[str, ...], str | None], frozenset[Uuid]] = {}
        found = []
        for member_id, member in self.members().items():
            attributes = (member.topic_names, member.topic_regex)
            ids = known.get(attributes)
            if ids is None:
                names = set(member.topic_names)
                if member.topic_regex and member.topic_regex in self.regexes:
                    names.update(self.regexes[member.topic_regex].topic_names)
                ids = frozenset(topics[name].topic_id for name in names if name in topics)
                known[attributes] = ids
            target = self.target(member_id)
            found.append(MemberSpec(member_id, member.instance_id, member.rack_id, ids, target))
        return found


def forget_member(group_id: str, member_id: str, step: GroupStep) -> None:
    """Write that a member is gone, and cancel its timers."""
    step.records += (
        ConsumerCurrentRecord(group_id, member_id, None),
        ConsumerTargetRecord(group_id, member_id, None),
        ConsumerMemberRecord(group_id, member_id, None),
    )
    cancel_timers(group_id, member_id, step)


def cancel_timers(group_id: str, member_id: str, step: GroupStep) -> None:
    """Nothing of the member is waited for any more."""
    for key in (session_key, revocation_key, rejoin_key, sync_key):
        step.cancel_timer(key(group_id, member_id))


def resolve_regex(
    group: ConsumerGroup,
    builder: ConsumerTargetAssignmentBuilder,
    regex: str,
    names: tuple[str, ...],
    step: GroupStep,
) -> bool:
    """Write what an expression stands for, if that is news."""
    known = group.regex(regex)
    if known is not None and known.topic_names == names:
        return False
    resolved = ResolvedRegex(names, step.topics.version, step.now_ms)
    builder.regexes[regex] = resolved
    step.records.append(ConsumerRegexRecord(group.group_id, regex, resolved))
    return True


def drop_unused_regexes(
    group: ConsumerGroup, builder: ConsumerTargetAssignmentBuilder, step: GroupStep
) -> None:
    """Write that expressions which no member uses any more are gone."""
    if not builder.regexes:
        return
    for regex in [regex for regex in builder.regexes if not builder.is_regex_used(regex)]:
        del builder.regexes[regex]
        if group.regex(regex) is not None:
            step.records.append(ConsumerRegexRecord(group.group_id, regex, None))


def hash_of(group: ConsumerGroup, builder: ConsumerTargetAssignmentBuilder, step: GroupStep) -> int:
    """The hash of the topics that the group will read."""
    topics = _topics_of(builder, step)
    return metadata_hash(topics.values(), with_racks=builder.has_racks)


def start_epoch(
    group: ConsumerGroup, builder: ConsumerTargetAssignmentBuilder, step: GroupStep
) -> int:
    """Begin the next group epoch, and assign for it now or soon; returns the epoch."""
    epoch = group.epoch + 1
    stored = GroupEpoch(epoch, hash_of(group, builder, step))
    step.records.append(ConsumerEpochRecord(group.group_id, stored))
    return epoch


def is_due(group: ConsumerGroup, step: GroupStep) -> bool:
    """Whether the last target assignment is long enough ago for another one."""
    assigned_at_ms = group.assigned_at_ms if group.has_target_epoch else None
    interval_ms = step.settings.consumer_of(group.group_id).assignment_interval_ms
    return is_interval_over(assigned_at_ms, interval_ms, step.now_ms)


def is_interval_over(assigned_at_ms: int | None, interval_ms: int, now_ms: int) -> bool:
    """Whether a group that was assigned to then (None: never) may be assigned to again."""
    # A clock that was set back must not put it off.
    return assigned_at_ms is None or not 0 <= now_ms - assigned_at_ms < interval_ms


def assign_if_due(
    group: ConsumerGroup, epoch: int, builder: ConsumerTargetAssignmentBuilder, step: GroupStep
) -> dict[str, Partitions] | None:
    """The new targets of all members, written; None if there are, or will be later."""
    if epoch <= group.target_epoch:
        return None
    if not is_due(group, step):
        interval_ms = step.settings.consumer_of(group.group_id).assignment_interval_ms
        due_ms = group.assigned_at_ms + interval_ms
        step.set_timer(assignment_key(group.group_id), due_ms)
        return None
    step.cancel_timer(assignment_key(group.group_id))
    return assign_now(group, epoch, builder, step)


def assign_now(
    group: ConsumerGroup, epoch: int, builder: ConsumerTargetAssignmentBuilder, step: GroupStep
) -> dict[str, Partitions]:
    """Make the target assignment of the epoch, and write what differs."""
    topics = _topics_of(builder, step)
    by_id = {topic.topic_id: topic for topic in topics.values()}
    assignor = choose_assignor(builder.members(), step.settings)
    targets = assign(assignor, builder.specs(topics), by_id)
    withheld = step.withheld(group.group_id)
    found: dict[str, Partitions] = {}
    for member_id, whole in targets.items():
        target = without(whole, withheld) if withheld else whole
        found[member_id] = target
        if target != builder.target(member_id) or not group.has_target(member_id):
            step.records.append(ConsumerTargetRecord(group.group_id, member_id, target))
    stored = TargetEpoch(epoch, step.now_ms)
    step.records.append(ConsumerTargetEpochRecord(group.group_id, stored))
    return found


def without(partitions: Partitions, others: Partitions) -> Partitions:
    """The partitions that are not among the others."""
    left = {
        topic_id: indexes - others.get(topic_id, frozenset())
        for topic_id, indexes in partitions.items()
    }
    return {topic_id: indexes for topic_id, indexes in left.items() if indexes}


def choose_assignor(members: Mapping[str, ConsumerGroupMember], settings: GroupSettings) -> str:
    """The assignor that most members ask for, of those offered; the default if nobody asks."""
    votes = Counter(
        member.server_assignor
        for member in members.values()
        if member.server_assignor in settings.consumer.assignors
    )
    if not votes:
        return settings.consumer.assignors[0]
    return max(settings.consumer.assignors, key=lambda name: votes[name])


def _topics_of(builder: ConsumerTargetAssignmentBuilder, step: GroupStep) -> dict[str, TopicDigest]:
    """The topics that members subscribe to, as far as they exist, by name."""
    found = {}
    for name in builder.topic_names():
        topic = step.topics.topic(name)
        if topic is not None:
            found[name] = topic
    return found
