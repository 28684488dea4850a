"""The records of `__consumer_offsets`, in Kafka's own formats: its tools read ours, we read its.

A record's key begins with an int16 that tells its type: 0 and 1 an offset commit, 2 a classic
group; the value begins with an int16 version. A null value removes the key (the topic is
compacted).

    key 1    group STRING, topic STRING, partition INT32
    value    offset INT64, leader epoch INT32 (v3+), metadata STRING, commit timestamp INT64,
             expire timestamp INT64 (v1 only); v4 is flexible and carries the topic id as tag 0
    key 2    group STRING value    protocol type STRING, generation INT32, protocol
    NULLABLE_STRING, leader NULLABLE_STRING,
             current state timestamp INT64 (v2+), members ARRAY; v4 is flexible
    member   id STRING, instance id NULLABLE_STRING (v3+), client id STRING, client host STRING,
             rebalance timeout INT32 (v1+), session timeout INT32, subscription BYTES,
             assignment BYTES

Written are what Kafka 4.3 writes: offset values v4, or v1 if the commit named its own retention,
and group values v3. All versions are read. Types of consumer groups are in `consumer.records`, of
share groups in `share.records`, of streams groups in `streams.records`, Odradek's own in
`rewind.records`; those of newer kinds decode to None. Called by `shard`.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

import msgspec

from odradek.coordinator.group.consumer.records import (
    CONSUMER_RECORD_KINDS,
    ConsumerGroupRecord,
    decode_consumer_record,
    encode_consumer_record,
)
from odradek.coordinator.group.record_fields import (
    INT16,
    INT32,
    INT64,
    FieldReader,
    string,
    uvarint,
)
from odradek.coordinator.group.rewind.records import (
    REWIND_RECORD_KINDS,
    RewindRecord,
    decode_rewind_record,
    encode_rewind_record,
)
from odradek.coordinator.group.share.records import (
    SHARE_RECORD_KINDS,
    ShareGroupRecord,
    decode_share_record,
    encode_share_record,
)
from odradek.coordinator.group.streams.records import (
    STREAMS_RECORD_KINDS,
    StreamsGroupRecord,
    decode_streams_record,
    encode_streams_record,
)
from odradek.coordinator.outcome import TransactionalRecord, TransactionMarker
from odradek.protocol.errors import ProtocolError
from odradek.protocol.types import ZERO_UUID, Uuid

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VALUE_MAX: Final = 4
_GROUP_VALUE_MAX: Final = 4
_TOPIC_ID_TAG: Final = 0

NO_TIMESTAMP: Final = -1


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """A group's position in one partition. `topic_id` is zero if the commit did not know it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: Uuid = ZERO_UUID


class OffsetCommitRecord(msgspec.Struct, frozen=True, gc=False):
    """A group's offset of one partition, or (without one) that it has none any more."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class MemberMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member as stored with its generation; `subscription` is what it said for the protocol."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group as of its newest stored generation. Without members the group is Empty."""

    protocol_type: str = ""
    generation_id: int = 0
    protocol_name: str | None = None
    leader_id: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[MemberMetadata, ...] = ()


class GroupMetadataRecord(msgspec.Struct, frozen=True):
    """A classic group's generation, or (without one) that the group is gone."""

    group_id: str
    metadata: GroupMetadata | None


OwnRecord: TypeAlias = (
    OffsetCommitRecord
    | GroupMetadataRecord
    | ConsumerGroupRecord
    | ShareGroupRecord
    | StreamsGroupRecord
    | RewindRecord
)
GroupRecord: TypeAlias = OwnRecord | TransactionalRecord[OffsetCommitRecord] | TransactionMarker
"""What a shard of groups writes. Offsets inside a transaction and its end are told apart by their
batches; `encode` and `decode` know its own alone."""


TEXT_LENGTH_MAX: Final = 8_000
"""Texts of at most so many letters certainly fit into a record, whatever letters they are."""


def encode(record: OwnRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if a text is too long for its place."""
    if isinstance(record, OffsetCommitRecord):
        key = b"".join(
            (
                INT16.pack(_OFFSET_KEY),
                string(record.group_id),
                string(record.topic),
                INT32.pack(record.partition),
            )
        )
        committed = record.committed
        return key, None if committed is None else _encode_offset(committed)
    if not isinstance(record, GroupMetadataRecord):
        return _ENCODE[type(record)](record)
    key = INT16.pack(_GROUP_KEY) + string(record.group_id)
    return key, None if record.metadata is None else _encode_group(record.metadata)


def decode(key: bytes, value: bytes | None) -> OwnRecord | None:
    """The inverse of `encode`, for all versions; None for types this package does not know."""
    try:
        reader = FieldReader(key)
        kind = reader.int16()
        if kind in (0, _OFFSET_KEY):
            group_id, topic, partition = reader.string(), reader.string(), reader.int32()
            committed = None if value is None else _decode_offset(value)
            return OffsetCommitRecord(group_id, topic, partition, committed)
        if kind == _GROUP_KEY:
            group_id = reader.string()
            return GroupMetadataRecord(group_id, None if value is None else _decode_group(value))
        decode_other = _DECODE.get(kind)
        return None if decode_other is None else decode_other(kind, reader, value)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"a record of __consumer_offsets is malformed: {error}") from error


_ENCODE: Final[Mapping[type, Callable[[Any], tuple[bytes, bytes | None]]]] = {
    **dict.fromkeys(get_args(ConsumerGroupRecord), encode_consumer_record),
    **dict.fromkeys(get_args(StreamsGroupRecord), encode_streams_record),
    **dict.fromkeys(get_args(ShareGroupRecord), encode_share_record),
    **dict.fromkeys(get_args(RewindRecord), encode_rewind_record),
}
"""How the records of the newer kinds of groups are written; by class, so their types end here."""
_DECODE: Final[Mapping[int, Callable[[int, FieldReader, bytes | None], OwnRecord | None]]] = {
    **dict.fromkeys(CONSUMER_RECORD_KINDS, decode_consumer_record),
    **dict.fromkeys(STREAMS_RECORD_KINDS, decode_streams_record),
    **dict.fromkeys(SHARE_RECORD_KINDS, decode_share_record),
    **dict.fromkeys(REWIND_RECORD_KINDS, decode_rewind_record),
}
"""How they are read: by the type that their key begins with."""


def _encode_offset(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return b"".join(
            (
                struct.pack(">hq", 1, committed.offset),
                string(committed.metadata),
                struct.pack(">qq", committed.commit_timestamp_ms, committed.expire_timestamp_ms),
            )
        )
    metadata = committed.metadata.encode()
    has_id = committed.topic_id != ZERO_UUID
    return b"".join(
        (
            struct.pack(">hqi", _OFFSET_VALUE_MAX, committed.offset, committed.leader_epoch),
            uvarint(len(metadata) + 1),
            metadata,
            INT64.pack(committed.commit_timestamp_ms),
            b"\x01\x00\x10" + committed.topic_id if has_id else b"\x00",
        )
    )


def _decode_offset(value: bytes) -> CommittedOffset:
    reader = FieldReader(value)
    version = reader.version(_OFFSET_VALUE_MAX, "OffsetCommitValue")
    reader.is_flexible = version >= 4
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else NO_TIMESTAMP
    tags = reader.tags()
    topic_id = tags.get(_TOPIC_ID_TAG, ZERO_UUID)
    return CommittedOffset(
        offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id
    )


def _encode_group(metadata: GroupMetadata) -> bytes:
    parts = [
        INT16.pack(3),
        string(metadata.protocol_type),
        INT32.pack(metadata.generation_id),
        string(metadata.protocol_name),
        string(metadata.leader_id),
        struct.pack(">qi", metadata.state_timestamp_ms, len(metadata.members)),
    ]
    for member in metadata.members:
        parts += (
            string(member.member_id),
            string(member.group_instance_id),
            string(member.client_id),
            string(member.client_host),
            struct.pack(
                ">iii",
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                len(member.subscription),
            ),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _decode_group(value: bytes) -> GroupMetadata:
    reader = FieldReader(value)
    version = reader.version(_GROUP_VALUE_MAX, "GroupMetadataValue")
    reader.is_flexible = version >= 4
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol_name = reader.nullable_string()
    leader_id = reader.nullable_string()
    state_timestamp_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_decode_member(reader, version) for _ in range(reader.array_length()))
    reader.tags()
    return GroupMetadata(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol_name=protocol_name,
        leader_id=leader_id,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )


def _decode_member(reader: FieldReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    member = MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Before v1 a member had one timeout for both.
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.octets(),
        assignment=reader.octets(),
    )
    reader.tags()
    return member
