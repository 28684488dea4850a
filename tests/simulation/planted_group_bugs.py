"""Coordinators of consumer and streams groups (KIP-848, 1071) that are wrong, each in one thing."""

import msgspec

from odradek.coordinator.group.consumer import heartbeats, reconciliation
from odradek.coordinator.group.consumer import records as consumer_records
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerGroupMember,
)
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.streams import heartbeats as streams_heartbeats
from odradek.coordinator.group.streams import reconciliation as streams_reconciliation
from odradek.coordinator.group.streams import records as streams_records
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.reconciliation import IsFree, reconcile
from odradek.coordinator.group.streams.records import (
    NO_TASKS_WITH_EPOCHS,
    StreamsCurrentAssignment,
    TasksTuple,
)
from odradek.coordinator.group.topics import (
    Partitions,
)
from odradek.coordinator.runtime import CoordinatorBatch, ShardRuntime
from tests.simulation.planted_cluster_bugs import PlantedBug
from tests.simulation.trouble import CONSUMERS, STALLED, STREAMS, UNSTEADY_STREAMS

_advance = heartbeats.maybe_reconcile
_encode_current = consumer_records._encode_current
_encode_streams_current = streams_records._encode_current
_take_batches = ShardRuntime.take_batches


def _keeps_epochs_to_itself(
    group: ConsumerGroup,
    found: heartbeats.ResolvedMember,
    member: ConsumerGroupMember,
    goal: tuple[int, Partitions],
    owned: Partitions | None,
    step: GroupStep,
) -> ConsumerCurrentAssignment:
    """Writes a member's step only if partitions change with it."""
    count = len(step.records)
    current = _advance(group, found, member, goal, owned, step)
    if current.assigned == found.current.assigned:
        del step.records[count:]
    return current


def _forgets_what_is_to_be_given_up(current: ConsumerCurrentAssignment) -> bytes:
    return _encode_current(msgspec.structs.replace(current, pending_revocation={}))


def _forgets_which_tasks_are_to_be_given_up(current: StreamsCurrentAssignment) -> bytes:
    return _encode_streams_current(
        msgspec.structs.replace(current, pending_revocation=NO_TASKS_WITH_EPOCHS)
    )


def _goes_back_to_the_epoch_before(
    current: StreamsCurrentAssignment,
    *,
    target_epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    is_free: IsFree,
) -> StreamsCurrentAssignment:
    """Takes a member that has missed an answer for one that has still to hear of its epoch."""
    following = reconcile(
        current, target_epoch=target_epoch, target=target, owned=owned, is_free=is_free
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
        reconciliation, "_owns_revoked", lambda *_: False, CONSUMERS, "still reads"
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
        consumer_records,
        "_encode_current",
        _forgets_what_is_to_be_given_up,
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
        streams_reconciliation, "_owns_revoked", lambda *_: False, STREAMS, "belongs to|still reads"
    ),
    "what a thread has to give up is not written": PlantedBug(
        streams_records,
        "_encode_current",
        _forgets_which_tasks_are_to_be_given_up,
        UNSTEADY_STREAMS,
        "belongs to|still reads",
    ),
    "the epoch of a thread goes back": PlantedBug(
        streams_heartbeats,
        "reconcile",
        _goes_back_to_the_epoch_before,
        STREAMS,
        "goes back|is told epoch",
    ),
    # Ours, found by the simulation.
    "a batch is written though the one before it was refused": PlantedBug(
        ShardRuntime,
        "take_batches",
        _writes_behind_what_was_refused,
        STALLED,
        "belongs to|not whole|still reads",
    ),
}
