"""Named snapshots of a group's offsets, as targets of later rewinds.

They are in the log of the group and are deleted with it. The snapshot of a share group has the
start offsets, not the acknowledged records after them. Called by `live_rewinder`.
"""

import re
from collections.abc import Mapping
from typing import Final

from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.modern.group import GROUP_TYPE_SHARE
from odradek.coordinator.group.modern.group_type import GroupTypeHandler
from odradek.coordinator.group.rewind.records import (
    OffsetMove,
    OffsetSnapshot,
    OffsetSnapshotRecord,
)
from odradek.coordinator.group.rewind.requests import (
    DescribeRewinds,
    DropSnapshot,
    RewindHistory,
    RewindResult,
    TakeSnapshot,
)
from odradek.coordinator.group.rewind.rewind_tables import (
    MOVE_COUNT_MAX,
    SNAPSHOT_COUNT_MAX,
    RewindTables,
)
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class GroupSnapshots:
    """See the module's docstring."""

    def __init__(self, rewinds: RewindTables, directory: GroupDirectory) -> None:
        self._rewinds = rewinds
        self._offsets = directory.offsets
        self._group_type_of = directory.group_type_of
        self.handlers: Mapping[type, GroupTypeHandler] = {
            DescribeRewinds: self.describe,
            TakeSnapshot: self.take,
            DropSnapshot: self.drop,
        }

    def describe(self, command: Command, request: DescribeRewinds, step: GroupStep) -> None:
        """The undo points and snapshots of a group; None if there is no such group."""
        rewinds, group_id = self._rewinds, request.group_id
        group_type = self._group_type_of(group_id)
        history = None
        if group_type is not None:
            state = rewinds.state(group_id)
            known = (rewind.rewind_id for rewind in (state.pending, state.last) if rewind)
            history = RewindHistory(
                pending=state.pending,
                known_ids=frozenset((*known, *state.done_ids, *state.given_up_ids)),
                group_type=group_type,
                undo_points=rewinds.undo_points(group_id),
                snapshots=rewinds.snapshots(group_id),
            )
        step.reply(command.request_id, history)

    def take(self, command: Command, request: TakeSnapshot, step: GroupStep) -> None:
        """Store the group's offsets under a name."""
        group_id = request.group_id
        known = self._rewinds.snapshots(group_id)
        group_type = self._group_type_of(group_id)
        is_share = group_type == GROUP_TYPE_SHARE
        moves = request.share_starts if is_share else self._committed(group_id)
        error, message = ErrorCode.INVALID_REQUEST, None
        if group_type is None:
            error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        elif not _NAME.match(request.name):
            message = (
                "A snapshot's name has at most 249 characters: letters, digits, '.', '_' and '-'."
            )
        elif request.name in known:
            message = f"Snapshot {request.name} already exists. Delete it first."
        elif len(known) >= SNAPSHOT_COUNT_MAX:
            message = (
                f"The group has {len(known)} snapshots, the most that are allowed."
                " Delete one first."
            )
        elif not moves:
            message = f"The group has {'read nothing yet' if is_share else 'no committed offsets'}."
        elif len(moves) > MOVE_COUNT_MAX:
            message = f"{len(moves)} offsets are more than the {MOVE_COUNT_MAX} of a snapshot."
        if message is not None:
            step.reply(command.request_id, RewindResult(error, message))
            return
        snapshot = OffsetSnapshot(step.now_ms, moves)
        step.records.append(OffsetSnapshotRecord(group_id, request.name, snapshot))
        step.reply(command.request_id, RewindResult(moves=moves))

    def _committed(self, group_id: str) -> tuple[OffsetMove, ...]:
        offsets = sorted(self._offsets.items(group_id), key=lambda at: at[0])
        return tuple(
            OffsetMove(
                topic,
                committed.topic_id,
                partition,
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
            )
            for (topic, partition), committed in offsets
        )

    def drop(self, command: Command, request: DropSnapshot, step: GroupStep) -> None:
        """Delete a snapshot."""
        group_id = request.group_id
        result = RewindResult()
        if self._group_type_of(group_id) is None:
            message = f"Group {group_id} not found."
            result = RewindResult(ErrorCode.GROUP_ID_NOT_FOUND, message)
        elif request.name not in self._rewinds.snapshots(group_id):
            message = f"Snapshot {request.name} not found."
            result = RewindResult(ErrorCode.RESOURCE_NOT_FOUND, message)
        else:
            step.records.append(OffsetSnapshotRecord(group_id, request.name, None))
        step.reply(command.request_id, result)
