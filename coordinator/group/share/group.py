"""A share group (KIP-932): members, epochs, assignments and the share states of partitions.

Several members may read a partition, and none has to revoke it before another gets it. So a member
gets its target assignment in one step. A partition is assigned only after the share coordinator has
initialized its share state, the group's position in it. A group with members is Stable.

Called by `share.heartbeats` and `share.groups`; only `replay` changes a group.
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
    first_epoch = GroupEpoch(1)
    no_target = NO_PARTITIONS
    new_current = ShareCurrentAssignment()

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        self._states: TimelineTable[str, StatePartitions] = TimelineTable(timeline)
        # Derived: the number of members that subscribe to a topic.
        self._names: TimelineTable[str, int] = TimelineTable(timeline)

    def _replay_own(self, record: object) -> None:
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

    # -- the group --------------------------------------------------------------------------------

    @property
    def states(self) -> StatePartitions:
        """The partitions with a share state that is initialized, being initialized or deleted."""
        return self._states.get(_STATES) or NO_STATES

    @property
    def state(self) -> ModernGroupState:
        """Empty or Stable: no member waits for another's revocation."""
        return ModernGroupState.EMPTY if self.is_empty else ModernGroupState.STABLE

    def topic_names(self) -> frozenset[str]:
        """Every topic that a member subscribes to, existing or not."""
        return frozenset(name for name, _ in self._names.items())
