"""Ephemeral groups: gone, with their offsets, some time after their last member.

Whatever is written of an ephemeral group has it looked at once more when that has taken effect, so
that no transition of any kind of group need know of this:

| What was written of a group, or loaded | then the group | and its end |
|---|---|---|
| anything | has members | is called off |
| anything | has none, and has had some | is due in ttl ms from now |
| its end was due | has members | is off, till more is written of it |
| its end was due | has none, but some with an id to join with | is put off |
| its end was due | has none | is written like a deletion that was asked for |

So the time runs anew with every change of an Empty group, as when an administrator moves its
offsets, and when its coordinator has moved. A static member counts until its session ends, as it
does everywhere. A group that never had a member, and has nothing but offsets, is left alone: nobody
has left it. Called by `shard`, which has the timers.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

import msgspec

from odradek.coordinator.group.administration.group_cleanup import GroupCleanup
from odradek.coordinator.group.administration.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord, group_ids_of
from odradek.coordinator.group.policies import GroupPolicies
from odradek.coordinator.group.share.groups import STATE_RETRY_MS
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.outcome import (
    Outcome,
    Timer,
    TimerKey,
)

CHECK: Final = "ephemeral-look"
EXPIRATION: Final = "ephemeral-end"
EPHEMERAL_TIMERS: Final = frozenset({CHECK, EXPIRATION})
_RECHECK_MS: Final = 1_000
"""Between two looks at a group that somebody has announced to join."""


class EphemeralGroupExpired(msgspec.Struct, frozen=True, gc=False):
    """An ephemeral group has come to its end: to be told and counted by the shell."""

    group_id: str
    ttl_ms: int


class GroupOccupancy(Enum):
    """Whether somebody is in a group."""

    NEVER_JOINED = auto()
    """There is no group, or one that has nothing but offsets."""
    EMPTY = auto()
    PENDING = auto()
    """Without members; but some have got an id to join with."""
    NON_EMPTY = auto()


class EphemeralGroups:
    """See the module's docstring."""

    __slots__ = ("_cleanup", "_directory")

    def __init__(self, directory: GroupDirectory, cleanup: GroupCleanup) -> None:
        self._directory = directory
        self._cleanup = cleanup

    def occupancy(self, group_id: str) -> GroupOccupancy:
        """Whether somebody is in the group."""
        directory = self._directory
        if not directory.is_empty(group_id):
            return GroupOccupancy.NON_EMPTY
        if directory.modern_type_of(group_id) is not None:
            return GroupOccupancy.EMPTY
        group = directory.classic.live_groups.get(group_id)
        if group is not None and group.pending:
            return GroupOccupancy.PENDING
        is_known = group_id in directory.classic
        return GroupOccupancy.EMPTY if is_known else GroupOccupancy.NEVER_JOINED

    @staticmethod
    def with_check_timers(
        outcome: Outcome[GroupRecord], policies: GroupPolicies, now_ms: int
    ) -> Outcome[GroupRecord]:
        """The outcome, with a check of each ephemeral group that it has records of."""
        timers = [
            Timer((CHECK, group_id), now_ms)
            for group_id in group_ids_of(outcome.records)
            if policies.ttl_ms(group_id) is not None
        ]
        if not timers:
            return outcome
        return msgspec.structs.replace(outcome, timers=(*outcome.timers, *timers))

    @staticmethod
    def check_timers(
        group_ids: Iterable[str], policies: GroupPolicies, now_ms: int
    ) -> tuple[Timer, ...]:
        """Timers for these groups: those that are ephemeral are looked at, the others stay."""
        return tuple(
            Timer((EXPIRATION, group_id), None)
            if policies.ttl_ms(group_id) is None
            else Timer((CHECK, group_id), now_ms)
            for group_id in group_ids
        )

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of this module is due: the group may have come to its end."""
        policies = step.settings.policies
        timer = self._next_timer(key, policies, step.now_ms)
        if timer is not None:
            step.timers.append(timer)
            return
        group_id = key[1]
        if self._directory.shares.maybe_delete_states(group_id, step):
            step.set_timer(key, step.now_ms + STATE_RETRY_MS)
            return
        self._cleanup.end(group_id, step)
        step.send(EphemeralGroupExpired(group_id, policies.ttl_ms(group_id) or 0))

    def _next_timer(self, key: TimerKey, policies: GroupPolicies, now_ms: int) -> Timer | None:
        """What comes of a timer, None if that is the group's end."""
        kind, group_id = key
        end = (EXPIRATION, group_id)
        ttl_ms = policies.ttl_ms(group_id)
        occupancy = self.occupancy(group_id)
        if ttl_ms is None or occupancy in (GroupOccupancy.NEVER_JOINED, GroupOccupancy.NON_EMPTY):
            return Timer(end, None)
        if occupancy is GroupOccupancy.PENDING:
            return Timer(end, now_ms + max(ttl_ms, _RECHECK_MS))
        if kind == CHECK and ttl_ms > 0:
            return Timer(end, now_ms + ttl_ms)
        return None
