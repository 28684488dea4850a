"""Classic groups in `__consumer_offsets`: Kafka's GroupMetadataKey and GroupMetadataValue.

Values are written in version 3, as Kafka 4.3 does. All versions are read.
"""

from typing import Final

import msgspec

from odradek.coordinator.record_serde import RecordFormat, SchemaValue
from odradek.protocol.schema import array, binary, int32, int64, string, struct
from odradek.protocol.types import NO_TIMESTAMP

_LIKE_SESSION: Final = -(1 << 63)
"""The rebalance timeout of a member in version 0, which has one timeout for both. No record holds
this number."""


class MemberMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member as stored with its generation; `subscription` is its metadata for the protocol."""

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
    """A classic group's generation, or (None) the deletion of the group."""

    group_id: str
    metadata: GroupMetadata | None


@struct
class _GroupKey:
    group_id: str = string()


@struct
class _MemberValue:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=3, default=None, since=3)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(default=_LIKE_SESSION, since=1)
    session_timeout_ms: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


@struct
class _GroupValue:
    protocol_type: str = string()
    generation_id: int = int32()
    protocol_name: str | None = string(nullable_since=0)
    leader_id: str | None = string(nullable_since=0)
    state_timestamp_ms: int = int64(default=NO_TIMESTAMP, since=2)
    members: list[_MemberValue] = array(_MemberValue)


def _group_metadata(read: _GroupValue) -> GroupMetadata:
    for member in read.members:
        if member.rebalance_timeout_ms == _LIKE_SESSION:
            member.rebalance_timeout_ms = member.session_timeout_ms
    return msgspec.convert(read, GroupMetadata, from_attributes=True)


CLASSIC_FORMATS: Final = (
    RecordFormat(
        2,
        GroupMetadataRecord,
        _GroupKey,
        SchemaValue(
            "GroupMetadataValue",
            _GroupValue,
            _group_metadata,
            version=3,
            version_max=4,
            flexible_since=4,
        ),
    ),
)
