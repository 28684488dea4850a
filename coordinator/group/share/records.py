"""The records of share groups (KIP-932) in `__consumer_offsets`, in Kafka's own formats.

As those of consumer groups (`consumer.records`): a key begins with its type, a value with version
0, and is flexible.

    key 10   group, member            rack NULLABLE_STRING, client id, client host STRING,
             topic names ARRAY
    key 11   group                    epoch INT32, hash of the subscribed topics INT64
    key 12   group                    epoch of the target assignment INT32, tag 0: when INT64
    key 13   group, member            target: ARRAY of topic id UUID, partitions ARRAY of INT32
    key 14   group, member            epoch, previous epoch INT32, state INT8 (always 0: stable),
             assigned: ARRAY of topic id, partitions
    key 15   group                    partitions whose share state is being made, and whose is
             there: ARRAYs of topic id, name STRING, partitions; topics whose share state is being
             deleted: ARRAY of topic id, name

Type 9 (the subscribed topics themselves) was given up before 4.1 and decodes to None. Values are
immutable, their mappings are never written to. Called by `records`.
"""

import struct
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.modern.records import (
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    ModernRecords,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.group.record_fields import (
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    VALUE_VERSION,
    FieldReader,
    compact_int32s,
    compact_string,
    compact_strings,
    int64_tag,
    string,
    topic_partitions,
    uvarint,
)
from odradek.coordinator.group.topics import (
    NO_PARTITIONS,
    Partitions,
)
from odradek.protocol.types import Uuid

V = TypeVar("V")

_MEMBER_KEY: Final = 10
_GROUP_KEY: Final = 11
_TARGET_EPOCH_KEY: Final = 12
_TARGET_KEY: Final = 13
_CURRENT_KEY: Final = 14
_STATES_KEY: Final = 15
_STABLE: Final = 0


class NamedPartitions(NamedTuple):
    """Some partitions of a topic, with the name it has."""

    name: str
    indexes: frozenset[int]


TopicStates: TypeAlias = Mapping[Uuid, NamedPartitions]
"""Partitions by topic; a topic without any is not there."""


class ShareGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member and what it subscribes to. Share groups have no static members."""

    instance_id: ClassVar[None] = None
    rebalance_timeout_ms: ClassVar[int] = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()


class ShareCurrentAssignment(CurrentAssignment, frozen=True):
    """The partitions that a member reads. They are shared: a member is given a new assignment in
    one step and is always STABLE."""

    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS


class StatePartitions(msgspec.Struct, frozen=True):
    """Which partitions have a share state: those that get one, those that have one, and topics
    (with their names) that lose theirs. A partition is in one of the first two at most."""

    initializing: TopicStates = {}
    initialized: TopicStates = {}
    deleting: Mapping[Uuid, str] = {}


class ShareMemberRecord(MemberRecord[ShareGroupMember], frozen=True):
    """See MemberRecord."""


class ShareEpochRecord(EpochRecord, frozen=True, gc=False):
    """See EpochRecord."""

    value: GroupEpoch | None


class ShareTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class ShareTargetRecord(TargetRecord[Partitions], frozen=True):
    """See TargetRecord."""


class ShareCurrentRecord(CurrentRecord[ShareCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class ShareStatePartitionsRecord(msgspec.Struct, frozen=True, gc=False):
    """The partitions that have a share state."""

    group_id: str
    value: StatePartitions | None


SHARE_RECORDS: Final = ModernRecords(
    ShareEpochRecord,
    ShareTargetEpochRecord,
    ShareMemberRecord,
    ShareTargetRecord,
    ShareCurrentRecord,
)

ShareGroupRecord: TypeAlias = (
    ShareMemberRecord
    | ShareEpochRecord
    | ShareTargetEpochRecord
    | ShareTargetRecord
    | ShareCurrentRecord
    | ShareStatePartitionsRecord
)


# -- writing --------------------------------------------------------------------------------------


def encode_share_record(record: ShareGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if a text is too long for its place."""
    group_id = string(record.group_id)
    value: bytes | None
    match record:
        case ShareMemberRecord():
            key = INT16.pack(_MEMBER_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_member(record.value)
        case ShareEpochRecord():
            key = INT16.pack(_GROUP_KEY) + group_id
            value = None if record.value is None else _encode_epoch(record.value)
        case ShareTargetEpochRecord():
            key = INT16.pack(_TARGET_EPOCH_KEY) + group_id
            value = None if record.value is None else _encode_target_epoch(record.value)
        case ShareTargetRecord():
            key = INT16.pack(_TARGET_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_target(record.value)
        case ShareCurrentRecord():
            key = INT16.pack(_CURRENT_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_current(record.value)
        case ShareStatePartitionsRecord():
            key = INT16.pack(_STATES_KEY) + group_id
            value = None if record.value is None else _encode_states(record.value)
    return key, value


def _encode_member(member: ShareGroupMember) -> bytes:
    return b"".join(
        (
            VALUE_VERSION,
            compact_string(member.rack_id),
            compact_string(member.client_id),
            compact_string(member.client_host),
            compact_strings(member.topic_names),
            NO_TAGS,
        )
    )


def _encode_epoch(epoch: GroupEpoch) -> bytes:
    return VALUE_VERSION + INT32.pack(epoch.epoch) + INT64.pack(epoch.metadata_hash) + NO_TAGS


def _encode_target_epoch(epoch: TargetEpoch) -> bytes:
    return VALUE_VERSION + INT32.pack(epoch.epoch) + int64_tag(epoch.assigned_at_ms)


def _encode_target(target: Partitions) -> bytes:
    return VALUE_VERSION + topic_partitions(target) + NO_TAGS


def _encode_current(current: ShareCurrentAssignment) -> bytes:
    epochs = struct.pack(">iib", current.member_epoch, current.previous_member_epoch, _STABLE)
    return VALUE_VERSION + epochs + topic_partitions(current.assigned) + NO_TAGS


def _encode_states(states: StatePartitions) -> bytes:
    parts = [VALUE_VERSION]
    for topics in (states.initializing, states.initialized):
        parts.append(uvarint(len(topics) + 1))
        for topic_id, (name, indexes) in topics.items():
            parts += (topic_id, compact_string(name), compact_int32s(sorted(indexes)), NO_TAGS)
    parts.append(uvarint(len(states.deleting) + 1))
    for topic_id, name in states.deleting.items():
        parts += (topic_id, compact_string(name), NO_TAGS)
    parts.append(NO_TAGS)
    return b"".join(parts)


# -- reading --------------------------------------------------------------------------------------


def decode_share_record(
    kind: int, key: FieldReader, value: bytes | None
) -> ShareGroupRecord | None:
    """The inverse; `key` stands behind the type. None for types that are not told of here.

    Bytes that end too early raise struct.error or IndexError, which `records` makes ProtocolErrors.
    """
    reader = None if value is None else FieldReader(value)
    if reader is not None and kind in SHARE_RECORD_KINDS:
        reader.version(0, SHARE_RECORD_KINDS[kind])
        reader.is_flexible = True
    match kind:
        case 10:
            return ShareMemberRecord(key.string(), key.string(), _read(reader, _decode_member))
        case 11:
            return ShareEpochRecord(key.string(), _read(reader, _decode_epoch))
        case 12:
            return ShareTargetEpochRecord(key.string(), _read_tagged(reader, _decode_target_epoch))
        case 13:
            return ShareTargetRecord(key.string(), key.string(), _read(reader, _decode_target))
        case 14:
            return ShareCurrentRecord(key.string(), key.string(), _read(reader, _decode_current))
        case 15:
            return ShareStatePartitionsRecord(key.string(), _read(reader, _decode_states))
    return None


def _read(reader: FieldReader | None, decode: Callable[[FieldReader], V]) -> V | None:
    if reader is None:
        return None
    value = decode(reader)
    # Nothing has been put under a tag yet.
    reader.tags()
    return value


def _read_tagged(reader: FieldReader | None, decode: Callable[[FieldReader], V]) -> V | None:
    return None if reader is None else decode(reader)


SHARE_RECORD_KINDS: Final[Mapping[int, str]] = {
    _MEMBER_KEY: "ShareGroupMemberMetadataValue",
    _GROUP_KEY: "ShareGroupMetadataValue",
    _TARGET_EPOCH_KEY: "ShareGroupTargetAssignmentMetadataValue",
    _TARGET_KEY: "ShareGroupTargetAssignmentMemberValue",
    _CURRENT_KEY: "ShareGroupCurrentMemberAssignmentValue",
    _STATES_KEY: "ShareGroupStatePartitionMetadataValue",
}


def _decode_member(reader: FieldReader) -> ShareGroupMember:
    return ShareGroupMember(
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topic_names=reader.strings(),
    )


def _decode_epoch(reader: FieldReader) -> GroupEpoch:
    return GroupEpoch(reader.int32(), reader.int64())


def _decode_target_epoch(reader: FieldReader) -> TargetEpoch:
    return TargetEpoch(reader.int32(), reader.int64_tag())


def _decode_target(reader: FieldReader) -> Partitions:
    return reader.topic_partitions()


def _decode_current(reader: FieldReader) -> ShareCurrentAssignment:
    member_epoch, previous_member_epoch = reader.int32(), reader.int32()
    # The state: a member of a share group has nothing to give up and is always stable.
    reader.int8()
    assigned = reader.topic_partitions()
    return ShareCurrentAssignment(member_epoch, previous_member_epoch, assigned=assigned)


def _decode_states(reader: FieldReader) -> StatePartitions:
    initializing, initialized = _decode_topics(reader), _decode_topics(reader)
    deleting: dict[Uuid, str] = {}
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        deleting[topic_id] = reader.string()
        reader.tags()
    return StatePartitions(initializing, initialized, deleting)


def _decode_topics(reader: FieldReader) -> TopicStates:
    topics: dict[Uuid, NamedPartitions] = {}
    for _ in range(reader.array_length()):
        topic_id = reader.uuid()
        topics[topic_id] = NamedPartitions(reader.string(), frozenset(reader.int32s()))
        reader.tags()
    return topics
