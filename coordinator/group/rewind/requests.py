"""Requests for live rewinds and snapshots, and their responses.

Sent by node/router/handlers/rewinds.py, handled by `live_rewinder`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from odradek.coordinator.group.rewind.records import OffsetMove, OffsetSnapshot, Rewind, UndoPoint
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Request, Uuid

CANCEL: Final = -1
"""As `undoes` of a RewindGroup: cancel the pending rewind."""


class RewindPosition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The target of one partition, within [start_offset, end_offset] of its log.

    It is `offset` (NO_OFFSET: no committed offset), or `shift` records after the committed offset.
    `previous` is the start offset of a share group, which has no committed offsets.
    """

    topic: str
    topic_id: Uuid
    partition: int
    start_offset: int
    end_offset: int
    offset: int | None = None
    shift: int = 0
    previous: int = -1
    leader_epoch: int = -1
    metadata: str = ""


class RewindGroup(msgspec.Struct, Request["RewindResult"], frozen=True, kw_only=True):
    """Rewind a group. The response comes when the rewind is complete or `timeout_ms` have passed.

    A repeated `rewind_id` is a retry of the same rewind. `undoes` is the number of the undo point
    whose offsets these are, 0 for others.
    """

    group_id: str
    rewind_id: Uuid
    positions: tuple[RewindPosition, ...]
    is_dry_run: bool = False
    undoes: int = 0
    timeout_ms: int = 30_000


class RewindResult(msgspec.Struct, frozen=True):
    """The result of a rewind. On an error nothing was changed, except on REQUEST_TIMED_OUT: then
    the rewind continues. `refused` are the partitions that caused the error."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    moves: tuple[OffsetMove, ...] = ()
    refused: tuple[tuple[str, int, ErrorCode], ...] = ()


class DescribeRewinds(msgspec.Struct, Request["RewindHistory | None"], frozen=True):
    """The undo points and snapshots of a group; None if there is no such group."""

    group_id: str


class RewindHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Undo points by number, snapshots by name, and the pending rewind. `known_ids` are the ids of
    recent rewinds, complete or not, and of the pending one."""

    pending: Rewind | None
    known_ids: frozenset[Uuid]
    group_type: str
    undo_points: Mapping[int, UndoPoint]
    snapshots: Mapping[str, OffsetSnapshot]


class TakeSnapshot(msgspec.Struct, Request[RewindResult], frozen=True):
    """Store the group's offsets under a name. The response has them as moves.

    `share_starts` are the start offsets of a share group, which the share coordinator keeps. They
    are ignored for groups of other types.
    """

    group_id: str
    name: str
    share_starts: tuple[OffsetMove, ...] = ()


class DropSnapshot(msgspec.Struct, Request[RewindResult], frozen=True):
    """Delete a snapshot. The response has no moves."""

    group_id: str
    name: str
