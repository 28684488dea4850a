"""The records of share groups (KIP-932) in `__consumer_offsets`, in Kafka's own formats.

Values are immutable, their mappings are never written to. Called by `records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from odradek.coordinator.group.modern.records import (
    TARGET_EPOCH,
    TARGET_PARTITIONS,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    ModernRecord,
    ModernRecords,
    TargetEpochRecord,
    TargetRecord,
    modern_format,
    partitions_of,
    topic_partitions_values,
)
from odradek.coordinator.group.topics import NO_PARTITIONS, Partitions
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.schema import array, int8, int32, int64, string, struct, uuid
from odradek.protocol.types import Uuid


class NamedPartitions(NamedTuple):
    """Some partitions of a topic, with its name."""

    name: str
    indexes: frozenset[int]


TopicStates: TypeAlias = Mapping[Uuid, NamedPartitions]
"""Partitions by topic; a topic without any is not there."""


class ShareGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member and its subscription. Share groups have no static members."""

    instance_id: ClassVar[None] = None
    rebalance_timeout_ms: ClassVar[int] = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()


class ShareCurrentAssignment(CurrentAssignment, frozen=True):
    """The partitions that a member reads. A new assignment takes one step, so the state is always
    STABLE."""

    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS


class StatePartitions(msgspec.Struct, frozen=True):
    """The partitions whose share state is being initialized or is initialized, and the topics (with
    names) whose states are being deleted. A partition is in at most one of the first two."""

    initializing: TopicStates = {}
    initialized: TopicStates = {}
    deleting: Mapping[Uuid, str] = {}


class ShareMemberRecord(MemberRecord[ShareGroupMember], frozen=True):
    """See MemberRecord."""


class ShareEpochRecord(EpochRecord[GroupEpoch], frozen=True, gc=False):
    """See EpochRecord."""


class ShareTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class ShareTargetRecord(TargetRecord[Partitions], frozen=True):
    """See TargetRecord."""


class ShareCurrentRecord(CurrentRecord[ShareCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class ShareStatePartitionsRecord(ModernRecord, frozen=True, gc=False):
    """The partitions that have a share state."""

    value: StatePartitions | None


SHARE_RECORDS: Final = ModernRecords(
    ShareEpochRecord,
    ShareTargetEpochRecord,
    ShareMemberRecord,
    ShareTargetRecord,
    ShareCurrentRecord,
    ShareStatePartitionsRecord,
)


# -- formats --------------------------------------------------------------------------------------


@struct
class _MemberValue:
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    topic_names: list[str] = array(string)


@struct
class _EpochValue:
    epoch: int = int32()
    metadata_hash: int = int64()


@struct
class _CurrentValue:
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned: list[TopicIdPartitions] = array(TopicIdPartitions)


@struct
class _NamedPartitionsValue:
    topic_id: Uuid = uuid()
    name: str = string()
    partitions: list[int] = array(int32)


@struct
class _TopicValue:
    topic_id: Uuid = uuid()
    name: str = string()


@struct
class _StatesValue:
    initializing: list[_NamedPartitionsValue] = array(_NamedPartitionsValue)
    initialized: list[_NamedPartitionsValue] = array(_NamedPartitionsValue)
    deleting: list[_TopicValue] = array(_TopicValue)


def _current_value(current: ShareCurrentAssignment) -> CurrentAssignment:
    return CurrentAssignment(
        current.member_epoch,
        current.previous_member_epoch,
        assigned=topic_partitions_values(current.assigned),
    )


def _current(read: _CurrentValue) -> ShareCurrentAssignment:
    """The state is ignored: members of share groups have nothing to revoke."""
    return ShareCurrentAssignment(
        read.member_epoch, read.previous_member_epoch, assigned=partitions_of(read.assigned)
    )


def _states_value(states: StatePartitions) -> _StatesValue:
    return _StatesValue(
        initializing=_named_values(states.initializing),
        initialized=_named_values(states.initialized),
        deleting=[
            _TopicValue(topic_id=topic_id, name=name) for topic_id, name in states.deleting.items()
        ],
    )


def _named_values(topics: TopicStates) -> list[_NamedPartitionsValue]:
    return [
        _NamedPartitionsValue(topic_id=topic_id, name=name, partitions=sorted(indexes))
        for topic_id, (name, indexes) in topics.items()
    ]


def _states(read: _StatesValue) -> StatePartitions:
    return StatePartitions(
        _named(read.initializing),
        _named(read.initialized),
        {topic.topic_id: topic.name for topic in read.deleting},
    )


def _named(values: list[_NamedPartitionsValue]) -> TopicStates:
    return {
        value.topic_id: NamedPartitions(value.name, frozenset(value.partitions)) for value in values
    }


SHARE_FORMATS: Final = (
    modern_format(
        10, ShareMemberRecord, "ShareGroupMemberMetadataValue", _MemberValue, ShareGroupMember
    ),
    modern_format(11, ShareEpochRecord, "ShareGroupMetadataValue", _EpochValue, GroupEpoch),
    modern_format(
        12, ShareTargetEpochRecord, "ShareGroupTargetAssignmentMetadataValue", *TARGET_EPOCH
    ),
    modern_format(
        13, ShareTargetRecord, "ShareGroupTargetAssignmentMemberValue", *TARGET_PARTITIONS
    ),
    modern_format(
        14,
        ShareCurrentRecord,
        "ShareGroupCurrentMemberAssignmentValue",
        _CurrentValue,
        _current,
        _current_value,
    ),
    modern_format(
        15,
        ShareStatePartitionsRecord,
        "ShareGroupStatePartitionMetadataValue",
        _StatesValue,
        _states,
        _states_value,
    ),
)
"""Kafka removed type 9 (the subscribed topics) before 4.1. It decodes to None."""
