"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own formats.

A key begins with an int16 that tells its type and is never flexible; a value begins with version 0
and is. A null value removes the key.

    key 3    group                    epoch INT32, tag 0: hash of the subscribed topics INT64
    key 5    group, member            instance, rack NULLABLE_STRING, client id, client host STRING,
             topic names ARRAY, regular expression NULLABLE_STRING, rebalance timeout INT32,
             assignor NULLABLE_STRING, tag 0: what a classic member is besides
    key 6    group                    epoch of the target assignment INT32, tag 0: when INT64
    key 7    group, member            target: ARRAY of topic id UUID, partitions ARRAY of INT32
    key 8    group, member            epoch, previous epoch INT32, state INT8, assigned and pending
             revocation: ARRAY of topic id, partitions, tag 0: since which epoch each
    key 16   group, expression        topic names ARRAY, version INT64, timestamp INT64

Type 4 (the subscribed topics themselves) has not been written since Kafka 4.1 and decodes to None.
Values are immutable, their mappings are never written to. Called by `records`.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.modern.records import (
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    ModernRecords,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.group.record_fields import (
    INT16,
    INT32,
    NO_TAGS,
    VALUE_VERSION,
    FieldReader,
    compact_bytes,
    compact_int32s,
    compact_string,
    compact_strings,
    int64_tag,
    string,
    tag,
    topic_partitions,
    uvarint,
)
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.types import Uuid

V = TypeVar("V")

PartitionEpochs: TypeAlias = Mapping[Uuid, Mapping[int, int]]
"""Partitions by topic, each with the member's epoch when it was given to it."""

NO_PARTITION_EPOCHS: Final[PartitionEpochs] = {}
UNKNOWN_EPOCH: Final = -1
"""Of a partition whose record does not tell since when: older releases wrote no such thing."""

_GROUP_KEY: Final = 3
_MEMBER_KEY: Final = 5
_TARGET_EPOCH_KEY: Final = 6
_TARGET_KEY: Final = 7
_CURRENT_KEY: Final = 8
_REGEX_KEY: Final = 16
_EPOCHS_TAG: Final = 0


class ClassicMemberMetadata(msgspec.Struct, frozen=True, gc=False):
    """What a member is that speaks the classic protocol: its session, and its subscription bytes
    by assignor, the favourite first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member and what it wants. `classic` is None if it speaks the consumer protocol."""

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
    """The partitions that a member may own, and those it still has to give up."""

    assigned: PartitionEpochs = NO_PARTITION_EPOCHS
    pending_revocation: PartitionEpochs = NO_PARTITION_EPOCHS


class ResolvedRegex(msgspec.Struct, frozen=True, gc=False):
    """The topics that an expression stood for when the metadata were at `version`."""

    topic_names: tuple[str, ...]
    version: int = 0
    timestamp_ms: int = 0


class ConsumerEpochRecord(EpochRecord, frozen=True, gc=False):
    """See EpochRecord."""

    value: GroupEpoch | None


class ConsumerMemberRecord(MemberRecord[ConsumerGroupMember], frozen=True):
    """See MemberRecord."""


class ConsumerTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class ConsumerTargetRecord(TargetRecord[Partitions], frozen=True):
    """See TargetRecord."""


class ConsumerCurrentRecord(CurrentRecord[ConsumerCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class ConsumerRegexRecord(msgspec.Struct, frozen=True, gc=False):
    """The topics that an expression stands for."""

    group_id: str
    regex: str
    value: ResolvedRegex | None


CONSUMER_RECORDS: Final = ModernRecords(
    ConsumerEpochRecord,
    ConsumerTargetEpochRecord,
    ConsumerMemberRecord,
    ConsumerTargetRecord,
    ConsumerCurrentRecord,
)

ConsumerGroupRecord: TypeAlias = (
    ConsumerEpochRecord
    | ConsumerMemberRecord
    | ConsumerTargetEpochRecord
    | ConsumerTargetRecord
    | ConsumerCurrentRecord
    | ConsumerRegexRecord
)


# -- writing --------------------------------------------------------------------------------------


def encode_consumer_record(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if a text is too long for its place."""
    group_id = string(record.group_id)
    value: bytes | None
    match record:
        case ConsumerCurrentRecord():
            key = INT16.pack(_CURRENT_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_current(record.value)
        case ConsumerEpochRecord():
            key = INT16.pack(_GROUP_KEY) + group_id
            value = None if record.value is None else _encode_epoch(record.value)
        case ConsumerMemberRecord():
            key = INT16.pack(_MEMBER_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_member(record.value)
        case ConsumerTargetEpochRecord():
            key = INT16.pack(_TARGET_EPOCH_KEY) + group_id
            value = None if record.value is None else _encode_target_epoch(record.value)
        case ConsumerTargetRecord():
            key = INT16.pack(_TARGET_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_target(record.value)
        case ConsumerRegexRecord():
            key = INT16.pack(_REGEX_KEY) + group_id + string(record.regex)
            value = None if record.value is None else _encode_resolved(record.value)
    return key, value


def _encode_epoch(epoch: GroupEpoch) -> bytes:
    return VALUE_VERSION + INT32.pack(epoch.epoch) + int64_tag(epoch.metadata_hash)


def _encode_target_epoch(epoch: TargetEpoch) -> bytes:
    return VALUE_VERSION + INT32.pack(epoch.epoch) + int64_tag(epoch.assigned_at_ms)


def _encode_member(member: ConsumerGroupMember) -> bytes:
    tags = NO_TAGS
    if member.classic is not None:
        # A nullable structure is led by a byte that says whether it is there.
        parts = [b"\x01", INT32.pack(member.classic.session_timeout_ms)]
        parts.append(uvarint(len(member.classic.protocols) + 1))
        for name, metadata in member.classic.protocols:
            parts += (compact_string(name), compact_bytes(metadata), NO_TAGS)
        parts.append(NO_TAGS)
        tags = tag(0, b"".join(parts))
    return b"".join(
        (
            VALUE_VERSION,
            compact_string(member.instance_id),
            compact_string(member.rack_id),
            compact_string(member.client_id),
            compact_string(member.client_host),
            compact_strings(member.topic_names),
            compact_string(member.topic_regex),
            INT32.pack(member.rebalance_timeout_ms),
            compact_string(member.server_assignor),
            tags,
        )
    )


def _encode_target(target: Partitions) -> bytes:
    return VALUE_VERSION + topic_partitions(target) + NO_TAGS


def _encode_current(current: ConsumerCurrentAssignment) -> bytes:
    parts = [
        VALUE_VERSION,
        struct.pack(
            ">iib", current.member_epoch, current.previous_member_epoch, int(current.state)
        ),
    ]
    for topics in (current.assigned, current.pending_revocation):
        parts.append(uvarint(len(topics) + 1))
        for topic_id, epochs in topics.items():
            in_order = sorted(epochs)
            since = compact_int32s([epochs[index] for index in in_order])
            parts += (topic_id, compact_int32s(in_order), tag(_EPOCHS_TAG, since))
    parts.append(NO_TAGS)
    return b"".join(parts)


def _encode_resolved(resolved: ResolvedRegex) -> bytes:
    stamps = struct.pack(">qq", resolved.version, resolved.timestamp_ms)
    return VALUE_VERSION + compact_strings(resolved.topic_names) + stamps + NO_TAGS


# -- reading --------------------------------------------------------------------------------------


def decode_consumer_record(
    kind: int, key: FieldReader, value: bytes | None
) -> ConsumerGroupRecord | None:
    """The inverse; `key` stands behind the type. None for types that are not told of here.

    Bytes that end too early raise struct.error or IndexError, which `records` makes ProtocolErrors.
    """
    reader = None if value is None else FieldReader(value)
    if reader is not None and kind in CONSUMER_RECORD_KINDS:
        reader.version(0, CONSUMER_RECORD_KINDS[kind])
        reader.is_flexible = True
    match kind:
        case 3:
            return ConsumerEpochRecord(key.string(), _read(reader, _decode_epoch))
        case 5:
            return ConsumerMemberRecord(key.string(), key.string(), _read(reader, _decode_member))
        case 6:
            return ConsumerTargetEpochRecord(key.string(), _read(reader, _decode_target_epoch))
        case 7:
            target = _read(reader, FieldReader.topic_partitions)
            return ConsumerTargetRecord(key.string(), key.string(), target)
        case 8:
            return ConsumerCurrentRecord(key.string(), key.string(), _read(reader, _decode_current))
        case 16:
            return ConsumerRegexRecord(key.string(), key.string(), _read(reader, _decode_resolved))
    return None


def _read(reader: FieldReader | None, decode: Callable[[FieldReader], V]) -> V | None:
    return None if reader is None else decode(reader)


CONSUMER_RECORD_KINDS: Final[Mapping[int, str]] = {
    _GROUP_KEY: "ConsumerGroupMetadataValue",
    _MEMBER_KEY: "ConsumerGroupMemberMetadataValue",
    _TARGET_EPOCH_KEY: "ConsumerGroupTargetAssignmentMetadataValue",
    _TARGET_KEY: "ConsumerGroupTargetAssignmentMemberValue",
    _CURRENT_KEY: "ConsumerGroupCurrentMemberAssignmentValue",
    _REGEX_KEY: "ConsumerGroupRegularExpressionValue",
}


def _decode_epoch(reader: FieldReader) -> GroupEpoch:
    return GroupEpoch(reader.int32(), reader.int64_tag())


def _decode_target_epoch(reader: FieldReader) -> TargetEpoch:
    return TargetEpoch(reader.int32(), reader.int64_tag())


def _decode_member(reader: FieldReader) -> ConsumerGroupMember:
    instance_id = reader.nullable_string()
    rack_id = reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topic_names = reader.strings()
    topic_regex = reader.nullable_string()
    rebalance_timeout_ms = reader.int32()
    server_assignor = reader.nullable_string()
    classic = reader.tags().get(0)
    return ConsumerGroupMember(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topic_names=topic_names,
        topic_regex=topic_regex,
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=server_assignor,
        classic=None if classic is None else _decode_classic(classic),
    )


def _decode_classic(octets: bytes) -> ClassicMemberMetadata | None:
    reader = FieldReader(octets)
    reader.is_flexible = True
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.octets()))
        reader.tags()
    return ClassicMemberMetadata(session_timeout_ms, tuple(protocols))


def _decode_current(reader: FieldReader) -> ConsumerCurrentAssignment:
    member_epoch, previous_member_epoch = reader.int32(), reader.int32()
    state = reader.int8()
    known = state in MemberState.__members__.values()
    return ConsumerCurrentAssignment(
        member_epoch,
        previous_member_epoch,
        MemberState(state) if known else MemberState.UNKNOWN,
        _decode_partition_epochs(reader),
        _decode_partition_epochs(reader),
    )


def _decode_partition_epochs(reader: FieldReader) -> PartitionEpochs:
    topics: dict[Uuid, dict[int, int]] = {}
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        partitions = reader.int32s()
        since: tuple[int, ...] = (UNKNOWN_EPOCH,) * len(partitions)
        octets = reader.tags().get(_EPOCHS_TAG)
        if octets is not None:
            epochs = FieldReader(octets)
            epochs.is_flexible = True
            since = epochs.int32s()
        topics[topic_id] = dict(zip(partitions, since, strict=True))
    return topics


def _decode_resolved(reader: FieldReader) -> ResolvedRegex:
    return ResolvedRegex(reader.strings(), reader.int64(), reader.int64())
