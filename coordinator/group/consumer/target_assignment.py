"""A consumer group's target assignment: subscriptions, expressions and its assignor (KIP-848).

Called by `heartbeats`, `classic_members`, `consumer.groups` and `rewind`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from odradek.coordinator.group.consumer.assignors import MemberSpec, assign
from odradek.coordinator.group.consumer.group import (
    RACK,
    ConsumerGroup,
    MemberAttribute,
    attributes_of,
)
from odradek.coordinator.group.consumer.records import (
    ConsumerGroupMember,
    ConsumerRegexRecord,
    ResolvedRegex,
)
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.modern.target_assignment import TargetAssignmentBuilder
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import Partitions, TopicCatalog, TopicDigest, metadata_hash
from odradek.protocol.types import Uuid


class ConsumerTargetAssignmentBuilder(
    TargetAssignmentBuilder[ConsumerGroupMember, Partitions, GroupEpoch]
):
    """See TargetAssignmentBuilder."""

    group: ConsumerGroup

    def __init__(self, group: ConsumerGroup) -> None:
        super().__init__(group)
        # The changes of the group's counts of members by attribute.
        self._attribute_deltas: Counter[MemberAttribute] = Counter()
        self.regexes = dict(group.regexes())

    def _change(self, member_id: str, member: ConsumerGroupMember | None) -> None:
        before = self._changed.get(member_id, self.group.member(member_id))
        super()._change(member_id, member)
        if before is not None:
            self._attribute_deltas.subtract(attributes_of(before))
        if member is not None:
            self._attribute_deltas.update(attributes_of(member))

    def is_regex_used(self, regex: str) -> bool:
        """Whether a member subscribes by the expression."""
        return self._has(("regex", regex))

    @property
    def has_racks(self) -> bool:
        """Whether a member has sent a rack."""
        return self._has(RACK)

    def _has(self, attribute: MemberAttribute) -> bool:
        return self.group.member_count_with(attribute) + self._attribute_deltas[attribute] > 0

    def topic_names(self) -> set[str]:
        """Every topic that a member subscribes to."""
        attributes = {*self.group.attributes(), *self._attribute_deltas}
        names = {name for kind, name in attributes if kind == "topic" and self._has((kind, name))}
        for regex, resolved in self.regexes.items():
            if self.is_regex_used(regex):
                names.update(resolved.topic_names)
        return names

    def resolve_regex(self, regex: str, names: tuple[str, ...], step: GroupStep) -> bool:
        """Write the topics that match an expression; False if they are stored already."""
        known = self.group.regex(regex)
        if known is not None and known.topic_names == names:
            return False
        resolved = ResolvedRegex(names, step.topics.version, step.now_ms)
        self.regexes[regex] = resolved
        step.records.append(ConsumerRegexRecord(self.group.group_id, regex, resolved))
        return True

    def hash(self, topics: TopicCatalog) -> int:
        """The hash of the topics that the group will subscribe to."""
        return metadata_hash(
            topics.existing(self.topic_names()).values(), with_racks=self.has_racks
        )

    def start_epoch(self, step: GroupStep) -> GroupEpoch:
        """See TargetAssignmentBuilder. Removes the expressions that no member uses."""
        for regex in [regex for regex in self.regexes if not self.is_regex_used(regex)]:
            del self.regexes[regex]
            if self.group.regex(regex) is not None:
                step.records.append(ConsumerRegexRecord(self.group.group_id, regex, None))
        return super().start_epoch(step)

    def next_epoch(self, step: GroupStep) -> GroupEpoch:
        """See TargetAssignmentBuilder."""
        return GroupEpoch(self.group.epoch + 1, self.hash(step.topics))

    def targets(self, _epoch: GroupEpoch, step: GroupStep) -> Mapping[str, Partitions]:
        """See TargetAssignmentBuilder. Partitions that are being rewound are not assigned."""
        topics = step.topics.existing(self.topic_names())
        by_id = {topic.topic_id: topic for topic in topics.values()}
        assignor = choose_assignor(self.members().values(), step.settings)
        targets = assign(assignor, self._member_specs(topics), by_id)
        withheld = step.withheld(self.group.group_id)
        if not withheld:
            return targets
        return {member_id: without(target, withheld) for member_id, target in targets.items()}

    def _member_specs(self, topics: Mapping[str, TopicDigest]) -> list[MemberSpec]:
        """The members as input of the assignor."""
        known: dict[tuple[tuple[str, ...], str | None], frozenset[Uuid]] = {}
        specs = []
        for member_id, member in self.members().items():
            subscription = (member.topic_names, member.topic_regex)
            ids = known.get(subscription)
            if ids is None:
                names = set(member.topic_names)
                if member.topic_regex and member.topic_regex in self.regexes:
                    names.update(self.regexes[member.topic_regex].topic_names)
                ids = frozenset(topics[name].topic_id for name in names if name in topics)
                known[subscription] = ids
            target = self.target(member_id)
            specs.append(MemberSpec(member_id, member.instance_id, member.rack_id, ids, target))
        return specs


def without(partitions: Partitions, others: Partitions) -> Partitions:
    """The partitions that are not among the others."""
    left = {
        topic_id: indexes - others.get(topic_id, frozenset())
        for topic_id, indexes in partitions.items()
    }
    return {topic_id: indexes for topic_id, indexes in left.items() if indexes}


def choose_assignor(members: Iterable[ConsumerGroupMember], settings: GroupSettings) -> str:
    """The configured assignor that most members request; the default if none does."""
    votes = Counter(
        member.server_assignor
        for member in members
        if member.server_assignor in settings.consumer.assignors
    )
    if not votes:
        return settings.consumer.assignors[0]
    return max(settings.consumer.assignors, key=lambda name: votes[name])
