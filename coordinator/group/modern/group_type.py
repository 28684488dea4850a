"""What a shard of groups asks of the groups of one newer kind: KIP-848's and its descendants.

A family stands wholly in the log: its tables change in `replay`, and loading is replaying. Classic
groups are no family, since more of them lives in memory than in the log (`classic.groups`). A group
id belongs to one kind at a time; which one is the shard's to know, and a family asks it through
`GroupTypeOf`. Implemented by `consumer.groups`; called by `shard` and `directory`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.requests import CommitRequest, UpdateTopics
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command, TimerKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ListedGroup

GroupTypeHandler: TypeAlias = Callable[[Command, GroupStep], None]
"""Decides a request within a step: its records, its timers and its reply."""

GroupTypeOf: TypeAlias = Callable[[str], str | None]
"""The kind of the group that has an id ("classic", "consumer", ...), None if there is no group. A
group that has nothing but offsets is a classic one."""


class GroupType(Protocol):
    """See the module's docstring. What takes a `group_id` may ask that the group exists."""

    group_type: str
    """As ListGroups says it."""
    record_types: tuple[type, ...]
    """The classes of the records that `replay` takes."""
    timer_kinds: frozenset[str]
    """The first parts of the keys of its timers; no other family has them."""
    is_kept_empty: bool
    """Whether an Empty group stays until somebody deletes it: what it has read is not in offsets
    that expire."""
    handlers: Mapping[type, GroupTypeHandler]
    """The requests that are for this kind of group alone."""

    def __contains__(self, group_id: object) -> bool:
        """Whether there is such a group of this kind."""

    def group_ids(self) -> Iterator[str]:
        """All groups of this kind."""

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members."""

    @property
    def replay(self) -> Callable[[Any], None]:
        """Change the tables as a record says; given those of `record_types` only."""

    def on_loaded(self, step: GroupStep) -> None:
        """The log has been replayed: set timers, ask anew for what was to be done elsewhere."""

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """The tables are back where they were; some groups' timers may not be."""

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """One of its timers is due."""

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """The catalog of topics has changed."""

    def listed(self, group_id: str) -> ListedGroup:
        """The group for ListGroups."""

    def topic_names(self, group_id: str) -> frozenset[str]:
        """What its members subscribe to: offsets of these topics do not expire."""

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """The records that make an end of the group, but for its offsets."""

    def commit_error(self, request: CommitRequest, version: int) -> ErrorCode:
        """Whether the asker may commit these offsets to the group, plainly or in a transaction."""

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether the asker may fetch offsets of the group."""
