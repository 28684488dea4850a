"""The groups of one newer kind in a shard: made by their records, dropped when their end is final.

What every family (`family.Family`) keeps of its groups in the same way; what a kind does with its
groups is the family's own. Called by `consumer.groups`, `share.groups` and `streams.groups`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from odradek.coordinator.group.deleted_groups import drop_deleted
from odradek.coordinator.timeline import Timeline, TimelineTable

_MEMBERS: Final = "members"


class HasGroupId(Protocol):
    """What every record of a group says."""

    @property
    def group_id(self) -> str:
        """Whose it is."""


class TableGroup(Protocol):
    """What is asked of a group."""

    group_id: str

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""

    @property
    def is_droppable(self) -> bool:
        """Whether nothing is left, neither newest nor committed."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    def member_count(self) -> int:
        """How many members there are."""

    @property
    def replay(self) -> Callable[[Any], None]:
        """Change the group as a record of its kind says."""


R = TypeVar("R", bound=HasGroupId)
G = TypeVar("G", bound=TableGroup)


class GroupTable(Generic[G, R]):
    """See the module's docstring. `new_group` makes a group without records."""

    def __init__(self, timeline: Timeline, new_group: Callable[[str, Timeline], G]) -> None:
        self._timeline = timeline
        self._new_group = new_group
        self._groups: dict[str, G] = {}
        # Groups that are no more, whose objects are kept until that is committed.
        self._ended: dict[str, None] = {}
        self._counts: TimelineTable[str, int] = TimelineTable(timeline)

    def _replay_record(self, record: R) -> list[str]:
        """Have the group that the record is about replay it. Returns the ids of groups whose
        objects were dropped."""
        group_id = record.group_id
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._new_group(group_id, self._timeline)
        before = group.member_count
        group.replay(record)
        if group.member_count != before:
            self._counts.put(_MEMBERS, self.member_count + group.member_count - before)
        if not group.exists:
            self._ended[group_id] = None
        return drop_deleted(self._groups, self._ended) if self._ended else []

    def _drop_unless_stored(self, group_id: str) -> None:
        """The group's first records were not written: there may be nothing to keep."""
        self._ended[group_id] = None

    def get(self, group_id: str) -> G | None:
        """The group of that id, if it exists."""
        group = self._groups.get(group_id)
        return group if group is not None and group.exists else None

    def __contains__(self, group_id: object) -> bool:
        group = self._groups.get(group_id) if isinstance(group_id, str) else None
        return group is not None and group.exists

    def __iter__(self) -> Iterator[G]:
        return (group for group in self._groups.values() if group.exists)

    @property
    def member_count(self) -> int:
        """How many members send heartbeats here."""
        return self._counts.get(_MEMBERS) or 0

    def group_ids(self) -> Iterator[str]:
        """All groups of this kind."""
        return (group.group_id for group in self)

    def is_empty(self, group_id: str) -> bool:
        """Whether the group, which exists, has no members."""
        return self._groups[group_id].is_empty
