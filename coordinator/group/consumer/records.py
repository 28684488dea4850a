"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own formats.

Values are immutable, their mappings are never written to. Called by `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import Final, TypeAlias

import msgspec

from odradek.coordinator.group.modern.records import (
    TARGET_EPOCH,
    TARGET_PARTITIONS,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    ModernRecord,
    ModernRecords,
    TargetEpochRecord,
    TargetRecord,
    epochs_of,
    modern_format,
)
from odradek.coordinator.group.topics import Partitions
from odradek.coordinator.record_serde import RecordFormat, SchemaValue
from odradek.protocol.messages.groups import JoinGroupRequestProtocol
from odradek.protocol.schema import array, int8, int32, int64, optional, string, struct, uuid
from odradek.protocol.types import Uuid

PartitionEpochs: TypeAlias = Mapping[Uuid, Mapping[int, int]]
"""Partitions by topic, each with the member epoch in which it was assigned to the member."""

NO_PARTITION_EPOCHS: Final[PartitionEpochs] = {}


class ClassicProtocol(msgspec.Struct, frozen=True, gc=False):
    """An assignor that a classic member supports, with its subscription bytes for it."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(msgspec.Struct, frozen=True, gc=False):
    """The session and the protocols of a member that speaks the classic protocol, the preferred
    protocol first."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]

    @classmethod
    def of(
        cls, session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]
    ) -> ClassicMemberMetadata:
        """Of names and metadata."""
        return cls(session_timeout_ms, tuple(starmap(ClassicProtocol, protocols)))

    def by_name(self) -> dict[str, bytes]:
        """The subscription bytes by the assignor's name."""
        return {protocol.name: protocol.metadata for protocol in self.protocols}


class ConsumerGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member and its subscription. `classic` is None if it speaks the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None


class ConsumerCurrentAssignment(CurrentAssignment, frozen=True):
    """The partitions that a member may own, and those that it still has to revoke."""

    assigned: PartitionEpochs = NO_PARTITION_EPOCHS
    pending_revocation: PartitionEpochs = NO_PARTITION_EPOCHS


class ResolvedRegex(msgspec.Struct, frozen=True, gc=False):
    """The topics that matched an expression when the metadata was at `version`."""

    topic_names: tuple[str, ...]
    version: int = 0
    timestamp_ms: int = 0


class ConsumerEpochRecord(EpochRecord[GroupEpoch], frozen=True, gc=False):
    """See EpochRecord."""


class ConsumerMemberRecord(MemberRecord[ConsumerGroupMember], frozen=True):
    """See MemberRecord."""


class ConsumerTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class ConsumerTargetRecord(TargetRecord[Partitions], frozen=True):
    """See TargetRecord."""


class ConsumerCurrentRecord(CurrentRecord[ConsumerCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class ConsumerRegexRecord(ModernRecord, frozen=True, gc=False):
    """The topics that match an expression."""

    regex: str
    value: ResolvedRegex | None


CONSUMER_RECORDS: Final = ModernRecords(
    ConsumerEpochRecord,
    ConsumerTargetEpochRecord,
    ConsumerMemberRecord,
    ConsumerTargetRecord,
    ConsumerCurrentRecord,
    ConsumerRegexRecord,
)


# -- formats --------------------------------------------------------------------------------------


@struct
class _EpochValue:
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


@struct
class _ClassicMember:
    session_timeout_ms: int = int32()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)


@struct
class _MemberValue:
    instance_id: str | None = string(nullable_since=0)
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    topic_names: list[str] = array(string)
    topic_regex: str | None = string(nullable_since=0)
    rebalance_timeout_ms: int = int32()
    server_assignor: str | None = string(nullable_since=0)
    classic: _ClassicMember | None = optional(_ClassicMember, nullable_since=0, tag=0)


@struct
class _TopicEpochs:
    topic_id: Uuid = uuid()
    partitions: list[int] = array(int32)
    epochs: list[int] | None = array(int32, nullable_since=0, default=None, tag=0)


@struct
class _CurrentValue:
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned: list[_TopicEpochs] = array(_TopicEpochs)
    pending_revocation: list[_TopicEpochs] = array(_TopicEpochs)


@struct
class _RegexKey:
    group_id: str = string()
    regex: str = string()


@struct
class _RegexValue:
    topic_names: list[str] = array(string)
    version: int = int64()
    timestamp_ms: int = int64()


class _WrittenTopic(msgspec.Struct, gc=False):
    """What the encoder reads in place of a _TopicEpochs; it is made faster."""

    topic_id: Uuid
    partitions: list[int]
    epochs: list[int]


def _current_value(current: ConsumerCurrentAssignment) -> CurrentAssignment:
    return CurrentAssignment(
        current.member_epoch,
        current.previous_member_epoch,
        current.state,
        _topic_epochs(current.assigned),
        _topic_epochs(current.pending_revocation),
    )


def _topic_epochs(partitions: PartitionEpochs) -> list[_WrittenTopic]:
    return [
        _WrittenTopic(
            topic_id,
            (in_order := sorted(epochs)),
            [epochs[index] for index in in_order],
        )
        for topic_id, epochs in partitions.items()
    ]


def _current(read: _CurrentValue) -> ConsumerCurrentAssignment:
    return ConsumerCurrentAssignment(
        read.member_epoch,
        read.previous_member_epoch,
        _STATES.get(read.state, MemberState.UNKNOWN),
        _partition_epochs(read.assigned),
        _partition_epochs(read.pending_revocation),
    )


def _partition_epochs(topics: list[_TopicEpochs]) -> PartitionEpochs:
    return {topic.topic_id: epochs_of(topic.partitions, topic.epochs) for topic in topics}


_STATES: Final = {int(state): state for state in MemberState}

CONSUMER_FORMATS: Final = (
    modern_format(3, ConsumerEpochRecord, "ConsumerGroupMetadataValue", _EpochValue, GroupEpoch),
    modern_format(
        5,
        ConsumerMemberRecord,
        "ConsumerGroupMemberMetadataValue",
        _MemberValue,
        ConsumerGroupMember,
    ),
    modern_format(
        6, ConsumerTargetEpochRecord, "ConsumerGroupTargetAssignmentMetadataValue", *TARGET_EPOCH
    ),
    modern_format(
        7, ConsumerTargetRecord, "ConsumerGroupTargetAssignmentMemberValue", *TARGET_PARTITIONS
    ),
    modern_format(
        8,
        ConsumerCurrentRecord,
        "ConsumerGroupCurrentMemberAssignmentValue",
        _CurrentValue,
        _current,
        _current_value,
    ),
    RecordFormat(
        16,
        ConsumerRegexRecord,
        _RegexKey,
        SchemaValue("ConsumerGroupRegularExpressionValue", _RegexValue, ResolvedRegex),
    ),
)
"""Type 4 (the subscribed topics themselves) has not been written since Kafka 4.1 and decodes to
None."""
