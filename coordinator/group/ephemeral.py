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

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from odradek.coordinator.group.classic.groups import ClassicGroups
from odradek.coordinator.group.consumer.assigning import ConsumerStep
from odradek.coordinator.group.departures import Departures
from odradek.coordinator.group.family import Family
from odradek.coordinator.group.records import GroupRecord
from odradek.coordinator.group.rules import Rules
from odradek.coordinator.group.share.groups import STATES_AGAIN_MS, ShareGroups
from odradek.coordinator.outcome import InTransaction, Marker, Outcome, Timer, TimerKey

LOOK: Final = "ephemeral-look"
END: Final = "ephemeral-end"
EPHEMERAL_TIMERS: Final = frozenset({LOOK, END})
_AGAIN_MS: Final = 1_000
"""Between two looks at a group that somebody has announced to join."""


class GroupVanished(msgspec.Struct, frozen=True, gc=False):
    """An ephemeral group has come to its end: to be told and counted by the shell."""

    group_id: str
    ttl_ms: int


class Presence(Enum):
    """Whether somebody is in a group."""

    NEVER = auto()
    """There is no group, or one that has nothing but offsets."""
    EMPTY = auto()
    ANNOUNCED = auto()
    """Without members; but some have got an id to join with."""
    OCCUPIED = auto()


class Ephemerals:
    """See the module's docstring."""

    __slots__ = ("_classic", "_departures", "_families", "_shares")

    def __init__(
        self,
        classic: ClassicGroups,
        families: Sequence[Family],
        shares: ShareGroups,
        departures: Departures,
    ) -> None:
        self._classic = classic
        self._families = families
        self._shares = shares
        self._departures = departures

    def presence(self, group_id: str) -> Presence:
        """Whether somebody is in the group."""
        for family in self._families:
            if group_id in family:
                return Presence.EMPTY if family.is_empty(group_id) else Presence.OCCUPIED
        group = self._classic.objects.get(group_id)
        if group is not None and not group.is_empty:
            return Presence.OCCUPIED
        if group is not None and group.pending:
            return Presence.ANNOUNCED
        return Presence.EMPTY if group_id in self._classic else Presence.NEVER

    @staticmethod
    def watched(outcome: Outcome[GroupRecord], rules: Rules, now_ms: int) -> Outcome[GroupRecord]:
        """The outcome, and a look at the ephemeral groups it writes of."""
        if not outcome.records or not rules.has_ephemeral:
            return outcome
        group_ids = dict.fromkeys(
            record.group_id
            for record in outcome.records
            if not isinstance(record, InTransaction | Marker)
        )
        timers = [
            Timer((LOOK, group_id), now_ms)
            for group_id in group_ids
            if rules.ttl_ms(group_id) is not None
        ]
        if not timers:
            return outcome
        return msgspec.structs.replace(outcome, timers=(*outcome.timers, *timers))

    @staticmethod
    def looks_at(group_ids: Iterable[str], rules: Rules, now_ms: int) -> tuple[Timer, ...]:
        """Timers for these groups: those that are ephemeral are looked at, the others stay."""
        return tuple(
            Timer((END, group_id), None)
            if rules.ttl_ms(group_id) is None
            else Timer((LOOK, group_id), now_ms)
            for group_id in group_ids
        )

    def fire(self, key: TimerKey, step: ConsumerStep) -> None:
        """A timer of this module is due: the group may have come to its end."""
        rules = step.settings.rules
        timer = self._next_look(key, rules, step.now_ms)
        if timer is not None:
            step.timers.append(timer)
            return
        group_id = key[1]
        if self._shares.forgets_first(group_id, step):
            step.set_timer(key, step.now_ms + STATES_AGAIN_MS)
            return
        self._departures.end(group_id, step)
        step.send(GroupVanished(group_id, rules.ttl_ms(group_id) or 0))

    def _next_look(self, key: TimerKey, rules: Rules, now_ms: int) -> Timer | None:
        """What comes of a timer, None if that is the group's end."""
        kind, group_id = key
        end = (END, group_id)
        ttl_ms = rules.ttl_ms(group_id)
        presence = self.presence(group_id)
        if ttl_ms is None or presence in (Presence.NEVER, Presence.OCCUPIED):
            return Timer(end, None)
        if presence is Presence.ANNOUNCED:
            return Timer(end, now_ms + max(ttl_ms, _AGAIN_MS))
        if kind == LOOK and ttl_ms > 0:
            return Timer(end, now_ms + ttl_ms)
        return None
