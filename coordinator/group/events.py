"""The last things that happened to a group, with who, when and why: what "explain" is made of.

A ring per group, in memory only: it answers "why did it rebalance just now", not "what happened
last year". Reasons are the clients' own (KIP-800) where they give one. Told by the groups of
every kind, and read by `explaining`.
"""

from collections import deque
from enum import StrEnum

import msgspec

EVENT_COUNT_MAX = 32
"""Events kept per group."""
REASON_LENGTH_MAX = 255
"""Letters kept of a client's reason: what KIP-800 lets clients send."""


REASON_NOT_PROVIDED = "not provided"
"""Stands for the reason of clients that give none."""


class EventKind(StrEnum):
    """What happened."""

    MEMBER_JOINED = "member joined"
    MEMBER_REJOINED = "member rejoined"
    MEMBER_REPLACED = "static member replaced"
    MEMBER_LEFT = "member left"
    MEMBER_EXPIRED = "member expired"
    REBALANCE_STARTED = "rebalance started"
    GENERATION_STARTED = "generation started"
    ASSIGNMENT_STORED = "assignment stored"
    ASSIGNMENT_LOST = "assignment could not be stored"
    BECAME_EMPTY = "group became empty"
    LOADED = "group loaded"
    REWIND_STARTED = "rewind started"
    REWOUND = "rewound"
    REWIND_GIVEN_UP = "rewind given up"
    MEMBER_CHANGED = "member changed"
    TARGET_ASSIGNED = "targets assigned"
    REVOCATION_STARTED = "asked to give up partitions"
    REVOKED = "partitions given up"


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
