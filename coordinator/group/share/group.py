"""A share group (KIP-932) as the log has it: members, what they read, epochs, partitions' states.

Members share partitions: a partition may be read by several, none has to be given up before
another gets it, and so a member goes from one assignment to the next in one step. What has to be
waited for is a partition's share state, the group's position in it: it is made (by the share
coordinator) before anybody is given the partition. A group with members is Stable.

Everything is in tables that can go back to the committed state. Called by `share.heartbeats` and
`share.groups`; only `replay` changes anything.
"""

from enum import StrEnum
from typing import Final

from odradek.coordinator.group.consumer.records import (
    GroupEpoch,
    TargetEpoch,
)
from odradek.coordinator.group.modern.group import ModernGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareGroupMember,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
)
from odradek.coordinator.group.topics import (
    NO_PARTITIONS,
    Partitions,
)
from odradek.coordinator.timeline import Timeline, TimelineTable, count

NEW_MEMBER: Final = ShareCurrentAssignment()
NO_STATES: Final = StatePartitions()

_GROUP: Final = "group"
_TARGET: Final = "target"
_STATES: Final = "states"


class ShareGroupState(StrEnum):
    """Kafka's names, as ShareGroupDescribe and ListGroups spell them."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareGroup(ModernGroup[ShareGroupMember, Partitions]):
    """See the module's docstring. It exists as long as its epoch is stored."""

    __slots__ = ("_currents", "_epochs", "_names", "_states")

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        self._epochs: TimelineTable[str, GroupEpoch | TargetEpoch] = TimelineTable(timeline)
        self._currents: TimelineTable[str, ShareCurrentAssignment] = TimelineTable(timeline)
        self._states: TimelineTable[str, StatePartitions] = TimelineTable(timeline)
        # What follows from the members: how many read a topic.
        self._names: TimelineTable[str, int] = TimelineTable(timeline)

    # -- what the log says ------------------------------------------------------------------------

    def replay(self, record: ShareGroupRecord) -> None:
        """Change the tables as the record says."""
        match record:
            case ShareEpochRecord():
                self._epochs.assign(_GROUP, record.epoch)
            case ShareTargetEpochRecord():
                self._epochs.assign(_TARGET, record.epoch)
            case ShareTargetRecord():
                self._targets.assign(record.member_id, record.target)
            case ShareMemberRecord():
                self._replay_member(record.member_id, record.member)
            case ShareCurrentRecord():
                self._currents.assign(record.member_id, record.current)
            case ShareStatePartitionsRecord():
                self._states.assign(_STATES, record.states)

    def _replay_member(self, member_id: str, member: ShareGroupMember | None) -> None:
        old = self._members.get(member_id)
        self._members.assign(member_id, member)
        for known, step in ((old, -1), (member, 1)):
            for name in () if known is None else known.topic_names:
                count(self._names, name, step)

    @property
    def is_droppable(self) -> bool:
        """Whether nothing is left, neither newest nor committed: the object may be dropped."""
        tables = (self._epochs, self._members, self._targets, self._currents, self._states)
        return all(table.is_droppable for table in tables)

    # -- questions about the group ----------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""
        return _GROUP in self._epochs

    @property
    def epoch(self) -> int:
        """The group epoch: one more for every change of members, subscriptions or topics, and for
        every change of where the group begins to read."""
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
    def assigned_at_ms(self) -> int | None:
        """When the target assignment was made; None if never."""
        epoch = self._epochs.get(_TARGET)
        return epoch.assigned_at_ms if isinstance(epoch, TargetEpoch) else None

    @property
    def states(self) -> StatePartitions:
        """Which partitions have a share state, or are to get or lose it."""
        return self._states.get(_STATES) or NO_STATES

    @property
    def state(self) -> ShareGroupState:
        """See the module's docstring."""
        return ShareGroupState.STABLE if len(self._members) else ShareGroupState.EMPTY

    def topic_names(self) -> frozenset[str]:
        """Every topic that a member subscribes to, whether it exists or not."""
        return frozenset(name for name, _ in self._names.items())

    # -- questions about members ------------------------------------------------------------------

    def current(self, member_id: str) -> ShareCurrentAssignment:
        """What the member reads; nothing, at epoch 0, if it has just come."""
        return self._currents.get(member_id) or NEW_MEMBER

    def target(self, member_id: str) -> Partitions:
        """What the member shall read."""
        return self._targets.get(member_id) or NO_PARTITIONS
