"""What the records of all newer types of groups have in common: epochs, members and assignments.

Each type of group (consumer, share, streams) has its own class for each of these records, with its
own record type in the log; a shard replays a record by its class. Values are immutable, their
mappings are never written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from odradek.coordinator.group.topics import Partitions
from odradek.coordinator.record_serde import Convert, RecordFormat, SchemaValue
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.schema import array, int32, int64, string, struct
from odradek.protocol.types import Uuid

M = TypeVar("M")
T = TypeVar("T")
C = TypeVar("C")
E = TypeVar("E")
K = TypeVar("K", str, bytes)

UNKNOWN_EPOCH: Final = -1
"""Of a partition or task whose record has no epoch: older releases wrote none."""


class MemberState(IntEnum):
    """The state of a member's reconciliation, with the numbers of consumer group records."""

    STABLE = 0
    UNREVOKED = 1
    """The member has to revoke: UNREVOKED_PARTITIONS, UNREVOKED_TASKS."""
    UNRELEASED = 2
    """Others have not revoked yet: UNRELEASED_PARTITIONS, UNRELEASED_TASKS."""
    UNKNOWN = 127
    """Written by a newer release."""


class GroupEpoch(msgspec.Struct, frozen=True, gc=False):
    """A group's epoch, and the hash of its topics when the epoch started (0: not known)."""

    epoch: int
    metadata_hash: int = 0


class TargetEpoch(msgspec.Struct, frozen=True, gc=False):
    """The group epoch that the target assignment was made for, and when."""

    epoch: int
    assigned_at_ms: int = 0


class CurrentAssignment(msgspec.Struct, frozen=True):
    """What a member may own in its epoch, and what it still has to revoke.

    The types of groups declare the last two fields: partitions or tasks, with or without epochs.
    """

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Any = None
    pending_revocation: Any = None


class ModernRecord(msgspec.Struct, frozen=True):
    """A record of a newer group. Its last field is the value; None removes the key."""

    group_id: str


class EpochRecord(ModernRecord, Generic[E], frozen=True, gc=False):
    """A group's epoch; without a value the group is deleted."""

    value: E | None


class TargetEpochRecord(ModernRecord, frozen=True, gc=False):
    """The epoch of the target assignment, written after the targets that changed."""

    value: TargetEpoch | None


class MemberRecord(ModernRecord, Generic[M], frozen=True):
    """A member; without a value it has left."""

    member_id: str
    value: M | None


class TargetRecord(ModernRecord, Generic[T], frozen=True):
    """The target assignment of a member."""

    member_id: str
    value: T | None


class CurrentRecord(ModernRecord, Generic[C], frozen=True):
    """The current assignment of a member."""

    member_id: str
    value: C | None


class ModernRecords(NamedTuple):
    """The record classes of one type of group."""

    epoch: type[EpochRecord[Any]]
    target_epoch: type[TargetEpochRecord]
    member: type[MemberRecord[Any]]
    target: type[TargetRecord[Any]]
    current: type[CurrentRecord[Any]]
    own: type[ModernRecord]
    """A kind of record that only this type of group has."""


# -- formats --------------------------------------------------------------------------------------


@struct
class _GroupKey:
    group_id: str = string()


@struct
class _MemberKey:
    group_id: str = string()
    member_id: str = string()


@struct
class _TargetEpochValue:
    epoch: int = int32()
    assigned_at_ms: int = int64(tag=0)


@struct
class _PartitionsValue:
    topic_partitions: list[TopicIdPartitions] = array(TopicIdPartitions)


class _WrittenTopic(msgspec.Struct, gc=False):
    """What the encoder reads in place of a TopicIdPartitions; it is made faster."""

    topic_id: Uuid
    partitions: list[int]


class _WrittenPartitions(msgspec.Struct, gc=False):
    topic_partitions: list[_WrittenTopic]


def topic_partitions_values(partitions: Partitions) -> list[_WrittenTopic]:
    """Partitions as they are written."""
    return [_WrittenTopic(topic_id, sorted(indexes)) for topic_id, indexes in partitions.items()]


def partitions_of(values: Iterable[TopicIdPartitions]) -> Partitions:
    """Partitions as they were read."""
    return {value.topic_id: frozenset(value.partitions) for value in values}


def flat(*assignments: Mapping[K, Iterable[int]]) -> Iterator[tuple[K, int]]:
    """Partitions as (topic id, partition), tasks as (subtopology, partition)."""
    for assigned in assignments:
        for key, indexes in assigned.items():
            for index in indexes:
                yield key, index


def grouped(partitions: Iterable[tuple[K, int]]) -> dict[K, frozenset[int]]:
    """The inverse of `flat`, in the order of topics or subtopologies."""
    found: dict[K, set[int]] = {}
    for key, index in partitions:
        found.setdefault(key, set()).add(index)
    return {key: frozenset(found[key]) for key in sorted(found)}


def epochs_of(indexes: Sequence[int], epochs: Sequence[int] | None) -> Mapping[int, int]:
    """Partitions or tasks with the member epochs in which they were given to the member."""
    if epochs is None:
        return dict.fromkeys(indexes, UNKNOWN_EPOCH)
    return dict(zip(indexes, epochs, strict=True))


def modern_format(
    number: int,
    record: type[msgspec.Struct],
    name: str,
    declared: type,
    make: type[msgspec.Struct] | Convert,
    to_struct: Convert | None = None,
) -> RecordFormat:
    """The format of a record whose key is a member or a group. See RecordFormat, SchemaValue."""
    key = _MemberKey if "member_id" in record.__struct_fields__ else _GroupKey
    return RecordFormat(number, record, key, SchemaValue(name, declared, make, to_struct=to_struct))


TARGET_EPOCH: Final = (_TargetEpochValue, TargetEpoch)
"""How all types write the epoch of the target assignment."""
TARGET_PARTITIONS: Final = (
    _PartitionsValue,
    lambda read: partitions_of(read.topic_partitions),
    lambda target: _WrittenPartitions(topic_partitions_values(target)),
)
"""How partitions are written as the target of a member."""
