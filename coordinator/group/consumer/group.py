"""A consumer group (KIP-848) as the log has it: members, their targets, what they own, epochs.

Everything is in the log and therefore in tables that can go back to the committed state; what
follows from it (who holds an instance id, who owns a partition, which topics are read by how many)
is kept in tables beside them, changed by the same records, so that a heartbeat looks things up
and never goes over members or partitions.

A group with members is Assigning while its epoch is ahead of its target's, Reconciling until every
member has reached the target and owns what that says, and Stable then. Read by `heartbeats`
and the other transitions; only `replay` changes anything.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, TypeAlias

from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerGroupMember,
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    GroupEpoch,
    MemberState,
    ResolvedRegex,
    TargetEpoch,
)
from odradek.coordinator.group.modern.group import ModernGroup
from odradek.coordinator.group.topics import (
    NO_PARTITIONS,
    Partitions,
)
from odradek.coordinator.timeline import Timeline, TimelineTable, count
from odradek.protocol.types import Uuid

LEAVE_GROUP_STATIC_EPOCH: Final = -2
"""The member epoch of a static member that has stepped out and may come back (KIP-345)."""
NEW_MEMBER: Final = ConsumerCurrentAssignment()

_GROUP: Final = "group"
_TARGET: Final = "target"


MemberAttribute: TypeAlias = tuple[str, str]
"""What members are counted by: ("topic", name), ("regex", expression) and the next two."""
CLASSIC: Final[MemberAttribute] = ("protocol", "classic")
"""They speak the classic protocol."""
RACK: Final[MemberAttribute] = ("rack", "")
"""They have told their rack, whichever it is."""


class ConsumerGroupState(StrEnum):
    """Kafka's names, as ConsumerGroupDescribe and ListGroups spell them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


UNKNOWN_CONNECTION: Final = -1
"""No connection of this router's."""


class ConsumerGroup(ModernGroup[ConsumerGroupMember, Partitions]):
    """See the module's docstring. It exists as long as its epoch is stored."""

    __slots__ = (
        "_attribute_counts",
        "_currents",
        "_epochs",
        "_owners",
        "_regexes",
        "_settled",
        "_static",
        "awaiting_rejoin",
        "awaiting_sync",
        "unconfirmed_connections",
    )

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        # Soft: classic members that were told to join again, and have a timer for that.
        self.awaiting_rejoin: set[str] = set()
        # Soft: classic members that cannot say what they keep, have joined, and have still to ask
        # for what they are given.
        self.awaiting_sync: set[str] = set()
        # Soft: over which connection members were told last of an epoch or of partitions, until
        # they say that they know; UNKNOWN_CONNECTION if another coordinator may have told them.
        self.unconfirmed_connections: dict[str, int] = {}
        self._epochs: TimelineTable[str, GroupEpoch | TargetEpoch] = TimelineTable(timeline)
        self._currents: TimelineTable[str, ConsumerCurrentAssignment] = TimelineTable(timeline)
        self._regexes: TimelineTable[str, ResolvedRegex] = TimelineTable(timeline)
        # What follows from the members: who holds an instance id, how many want the same.
        self._static: TimelineTable[str, str] = TimelineTable(timeline)
        self._attribute_counts: TimelineTable[MemberAttribute, int] = TimelineTable(timeline)
        # What follows from what they own: whose a partition is, how many are Stable at an epoch.
        self._owners: TimelineTable[tuple[Uuid, int], str] = TimelineTable(timeline)
        self._settled: TimelineTable[int, int] = TimelineTable(timeline)

    # -- what the log says ------------------------------------------------------------------------

    def replay(self, record: ConsumerGroupRecord) -> None:
        """Change the tables as the record says."""
        match record:
            case ConsumerCurrentRecord():
                self._replay_current(record.member_id, record.current)
            case ConsumerEpochRecord():
                self._epochs.assign(_GROUP, record.epoch)
            case ConsumerTargetEpochRecord():
                self._epochs.assign(_TARGET, record.epoch)
            case ConsumerTargetRecord():
                self._targets.assign(record.member_id, record.target)
            case ConsumerMemberRecord():
                self._replay_member(record.member_id, record.member)
            case ConsumerRegexRecord():
                self._regexes.assign(record.regex, record.resolved)

    def _replay_member(self, member_id: str, member: ConsumerGroupMember | None) -> None:
        old = self._members.get(member_id)
        self._members.assign(member_id, member)
        for known, step in ((old, -1), (member, 1)):
            for attribute in () if known is None else attributes_of(known):
                count(self._attribute_counts, attribute, step)
        if member is None:
            self.unconfirmed_connections.pop(member_id, None)
            self.awaiting_sync.discard(member_id)
        instance_id = None if old is None else old.instance_id
        # Whoever has taken the place of an old static member keeps it.
        if instance_id is not None and self._static.get(instance_id) == member_id:
            self._static.remove(instance_id)
        if member is not None and member.instance_id is not None:
            self._static.put(member.instance_id, member_id)

    def _replay_current(self, member_id: str, current: ConsumerCurrentAssignment | None) -> None:
        old = self._currents.get(member_id)
        was_at, is_at = _settled_at(old), _settled_at(current)
        if was_at != is_at:
            if was_at is not None:
                count(self._settled, was_at, -1)
            if is_at is not None:
                count(self._settled, is_at, 1)
        # Most of what a member has it had before: only what it has lost or got is written.
        owners = self._owners
        owned = frozenset(() if current is None else _partitions_of(current))
        for partition in () if old is None else _partitions_of(old):
            # A log that has been compacted may tell of the new owner first.
            if partition not in owned and owners.get(partition) == member_id:
                owners.remove(partition)
        for partition in owned:
            if owners.get(partition) != member_id:
                owners.put(partition, member_id)
        self._currents.assign(member_id, current)

    @property
    def is_droppable(self) -> bool:
        """Whether nothing is left, neither newest nor committed: the object may be dropped."""
        tables = (self._epochs, self._members, self._targets, self._currents, self._regexes)
        return all(table.is_droppable for table in tables)

    # -- questions about the group ----------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""
        return _GROUP in self._epochs

    @property
    def epoch(self) -> int:
        """The group epoch: one more for every change of members, subscriptions or topics."""
        epoch = self._epochs.get(_GROUP)
        return 0 if epoch is None else epoch.epoch

    @property
    def metadata_hash(self) -> int:
        """The hash of the topics at the group epoch."""
        epoch = self._epochs.get(_GROUP)
        return epoch.metadata_hash if isinstance(epoch, GroupEpoch) else 0

    @property
    def target_epoch(self) -> int:
        """The group epoch that the target assignment was made for."""
        epoch = self._epochs.get(_TARGET)
        return 0 if epoch is None else epoch.epoch

    @property
    def has_target_epoch(self) -> bool:
        """Whether a target assignment was ever made."""
        return _TARGET in self._epochs

    @property
    def assigned_at_ms(self) -> int:
        """When the target assignment was made; 0 if never."""
        epoch = self._epochs.get(_TARGET)
        return epoch.assigned_at_ms if isinstance(epoch, TargetEpoch) else 0

    @property
    def state(self) -> ConsumerGroupState:
        """See the module's docstring."""
        count = len(self._members)
        if not count:
            return ConsumerGroupState.EMPTY
        target_epoch = self.target_epoch
        if self.epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        if (self._settled.get(target_epoch) or 0) < count:
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def classic_count(self) -> int:
        """How many members speak the classic protocol."""
        return self.member_count_with(CLASSIC)

    def attributes(self) -> Iterator[MemberAttribute]:
        """All that any member wants."""
        return (attribute for attribute, _ in self._attribute_counts.items())

    def member_count_with(self, attribute: MemberAttribute) -> int:
        """How many members want it."""
        return self._attribute_counts.get(attribute) or 0

    def topic_names(self) -> set[str]:
        """Every topic that a member subscribes to, by name or expression, whether it exists."""
        names = {name for kind, name in self.attributes() if kind == "topic"}
        for regex, resolved in self._regexes.items():
            if ("regex", regex) in self._attribute_counts:
                names.update(resolved.topic_names)
        return names

    def is_subscribed_to(self, name: str) -> bool:
        """Whether a member subscribes to the topic."""
        if ("topic", name) in self._attribute_counts:
            return True
        return any(
            name in resolved.topic_names
            for regex, resolved in self._regexes.items()
            if ("regex", regex) in self._attribute_counts
        )

    def regexes(self) -> Iterator[tuple[str, ResolvedRegex]]:
        """The expressions that are stored, with the topics they stand for."""
        return self._regexes.items()

    def regex(self, regex: str) -> ResolvedRegex | None:
        """What an expression stands for."""
        return self._regexes.get(regex)

    # -- questions about members ------------------------------------------------------------------

    def static_member_id(self, instance_id: str) -> str | None:
        """Who holds the instance id."""
        return self._static.get(instance_id)

    def current(self, member_id: str) -> ConsumerCurrentAssignment:
        """What the member may own; nothing, at epoch 0, if it has just come."""
        return self._currents.get(member_id) or NEW_MEMBER

    def target(self, member_id: str) -> Partitions:
        """What the member shall own."""
        return self._targets.get(member_id) or NO_PARTITIONS

    def topics_of(self, member: ConsumerGroupMember) -> set[str]:
        """The topics that a member subscribes to."""
        names = set(member.topic_names)
        if member.topic_regex:
            resolved = self._regexes.get(member.topic_regex)
            if resolved is not None:
                names.update(resolved.topic_names)
        return names

    def owner(self, topic_id: Uuid, index: int) -> str | None:
        """Who owns the partition, or has still to give it up."""
        return self._owners.get((topic_id, index))

    def is_free_for(self, member_id: str, topic_id: Uuid, index: int) -> bool:
        """Whether nobody but the member owns the partition or has still to give it up."""
        owner = self._owners.get((topic_id, index))
        return owner is None or owner == member_id

    def is_waiting_for_partitions(self, member_id: str) -> bool:
        """Whether a partition of the member's target still belongs to somebody else."""
        return any(
            not self.is_free_for(member_id, topic_id, index)
            for topic_id, indexes in self.target(member_id).items()
            for index in indexes
        )


def attributes_of(member: ConsumerGroupMember) -> list[MemberAttribute]:
    """What a member is counted by."""
    found = [("topic", name) for name in set(member.topic_names)]
    if member.topic_regex:
        found.append(("regex", member.topic_regex))
    if member.classic is not None:
        found.append(CLASSIC)
    if member.rack_id is not None:
        found.append(RACK)
    return found


def _settled_at(current: ConsumerCurrentAssignment | None) -> int | None:
    """The epoch at which a member has all that it shall have; None if it has not."""
    is_settled = current is not None and current.state is MemberState.STABLE
    return current.member_epoch if current is not None and is_settled else None


def _partitions_of(current: ConsumerCurrentAssignment) -> Iterator[tuple[Uuid, int]]:
    for topics in (current.assigned, current.pending_revocation):
        for topic_id, epochs in topics.items():
            for index in epochs:
                yield topic_id, index
