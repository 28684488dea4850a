"""A share group (KIP-932) as the log has it: members, what they read, epochs, partitions' states.

Members share partitions: a partition may be read by several, none has to be given up before
another gets it, and so a member goes from one assignment to the next in one step. What has to be
waited for is a partition's share state, the group's position in it: it is made (by the share
coordinator) before anybody is given the partition. A group with members is Stable.

Everything is in tables that can go back to the committed state. Called by `share.heartbeats` and
`share.groups`; only `replay` changes anything.
"""

from typing import Any, Final

from odradek.coordinator.group.modern.group import (
    GROUP_TYPE_SHARE,
    ModernGroup,
    ModernGroupState,
    ModernTimers,
)
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.records import (
    SHARE_RECORDS,
    ShareCurrentAssignment,
    ShareGroupMember,
    ShareStatePartitionsRecord,
    StatePartitions,
)
from odradek.coordinator.group.topics import NO_PARTITIONS, Partitions
from odradek.coordinator.timeline import Timeline, TimelineTable, count

NO_STATES: Final = StatePartitions()

_STATES: Final = "states"


class ShareGroup(ModernGroup[ShareGroupMember, Partitions, ShareCurrentAssignment, GroupEpoch]):
    """See the module's docstring."""

    __slots__ = ("_names", "_states")

    group_type = GROUP_TYPE_SHARE
    unit = "partitions"
    records = SHARE_RECORDS
    timers = ModernTimers("share-session", "share-assignment", own="share-states")
    settings_of = staticmethod(GroupSettings.share_of)
    first_epoch = GroupEpoch(0)
    no_target = NO_PARTITIONS
    new_current = ShareCurrentAssignment()

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        self._states: TimelineTable[str, StatePartitions] = TimelineTable(timeline)
        # What follows from the members: how many read a topic.
        self._names: TimelineTable[str, int] = TimelineTable(timeline)

    def _replay_other(self, record: object) -> None:
        assert isinstance(record, ShareStatePartitionsRecord)
        self._states.assign(_STATES, record.value)

    def _replay_member(self, member_id: str, member: ShareGroupMember | None) -> None:
        for known, step in ((self._members.get(member_id), -1), (member, 1)):
            for name in () if known is None else known.topic_names:
                count(self._names, name, step)
        super()._replay_member(member_id, member)

    def _tables(self) -> tuple[TimelineTable[Any, Any], ...]:
        return (*super()._tables(), self._states)

    def _own_tombstones(self) -> list[Any]:
        return [ShareStatePartitionsRecord(self.group_id, None)]

    # -- settings ---------------------------------------------------------------------------------

    def longest_interval_ms(self, settings: GroupSettings) -> int:
        """See ModernGroup."""
        return settings.share.heartbeat_interval_ms

    # -- questions about the group ----------------------------------------------------------------

    @property
    def states(self) -> StatePartitions:
        """Which partitions have a share state, or are to get or lose it."""
        return self._states.get(_STATES) or NO_STATES

    @property
    def state(self) -> ModernGroupState:
        """Empty or Stable: no member waits for another's revocation."""
        return ModernGroupState.EMPTY if self.is_empty else ModernGroupState.STABLE

    def topic_names(self) -> frozenset[str]:
        """Every topic that a member subscribes to, whether it exists or not."""
        return frozenset(name for name, _ in self._names.items())
