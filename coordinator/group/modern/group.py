"""A group of one of the newer types (KIP-848 and later), as its records define it.

All state is stored in the log, so it is in tables that can be reverted to the committed state.
Derived state (the holder of an instance id, the number of members that have reached an epoch) is in
tables that the same records change: a heartbeat looks it up and never iterates over members. Only
`replay` changes a group. Subclassed by `consumer`, `share` and `streams`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from odradek.cluster.metadata.group_settings import (
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from odradek.coordinator.group.modern.records import (
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    ModernRecords,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.group.requests import CommitTopic
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.outcome import TimerKey
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.coordinator.timeline import count as count_up

GROUP_TYPE_CONSUMER: Final = "consumer"
GROUP_TYPE_SHARE: Final = "share"
GROUP_TYPE_STREAMS: Final = "streams"


class ModernGroupState(StrEnum):
    """Kafka's names, as the Describe APIs and ListGroups spell them."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Of streams groups: topics of the topology are missing."""
    ASSIGNING = "Assigning"
    """The group's epoch is ahead of its target's."""
    RECONCILING = "Reconciling"
    """Not every member has reached the target."""
    STABLE = "Stable"


class GroupMember(Protocol):
    """The fields that the members of all types have."""

    @property
    def instance_id(self) -> str | None:
        """Of a static member (KIP-345)."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the member may take to revoke partitions or tasks."""


ModernGroupSettings: TypeAlias = ConsumerGroupSettings | ShareGroupSettings | StreamsGroupSettings


class ModernTimers(NamedTuple):
    """The first parts of the keys of a type's timers."""

    session: str
    assignment: str
    revocation: str = ""
    """Empty if members have nothing to revoke."""
    of_members: tuple[str, ...] = ()
    """Of members, only of this type: to be cancelled when a member is gone."""
    own: str = ""
    """Of groups, only of this type; empty if there is none."""

    def kinds(self) -> frozenset[str]:
        """All of them."""
        names = (self.session, self.assignment, self.revocation, *self.of_members, self.own)
        return frozenset(filter(None, names))


M = TypeVar("M", bound=GroupMember)
T = TypeVar("T")
C = TypeVar("C", bound=CurrentAssignment)
E = TypeVar("E", bound=GroupEpoch)

_GROUP: Final = "group"

UNKNOWN_CONNECTION: Final = -1
"""Not a connection of this router."""


class ModernGroup(ABC, Generic[M, T, C, E]):
    """See the module's docstring. It exists as long as its epoch is stored.

    M is the type of its members, T of their targets, C of their current assignments, E of its
    epoch.
    """

    __slots__ = (
        "_currents",
        "_epochs",
        "_members",
        "_settled",
        "_static",
        "_target_epochs",
        "_targets",
        "group_id",
        "unconfirmed_connections",
    )

    group_type: ClassVar[str]
    """As ListGroups has it."""
    unit: ClassVar[str]
    """What members own, in the plural."""
    records: ClassVar[ModernRecords]
    timers: ClassVar[ModernTimers]
    settings_of: Callable[[GroupSettings, str], ModernGroupSettings]
    """The settings of the type, with what is set for the group of that id."""
    first_epoch: E
    """Before anything is stored."""
    no_target: T
    new_current: C
    """Of a new member."""

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        self.group_id = group_id
        self._epochs: TimelineTable[str, E] = TimelineTable(timeline)
        self._target_epochs: TimelineTable[str, TargetEpoch] = TimelineTable(timeline)
        self._members: TimelineTable[str, M] = TimelineTable(timeline)
        self._targets: TimelineTable[str, T] = TimelineTable(timeline)
        self._currents: TimelineTable[str, C] = TimelineTable(timeline)
        # Derived: the holders of instance ids, and the number of Stable members by epoch.
        self._static: TimelineTable[str, str] = TimelineTable(timeline)
        self._settled: TimelineTable[int, int] = TimelineTable(timeline)
        # In memory only, by member: the connection of the last response with a new epoch or
        # assignment, until the member confirms it; UNKNOWN_CONNECTION if another coordinator may
        # have sent it.
        self.unconfirmed_connections: dict[str, int] = {}

    # -- the log ---------------------------------------------------------------------------------

    def replay(self, record: object) -> None:
        """Change the tables as the record says."""
        match record:
            case CurrentRecord():
                self._replay_current(record.member_id, record.value)
            case TargetRecord():
                self._targets.assign(record.member_id, record.value)
            case MemberRecord():
                self._replay_member(record.member_id, record.value)
            case EpochRecord():
                self._epochs.assign(_GROUP, record.value)
            case TargetEpochRecord():
                self._target_epochs.assign(_GROUP, record.value)
            case _:
                self._replay_own(record)

    @abstractmethod
    def _replay_own(self, record: object) -> None:
        """Change the tables that only this type of group has."""

    def _replay_member(self, member_id: str, member: M | None) -> None:
        old = self._members.get(member_id)
        if member is None:
            self.unconfirmed_connections.pop(member_id, None)
        self._members.assign(member_id, member)
        instance_id = None if old is None else old.instance_id
        # A replaced static member must not free the instance id of the one in its place.
        if instance_id is not None and self._static.get(instance_id) == member_id:
            self._static.remove(instance_id)
        if member is not None and member.instance_id is not None:
            self._static.put(member.instance_id, member_id)

    def _replay_current(self, member_id: str, current: C | None) -> None:
        was_at, is_at = _settled_at(self._currents.get(member_id)), _settled_at(current)
        if was_at != is_at:
            if was_at is not None:
                count_up(self._settled, was_at, -1)
            if is_at is not None:
                count_up(self._settled, is_at, 1)
        self._currents.assign(member_id, current)

    def _tables(self) -> tuple[TimelineTable[Any, Any], ...]:
        """The tables that the log fills."""
        return (self._epochs, self._target_epochs, self._members, self._targets, self._currents)

    @property
    def is_droppable(self) -> bool:
        """Whether nothing is left, neither newest nor committed."""
        return all(table.is_droppable for table in self._tables())

    def tombstones(self) -> list[Any]:
        """The records that remove the group, in the order in which Kafka reads them."""
        group_id, records = self.group_id, self.records
        member_ids = [member_id for member_id, _ in self._members.items()]
        found: list[Any] = [records.current(group_id, member_id, None) for member_id in member_ids]
        found += (records.target(group_id, member_id, None) for member_id in member_ids)
        if _GROUP in self._target_epochs:
            found.append(records.target_epoch(group_id, None))
        found += (records.member(group_id, member_id, None) for member_id in member_ids)
        found += self._own_tombstones()
        found.append(records.epoch(group_id, None))
        return found

    def _own_tombstones(self) -> list[Any]:
        """Those of what only this type of group has."""
        return []

    # -- the group --------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""
        return _GROUP in self._epochs

    @property
    def stored_epoch(self) -> E:
        """The group epoch with what it was started for."""
        return self._epochs.get(_GROUP) or self.first_epoch

    @property
    def epoch(self) -> int:
        """The group epoch: one more for every change of members, subscriptions or topics."""
        epoch = self._epochs.get(_GROUP)
        return self.first_epoch.epoch if epoch is None else epoch.epoch

    @property
    def metadata_hash(self) -> int:
        """The hash of the topics at the group epoch."""
        return self.stored_epoch.metadata_hash

    @property
    def target_epoch(self) -> int:
        """The group epoch that the target assignment was made for."""
        epoch = self._target_epochs.get(_GROUP)
        return self.first_epoch.epoch if epoch is None else epoch.epoch

    @property
    def assigned_at_ms(self) -> int | None:
        """When the target assignment was made; None if never."""
        epoch = self._target_epochs.get(_GROUP)
        return None if epoch is None else epoch.assigned_at_ms

    @property
    def state(self) -> ModernGroupState:
        """See ModernGroupState."""
        count = len(self._members)
        if not count:
            return ModernGroupState.EMPTY
        target_epoch = self.target_epoch
        if self.epoch > target_epoch:
            return ModernGroupState.ASSIGNING
        if (self._settled.get(target_epoch) or 0) < count:
            return ModernGroupState.RECONCILING
        return ModernGroupState.STABLE

    # -- members ----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not len(self._members)

    @property
    def member_count(self) -> int:
        """How many members there are."""
        return len(self._members)

    def members(self) -> Iterator[tuple[str, M]]:
        """All members by id, in the order in which they joined."""
        return self._members.items()

    def member(self, member_id: str) -> M | None:
        """The member of that id."""
        return self._members.get(member_id)

    def static_member_id(self, instance_id: str) -> str | None:
        """The holder of the instance id."""
        return self._static.get(instance_id)

    def has_target(self, member_id: str) -> bool:
        """Whether a target is stored for the member."""
        return member_id in self._targets

    def target(self, member_id: str) -> T:
        """The target assignment of the member."""
        return self._targets.get(member_id) or self.no_target

    def current(self, member_id: str) -> C:
        """The current assignment of the member; empty, at epoch 0, of a new member."""
        return self._currents.get(member_id) or self.new_current

    def expect_lost_responses(self) -> None:
        """The group was loaded: the last responses of the previous coordinator may be lost.

        Classic members have no unconfirmed responses: their requests wait for the response.
        """
        members = (id_ for id_, member in self.members() if not self.is_classic(member))
        self.unconfirmed_connections.update(dict.fromkeys(members, UNKNOWN_CONNECTION))

    def is_classic(self, _member: M) -> bool:
        """Whether the member speaks the classic protocol."""
        return False

    def pending_count(self, current: C) -> int:
        """How many partitions or tasks a member still has to revoke."""
        return sum(map(len, current.pending_revocation.values()))

    def owned_since(self, _member_id: str, _topic: CommitTopic) -> Mapping[int, int]:
        """The partitions of the topic that a member may commit, with the member epochs in which
        they were assigned to it. None in share groups, which have no committed offsets."""
        return {}

    # -- settings and timers ----------------------------------------------------------------------

    @abstractmethod
    def longest_interval_ms(self, settings: GroupSettings) -> int:
        """The longest time between two heartbeats of a member: the broker's setting."""

    def session_timeout_ms(self, _member: M, settings: GroupSettings) -> int:
        """After this long without a heartbeat the member is removed."""
        return self.settings_of(settings, self.group_id).session_timeout_ms

    def member_key(self, timer: str, member_id: str) -> TimerKey:
        """A timer of a member."""
        return (timer, self.group_id, member_id)

    def assignment_key(self) -> TimerKey:
        """The timer of a target assignment that was put off."""
        return (self.timers.assignment, self.group_id)

    def own_key(self) -> TimerKey:
        """The timer of groups that only this type has."""
        return (self.timers.own, self.group_id)

    def member_keys(self, member_id: str) -> list[TimerKey]:
        """All timers that a member may have."""
        timers = self.timers
        names = (timers.session, timers.revocation, *timers.of_members)
        return [self.member_key(name, member_id) for name in names if name]


AnyGroup: TypeAlias = ModernGroup[Any, Any, Any, Any]


def _settled_at(current: CurrentAssignment | None) -> int | None:
    """The epoch at which a member has reached its target; None if it has not."""
    is_settled = current is not None and current.state is MemberState.STABLE
    return current.member_epoch if current is not None and is_settled else None
