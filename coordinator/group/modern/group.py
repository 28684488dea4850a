"""What a group of any newer kind keeps of its members: who they are, and what each shall have.

Called by the groups of `consumer`, `share` and `streams`, which are such tables and more.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from odradek.coordinator.timeline import Timeline, TimelineTable

Member = TypeVar("Member")
Target = TypeVar("Target")


class ModernGroup(Generic[Member, Target]):
    """The members of one group by id, and their targets. Only `replay` of the kind changes them."""

    __slots__ = ("_members", "_targets", "group_id")

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        self.group_id = group_id
        self._members: TimelineTable[str, Member] = TimelineTable(timeline)
        self._targets: TimelineTable[str, Target] = TimelineTable(timeline)

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not len(self._members)

    @property
    def member_count(self) -> int:
        """How many members there are."""
        return len(self._members)

    def members(self) -> Iterator[tuple[str, Member]]:
        """All members by id, in the order in which they came."""
        return self._members.items()

    def member(self, member_id: str) -> Member | None:
        """The member of that id."""
        return self._members.get(member_id)

    def has_target(self, member_id: str) -> bool:
        """Whether a target is stored for the member."""
        return member_id in self._targets
