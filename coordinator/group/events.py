"""The last things that happened to a group, with who, when and why: what "explain" is made of.

A ring per group, in memory only: it answers "why did it rebalance just now", not "what happened
last year". Reasons are the clients' own (KIP-800) where they give one. Told by the groups of
every kind, and read by `explaining`.
"""

from collections import deque
from enum import IntEnum

import msgspec

EVENT_COUNT_MAX = 32
"""Events kept per group."""
REASON_LENGTH_MAX = 255
"""Letters kept of a client's reason: what KIP-800 lets clients send."""


REASON_NOT_PROVIDED = "not provided"
"""Stands for the reason of clients that give none."""


class EventKind(IntEnum):
    """What happened, as ExplainGroup sends it. Numbers are never given to another kind."""

    MEMBER_JOINED = 0
    MEMBER_REJOINED = 1
    MEMBER_REPLACED = 2
    MEMBER_LEFT = 3
    MEMBER_EXPIRED = 4
    REBALANCE_STARTED = 5
    GENERATION_STARTED = 6
    ASSIGNMENT_STORED = 7
    ASSIGNMENT_LOST = 8
    BECAME_EMPTY = 9
    LOADED = 10
    REWIND_STARTED = 11
    REWOUND = 12
    REWIND_GIVEN_UP = 13
    MEMBER_CHANGED = 14
    TARGET_ASSIGNED = 15
    REVOCATION_STARTED = 16
    REVOKED = 17


class GroupEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `member_id` is empty where no single member is meant."""

    at_ms: int
    kind: EventKind
    member_id: str = ""
    reason: str = ""


class EventBuffer:
    """The newest events of one group."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[GroupEvent] = deque(maxlen=EVENT_COUNT_MAX)

    def add(self, at_ms: int, kind: EventKind, member_id: str = "", reason: str = "") -> None:
        """Remember an event; the oldest makes room."""
        self._events.append(GroupEvent(at_ms, kind, member_id, reason[:REASON_LENGTH_MAX]))

    def newest(self) -> tuple[GroupEvent, ...]:
        """The events kept, oldest first."""
        return tuple(self._events)
