"""Named snapshots of a group's offsets, to go back to later.

They are in the log of the group and are deleted with it. Of a share group they have the start
offsets, not what it has acknowledged after them. Called by `live_rewinder`.
"""

import re
from typing import Final

from odradek.coordinator.group.modern.group import GROUP_TYPE_SHARE
from odradek.coordinator.group.modern.group_type import GroupTypeOf
from odradek.coordinator.group.offsets.committed_offsets import CommittedOffsets
from odradek.coordinator.group.rewind.records import (
    OffsetMove,
    OffsetSnapshot,
    OffsetSnapshotRecord,
)
from odradek.coordinator.group.rewind.requests import (
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


def history(rewinds: RewindTables, group_id: str, group_type: str) -> RewindHistory:
    """The undo points and snapshots of a group."""
    state = rewinds.state(group_id)
    known = (rewind.rewind_id for rewind in (state.pending, state.last) if rewind is not None)
    return RewindHistory(
        pending=state.pending,
        known_ids=frozenset((*known, *state.done_ids, *state.given_up_ids)),
        group_type=group_type,
        undo_points=rewinds.undo_points(group_id),
        snapshots=rewinds.snapshots(group_id),
    )


def take(
    command: Command,
    request: TakeSnapshot,
    rewinds: RewindTables,
    offsets: CommittedOffsets,
    group_type_of: GroupTypeOf,
    step: GroupStep,
) -> None:
    """Store the group's offsets under a name."""
    group_id = request.group_id
    known = rewinds.snapshots(group_id)
    kind = group_type_of(group_id)
    moves = request.share_starts if kind == GROUP_TYPE_SHARE else _committed(offsets, group_id)
    error, message = ErrorCode.INVALID_REQUEST, None
    if kind is None:
        error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
    elif not _NAME.match(request.name):
        message = "A snapshot's name has at most 249 characters: letters, digits, '.', '_' and '-'."
    elif request.name in known:
        message = f"Snapshot {request.name} already exists. Delete it first."
    elif len(known) >= SNAPSHOT_COUNT_MAX:
        message = (
            f"The group has {len(known)} snapshots, the most that are allowed. Delete one first."
        )
    elif not moves:
        is_share = kind == GROUP_TYPE_SHARE
        message = f"The group has {'read nothing yet' if is_share else 'no committed offsets'}."
    elif len(moves) > MOVE_COUNT_MAX:
        message = f"{len(moves)} offsets are more than the {MOVE_COUNT_MAX} of a snapshot."
    if message is not None:
        step.reply(command.request_id, RewindResult(error_code=error, error_message=message))
        return
    snapshot = OffsetSnapshot(step.now_ms, moves)
    step.records.append(OffsetSnapshotRecord(group_id, request.name, snapshot))
    step.reply(command.request_id, RewindResult(moves=moves))


def _committed(offsets: CommittedOffsets, group_id: str) -> tuple[OffsetMove, ...]:
    return tuple(
        OffsetMove(
            topic,
            committed.topic_id,
            partition,
            committed.offset,
            committed.leader_epoch,
            committed.metadata,
        )
        for (topic, partition), committed in sorted(offsets.items(group_id), key=lambda at: at[0])
    )


def drop(
    command: Command,
    request: DropSnapshot,
    rewinds: RewindTables,
    group_type_of: GroupTypeOf,
    step: GroupStep,
) -> None:
    """Delete a snapshot."""
    group_id = request.group_id
    rewound = RewindResult()
    if group_type_of(group_id) is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND
        rewound = RewindResult(error_code=error, error_message=f"Group {group_id} not found.")
    elif request.name not in rewinds.snapshots(group_id):
        error, message = ErrorCode.RESOURCE_NOT_FOUND, f"Snapshot {request.name} not found."
        rewound = RewindResult(error_code=error, error_message=message)
    else:
        step.records.append(OffsetSnapshotRecord(group_id, request.name, None))
    step.reply(command.request_id, rewound)
