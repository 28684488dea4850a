"""The durable state of one share partition, and how records change it.

Pure functions; `replay` of the shard consists of them. Called by `shard` and `records`.
"""

import msgspec

from odradek.coordinator.share.state_batches import Batches, combine
from odradek.protocol.types import NO_OFFSET

NO_COUNT = -1
"""Of a delivery complete count: unknown or unchanged (KIP-1226)."""


class ShareState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a share partition: the content of a snapshot, and the number of updates since.

    `state_epoch` changes with a restart, `leader_epoch` with the partition's leader; writes with an
    older epoch are fenced. `batches` are in normal form, none below `start_offset`. Times are Unix
    times in milliseconds.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    create_ms: int = 0
    write_ms: int = 0
    batches: Batches = ()
    update_count: int = 0


class ShareUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change since the snapshot of the same epoch; start offset and count -1 are unchanged."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    batches: Batches = ()


def with_update(state: ShareState, update: ShareUpdate) -> ShareState:
    """The state after an update. A start offset never goes back within a state epoch: an update
    that was decided before another one and arrives after it does not undo that."""
    is_late = NO_OFFSET != update.start_offset < state.start_offset
    has_count = update.delivery_complete_count != NO_COUNT and not is_late
    known = update if has_count else state
    start_offset = max(state.start_offset, update.start_offset)
    return msgspec.structs.replace(
        state,
        leader_epoch=max(state.leader_epoch, update.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=known.delivery_complete_count,
        batches=combine(state.batches, update.batches, start_offset),
        update_count=state.update_count + 1,
    )


def snapshot_of(state: ShareState, now_ms: int) -> ShareState:
    """The state as a new snapshot."""
    return msgspec.structs.replace(
        state, snapshot_epoch=state.snapshot_epoch + 1, write_ms=now_ms, update_count=0
    )
