"""Texts for the codes that ExplainGroup sends: waits, members and events of groups."""

from collections.abc import Mapping
from typing import Final

from odradek.coordinator.group.events import EventKind
from odradek.protocol.messages.diagnostics import MemberProgress, RebalanceWait

WAIT_TEXTS: Final[Mapping[int, str]] = {
    RebalanceWait.INITIAL_REBALANCE_DELAY: (
        "for more members to join (group.initial.rebalance.delay.ms)"
    ),
    RebalanceWait.JOIN_GROUP: "for its members to join",
    RebalanceWait.SYNC_GROUP: "for its members to ask for their assignments",
}
PROGRESS_TEXTS: Final[Mapping[int, str]] = {
    MemberProgress.STABLE: "stable",
    MemberProgress.JOINED: "joined",
    MemberProgress.NOT_JOINED: "has not joined",
    MemberProgress.SYNCED: "has its assignment",
    MemberProgress.NOT_SYNCED: "has not asked for its assignment",
    MemberProgress.ID_ASSIGNED: "has a member id and has not joined",
    MemberProgress.REVOKING_PARTITIONS: "has partitions to revoke",
    MemberProgress.REVOKING_TASKS: "has tasks to revoke",
    MemberProgress.AWAITING_PARTITIONS: "waits for partitions of other members",
    MemberProgress.AWAITING_TASKS: "waits for tasks of other members",
    MemberProgress.EPOCH_BEHIND: "has not received the newest assignment",
    MemberProgress.STATIC_LEFT: "left, its assignment is kept (static member)",
}
EVENT_TEXTS: Final[Mapping[int, str]] = {
    EventKind.MEMBER_JOINED: "member joined",
    EventKind.MEMBER_REJOINED: "member rejoined",
    EventKind.MEMBER_REPLACED: "static member replaced",
    EventKind.MEMBER_LEFT: "member left",
    EventKind.MEMBER_EXPIRED: "member expired",
    EventKind.REBALANCE_STARTED: "rebalance started",
    EventKind.GENERATION_STARTED: "generation started",
    EventKind.ASSIGNMENT_STORED: "assignment stored",
    EventKind.ASSIGNMENT_LOST: "assignment could not be stored",
    EventKind.BECAME_EMPTY: "group became empty",
    EventKind.LOADED: "group loaded",
    EventKind.REWIND_STARTED: "rewind started",
    EventKind.REWOUND: "rewound",
    EventKind.REWIND_GIVEN_UP: "rewind cancelled",
    EventKind.MEMBER_CHANGED: "member changed",
    EventKind.TARGET_ASSIGNED: "target assignment computed",
    EventKind.REVOCATION_STARTED: "revocation started",
    EventKind.REVOKED: "partitions revoked",
}


def text_of(texts: Mapping[int, str], code: int) -> str:
    """The text of a code; `code 99` for one that a newer broker sends."""
    return texts.get(code, f"code {code}")
