"""A consumer group (KIP-848): subscriptions, regular expressions and owners of partitions.

In addition to `modern.group`, it counts members by their subscriptions and knows the owner of each
partition. Read by `heartbeats` and the other transitions; only `replay` changes a group.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from odradek.coordinator.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerCurrentAssignment,
    ConsumerGroupMember,
    ConsumerRegexRecord,
    ResolvedRegex,
)
from odradek.coordinator.group.modern.group import GROUP_TYPE_CONSUMER, ModernGroup, ModernTimers
from odradek.coordinator.group.modern.records import GroupEpoch, flat
from odradek.coordinator.group.requests import CommitTopic
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.topics import NO_PARTITIONS, Partitions
from odradek.coordinator.timeline import Timeline, TimelineTable, count
from odradek.protocol.types import Uuid

MemberAttribute: TypeAlias = tuple[str, str]
"""Members are counted by ("topic", name), ("regex", expression) and the next two."""
CLASSIC: Final[MemberAttribute] = ("protocol", "classic")
"""The member speaks the classic protocol."""
RACK: Final[MemberAttribute] = ("rack", "")
"""The member has sent a rack."""

REJOIN: Final = "member-rejoin"
"""The timer of a classic member that must send JoinGroup."""
SYNC: Final = "member-sync"
"""The timer of a classic member that must send SyncGroup."""


class ConsumerGroup(
    ModernGroup[ConsumerGroupMember, Partitions, ConsumerCurrentAssignment, GroupEpoch]
):
    """See the module's docstring."""

    __slots__ = (
        "_attribute_counts",
        "_owners",
        "_regexes",
        "awaiting_rejoin",
        "awaiting_sync",
    )

    group_type = GROUP_TYPE_CONSUMER
    unit = "partitions"
    records = CONSUMER_RECORDS
    timers = ModernTimers(
        "member-session", "assignment", "member-revocation", (REJOIN, SYNC), own="downgrade"
    )
    settings_of = staticmethod(GroupSettings.consumer_of)
    first_epoch = GroupEpoch(1)
    no_target = NO_PARTITIONS
    new_current = ConsumerCurrentAssignment()

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        # In memory only: classic members that must send JoinGroup, and have a timer for it.
        self.awaiting_rejoin: set[str] = set()
        # In memory only: classic members that have joined without owned partitions in their
        # subscription, because its version has none, and that must send SyncGroup.
        self.awaiting_sync: set[str] = set()
        self._regexes: TimelineTable[str, ResolvedRegex] = TimelineTable(timeline)
        # Derived: the number of members with an attribute, and the owner of a partition.
        self._attribute_counts: TimelineTable[MemberAttribute, int] = TimelineTable(timeline)
        self._owners: TimelineTable[tuple[Uuid, int], str] = TimelineTable(timeline)

    # -- the log ---------------------------------------------------------------------------------

    def _replay_own(self, record: object) -> None:
        assert isinstance(record, ConsumerRegexRecord)
        self._regexes.assign(record.regex, record.value)

    def _replay_member(self, member_id: str, member: ConsumerGroupMember | None) -> None:
        for known, step in ((self._members.get(member_id), -1), (member, 1)):
            for attribute in () if known is None else attributes_of(known):
                count(self._attribute_counts, attribute, step)
        if member is None:
            self.awaiting_sync.discard(member_id)
        super()._replay_member(member_id, member)

    def _replay_current(self, member_id: str, current: ConsumerCurrentAssignment | None) -> None:
        before, after = self.current(member_id), current or self.new_current
        # Most partitions stay with the member: only changes of owners are written.
        owners = self._owners
        owned = frozenset(flat(after.assigned, after.pending_revocation))
        for partition in flat(before.assigned, before.pending_revocation):
            # In a compacted log the record of the new owner may come first.
            if partition not in owned and owners.get(partition) == member_id:
                owners.remove(partition)
        for partition in owned:
            if owners.get(partition) != member_id:
                owners.put(partition, member_id)
        super()._replay_current(member_id, current)

    def _tables(self) -> tuple[TimelineTable[Any, Any], ...]:
        return (*super()._tables(), self._regexes)

    def _own_tombstones(self) -> list[Any]:
        return [ConsumerRegexRecord(self.group_id, regex, None) for regex, _ in self.regexes()]

    # -- settings ---------------------------------------------------------------------------------

    def longest_interval_ms(self, settings: GroupSettings) -> int:
        """See ModernGroup."""
        return settings.consumer.heartbeat_interval_ms

    def session_timeout_ms(self, member: ConsumerGroupMember, settings: GroupSettings) -> int:
        """See ModernGroup. Classic members have sent their own."""
        if member.classic is None:
            return settings.consumer_of(self.group_id).session_timeout_ms
        return member.classic.session_timeout_ms

    # -- the group --------------------------------------------------------------------------------

    @property
    def classic_count(self) -> int:
        """How many members speak the classic protocol."""
        return self.member_count_with(CLASSIC)

    def attributes(self) -> Iterator[MemberAttribute]:
        """The attributes of all members."""
        return (attribute for attribute, _ in self._attribute_counts.items())

    def member_count_with(self, attribute: MemberAttribute) -> int:
        """How many members have the attribute."""
        return self._attribute_counts.get(attribute) or 0

    def topic_names(self) -> set[str]:
        """Every topic that a member subscribes to, by name or expression, existing or not."""
        names = {name for kind, name in self.attributes() if kind == "topic"}
        for regex, resolved in self._regexes.items():
            if ("regex", regex) in self._attribute_counts:
                names.update(resolved.topic_names)
        return names

    def regexes(self) -> Iterator[tuple[str, ResolvedRegex]]:
        """The stored expressions, with the topics that match them."""
        return self._regexes.items()

    def regex(self, regex: str) -> ResolvedRegex | None:
        """The topics that match an expression; None if it is not stored."""
        return self._regexes.get(regex)

    # -- members ----------------------------------------------------------------------------------

    def is_classic(self, member: ConsumerGroupMember) -> bool:
        """See ModernGroup."""
        return member.classic is not None

    def owned_since(self, member_id: str, topic: CommitTopic) -> Mapping[int, int]:
        """See ModernGroup."""
        return self.current(member_id).assigned.get(topic.topic_id, {})

    def owner(self, topic_id: Uuid, index: int) -> str | None:
        """The member that owns the partition or still has to revoke it."""
        return self._owners.get((topic_id, index))

    def is_free_for(self, member_id: str, topic_id: Uuid, index: int) -> bool:
        """Whether no other member owns the partition or still has to revoke it."""
        owner = self._owners.get((topic_id, index))
        return owner is None or owner == member_id

    def is_waiting_for_partitions(self, member_id: str) -> bool:
        """Whether a partition of the member's target still belongs to another member."""
        return any(
            not self.is_free_for(member_id, topic_id, index)
            for topic_id, index in flat(self.target(member_id))
        )


def attributes_of(member: ConsumerGroupMember) -> list[MemberAttribute]:
    """The attributes by which a member is counted."""
    found = [("topic", name) for name in set(member.topic_names)]
    if member.topic_regex:
        found.append(("regex", member.topic_regex))
    if member.classic is not None:
        found.append(CLASSIC)
    if member.rack_id is not None:
        found.append(RACK)
    return found
