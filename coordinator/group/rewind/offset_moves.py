"""The moves of a rewind: targets, owners and fences of partitions; and the rewind state at its end.

Pure functions. Called by `live_rewinder`.
"""

from collections.abc import Collection, Iterable

import msgspec

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.modern.records import grouped
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.rewind.records import (
    CommitFence,
    OffsetMove,
    Rewind,
    RewindState,
    key_of,
)
from odradek.coordinator.group.rewind.requests import RewindPosition
from odradek.coordinator.group.rewind.rewind_tables import KNOWN_ID_COUNT_MAX
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import SyncGroupRequest
from odradek.protocol.types import NO_OFFSET, ZERO_UUID, Uuid


def move_to(at: RewindPosition, before: CommittedOffset | None) -> OffsetMove:
    """The move of a partition, bounded by its log."""
    wanted = at.offset
    if wanted is None:
        wanted = at.shift + (NO_OFFSET if before is None else before.offset)
    elif wanted == NO_OFFSET:
        return OffsetMove(at.topic, at.topic_id, at.partition, NO_OFFSET)
    offset = max(at.start_offset, min(at.end_offset, wanted))
    is_exact = offset == at.offset
    return OffsetMove(
        at.topic,
        at.topic_id,
        at.partition,
        offset,
        at.leader_epoch if is_exact else -1,
        at.metadata if is_exact else "",
    )


def with_previous(move: OffsetMove, before: CommittedOffset | None) -> OffsetMove:
    """The move, with the currently committed offset as the previous one."""
    return msgspec.structs.replace(
        move,
        previous=NO_OFFSET if before is None else before.offset,
        previous_leader_epoch=-1 if before is None else before.leader_epoch,
        previous_metadata="" if before is None else before.metadata,
    )


def target_record(group_id: str, move: OffsetMove, now_ms: int) -> OffsetCommitRecord:
    """The record that commits the offset of a move, or removes the committed offset."""
    committed = None
    if move.offset != NO_OFFSET:
        committed = CommittedOffset(
            move.offset, move.leader_epoch, move.metadata, now_ms, topic_id=move.topic_id
        )
    return OffsetCommitRecord(group_id, move.topic, move.partition, committed)


def is_leader_sync(request: SyncGroupRequest, group: ClassicGroup) -> bool:
    """Whether it is the leader's SyncGroup, which ends the rebalance."""
    return (
        group.state is GroupState.COMPLETING_REBALANCE
        and request.generation_id == group.generation_id
        and request.member_id == group.members.leader_id
        and group.member_error(request.member_id, request.group_instance_id) is ErrorCode.NONE
    )


def partitions_of(moves: Iterable[OffsetMove]) -> Partitions:
    """The moved partitions by topic id."""
    return grouped((move.topic_id, move.partition) for move in moves)


def is_targeted(consumers: ConsumerGroup, moves: Iterable[OffsetMove]) -> bool:
    """Whether any of the partitions is in a member's target."""
    partitions = partitions_of(moves)
    return any(
        not partitions.get(topic_id, frozenset()).isdisjoint(indexes)
        for member_id, _ in consumers.members()
        for topic_id, indexes in consumers.target(member_id).items()
    )


def is_assigned(consumers: ConsumerGroup, moves: Collection[OffsetMove]) -> bool:
    """Whether a member owns, will own or has to revoke any of the partitions.

    A classic member that has not sent its SyncGroup yet may still own any partition.
    """
    is_owned = any(consumers.owner(move.topic_id, move.partition) is not None for move in moves)
    return is_owned or bool(consumers.awaiting_sync) or is_targeted(consumers, moves)


def fences_of(
    known: Iterable[CommitFence], consumers: ConsumerGroup, moves: Iterable[OffsetMove], epoch: int
) -> tuple[CommitFence, ...]:
    """The fences above the epoch of some member, and those of this rewind."""
    lowest = min(consumers.current(member_id).member_epoch for member_id, _ in consumers.members())
    keys = {key_of(move) for move in moves}
    kept = [
        fence
        for fence in known
        if fence.epoch > lowest and (fence.topic, fence.partition) not in keys
    ]
    return (*kept, *(CommitFence(topic, partition, epoch) for topic, partition in sorted(keys)))


def after(state: RewindState, done: Rewind) -> RewindState:
    """The state with a complete rewind; the id of the one before is kept."""
    last_id = ZERO_UUID if state.last is None else state.last.rewind_id
    return msgspec.structs.replace(state, last=done, done_ids=_with(state.done_ids, last_id))


def without_pending(state: RewindState) -> RewindState:
    """The state with the pending rewind cancelled."""
    assert state.pending is not None
    given_up_ids = _with(state.given_up_ids, state.pending.rewind_id)
    return msgspec.structs.replace(state, pending=None, given_up_ids=given_up_ids)


def _with(ids: tuple[Uuid, ...], one: Uuid) -> tuple[Uuid, ...]:
    """The newest ids. A rewind without an id is not retried, so it needs no entry."""
    return ids if one == ZERO_UUID else (*ids, one)[-KNOWN_ID_COUNT_MAX:]
