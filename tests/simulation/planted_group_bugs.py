"""Coordinators of the consumer protocol (KIP-848) that are wrong, each in one thing."""

import msgspec

from coordinator.group import consumer_records, heartbeats, reconciliation
from coordinator.group.assigning import ConsumerStep
from coordinator.group.consumer import ConsumerGroup
from coordinator.group.consumer_records import ConsumerMember, CurrentAssignment, Partitions
from coordinator.runtime import Batch, ShardRuntime
from tests.simulation.planted_cluster_bugs import PlantedBug
from tests.simulation.trouble import CONSUMERS

_advance = heartbeats.advance
_encode_current = consumer_records._encode_current
_take_batches = ShardRuntime.take_batches


def _keeps_epochs_to_itself(
    group: ConsumerGroup,
    found: heartbeats.Found,
    member: ConsumerMember,
    goal: tuple[int, Partitions],
    owned: Partitions | None,
    step: ConsumerStep,
) -> CurrentAssignment:
    """Writes a member's step only if partitions change with it."""
    count = len(step.records)
    current = _advance(group, found, member, goal, owned, step)
    if current.assigned == found.current.assigned:
        del step.records[count:]
    return current


def _forgets_what_is_to_be_given_up(current: CurrentAssignment) -> bytes:
    return _encode_current(msgspec.structs.replace(current, pending_revocation={}))


def _writes_behind_what_was_refused(self: ShardRuntime[object]) -> list[Batch[object]]:
    batches = _take_batches(self)
    for batch in batches:
        batch.expected_offset = -1
    return batches


PLANTED_IN_GROUPS: dict[str, PlantedBug] = {
    "a partition is assigned before its owner has given it up": PlantedBug(
        reconciliation, "_owns_any", lambda *_: False, CONSUMERS, "still reads"
    ),
    "a partition is assigned while it has an owner": PlantedBug(
        ConsumerGroup, "owner", lambda *_: None, CONSUMERS, "belongs to|still reads"
    ),
    "a member's epoch is not written": PlantedBug(
        heartbeats, "advance", _keeps_epochs_to_itself, CONSUMERS, "before that is committed"
    ),
    "what a member has to give up is not written": PlantedBug(
        consumer_records,
        "_encode_current",
        _forgets_what_is_to_be_given_up,
        CONSUMERS,
        "belongs to|still reads",
    ),
    # Ours, found by the simulation.
    "a batch is written though the one before it was refused": PlantedBug(
        ShardRuntime,
        "take_batches",
        _writes_behind_what_was_refused,
        CONSUMERS,
        "belongs to|not whole|still reads",
        80,
    ),
}
