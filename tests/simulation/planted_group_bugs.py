"""Coordinators of consumer and streams groups (KIP-848, KIP-1071) with one bug each."""

import msgspec

from odradek.coordinator.group.consumer import heartbeats
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.reconciliation import PartitionUnit
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerGroupMember,
)
from odradek.coordinator.group.modern import heartbeats as modern_heartbeats
from odradek.coordinator.group.modern.reconciliation import AssignmentUnit, IsFree, reconcile
from odradek.coordinator.group.records import OwnRecord
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.reconciliation import TaskUnit
from odradek.coordinator.group.streams.records import (
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    TasksTuple,
    TasksTupleWithEpochs,
)
from odradek.coordinator.group.topics import Partitions
from odradek.coordinator.runtime import CoordinatorBatch, ShardRuntime
from tests.simulation.planted_cluster_bugs import PlantedBug
from tests.simulation.trouble import CONSUMERS, STALLED, STREAMS, UNSTEADY_STREAMS

_maybe_reconcile = heartbeats.maybe_reconcile
_encode = GroupShard.encode
_take_batches = ShardRuntime.take_batches


def _keeps_epochs_to_itself(
    group: ConsumerGroup,
    resolved: heartbeats.Resolved,
    member: ConsumerGroupMember,
    goal: tuple[int, Partitions],
    owned: Partitions | None,
    step: GroupStep,
) -> ConsumerCurrentAssignment:
    """Writes a member's epoch only together with a change of its partitions."""
    count = len(step.records)
    current = _maybe_reconcile(group, resolved, member, goal, owned, step)
    if current.assigned == resolved.current.assigned:
        del step.records[count:]
    return current


def _forgets_what_is_to_be_given_up(
    record: OwnRecord,
) -> tuple[bytes, bytes | None]:
    if (
        isinstance(record, ConsumerCurrentRecord | StreamsCurrentRecord)
        and record.value is not None
    ):
        nothing = type(record.value)().pending_revocation
        value = msgspec.structs.replace(record.value, pending_revocation=nothing)
        return _encode(msgspec.structs.replace(record, value=value))
    return _encode(record)


def _goes_back_to_the_epoch_before(
    current: StreamsCurrentAssignment,
    unit: AssignmentUnit[TasksTuple, TasksTupleWithEpochs],
    *,
    target_epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    is_free: IsFree,
) -> StreamsCurrentAssignment:
    """Treats a member that missed a response like one that has not reached its epoch."""
    following = reconcile(
        current, unit, target_epoch=target_epoch, target=target, owned=owned, is_free=is_free
    )
    if following.member_epoch == current.member_epoch and following is not current:
        return msgspec.structs.replace(following, member_epoch=current.previous_member_epoch)
    return following


def _writes_behind_what_was_refused(self: ShardRuntime[object]) -> list[CoordinatorBatch[object]]:
    batches = _take_batches(self)
    for batch in batches:
        batch.expected_offset = -1
    return batches


PLANTED_IN_GROUPS: dict[str, PlantedBug] = {
    "a partition is assigned before its owner has given it up": PlantedBug(
        PartitionUnit, "owns_any", lambda *_: False, CONSUMERS, "still reads"
    ),
    "a partition is assigned while it has an owner": PlantedBug(
        ConsumerGroup, "owner", lambda *_: None, CONSUMERS, "belongs to|still reads"
    ),
    "a member's epoch is not written": PlantedBug(
        heartbeats,
        "maybe_reconcile",
        _keeps_epochs_to_itself,
        CONSUMERS,
        "before that is committed",
    ),
    "what a member has to give up is not written": PlantedBug(
        GroupShard,
        "encode",
        staticmethod(_forgets_what_is_to_be_given_up),
        CONSUMERS,
        "belongs to|still reads",
    ),
    "a task is given before its owner has given it up": PlantedBug(
        StreamsGroup, "runner", lambda *_: None, STREAMS, "belongs to|still reads"
    ),
    "a process gets a task in two roles": PlantedBug(
        StreamsGroup, "held_count", lambda *_: 0, STREAMS, "belongs to|still reads"
    ),
    "nobody has to give up tasks": PlantedBug(
        TaskUnit, "owns_any", lambda *_: False, STREAMS, "belongs to|still reads"
    ),
    "what a thread has to give up is not written": PlantedBug(
        GroupShard,
        "encode",
        staticmethod(_forgets_what_is_to_be_given_up),
        UNSTEADY_STREAMS,
        "belongs to|still reads",
    ),
    "the epoch of a thread goes back": PlantedBug(
        modern_heartbeats,
        "reconcile",
        _goes_back_to_the_epoch_before,
        STREAMS,
        "goes back|is told epoch",
    ),
    # This one was ours, found by the simulation.
    "a batch is written though the one before it was refused": PlantedBug(
        ShardRuntime,
        "take_batches",
        _writes_behind_what_was_refused,
        STALLED,
        "belongs to|not whole|still reads",
        seed=37,
    ),
}
