"""The newest events of a group, with member, time and reason, for ExplainGroup.

They are in memory only, EVENT_COUNT_MAX for each group. Reasons come from clients (KIP-800) if they
send one. Recorded by groups of all types, read by `administration.explanation`.
"""

from collections import deque
from enum import IntEnum

import msgspec

EVENT_COUNT_MAX = 32
"""Events kept per group."""
REASON_LENGTH_MAX = 255
"""Characters kept of a client's reason: the limit of KIP-800."""
REASON_NOT_PROVIDED = "not provided"
"""The reason of clients that send none."""


class EventKind(IntEnum):
    """Kinds of events, with the numbers of ExplainGroup, which are never reused."""

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
    """One event. `member_id` is empty if the event is about the group."""

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
        """Add an event; if the buffer is full, the oldest is dropped."""
        self._events.append(GroupEvent(at_ms, kind, member_id, reason[:REASON_LENGTH_MAX]))

    def newest(self) -> tuple[GroupEvent, ...]:
        """The events kept, oldest first."""
        return tuple(self._events)
