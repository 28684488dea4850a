"""The consumer protocol: JoinGroup metadata and SyncGroup assignments of classic consumer groups.

The broker only stores and forwards them, but reads the subscribed topics and the assignment where
it needs them: OffsetDelete, migration, rewinds, ExplainGroup. An int16 version comes first. Newer
versions only append fields (KIP-429, KIP-792, KIP-881), so a reader ignores the bytes behind those
that it knows.

Malformed bytes raise ProtocolError and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from struct import Struct
from typing import Final, TypeVar, cast

from odradek.protocol.decoding import MALFORMED, Decoder, compile_decoder
from odradek.protocol.encoding import compile_record_encoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.schema import array, binary, int32, string, struct

S = TypeVar("S")

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3

_INT16 = Struct(">h")


@struct
class ConsumerProtocolSubscription:
    """The topics that a member subscribes to, and the partitions that it owns."""

    topics: list[str] = array(string)
    user_data: bytes | None = binary(nullable_since=0, default=None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1, ignorable=True)
    generation_id: int = int32(default=-1, since=2, ignorable=True)
    rack_id: str | None = string(nullable_since=0, default=None, since=3, ignorable=True)


@struct
class ConsumerProtocolAssignment:
    """The partitions assigned to a member; the same in all versions."""

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = binary(nullable_since=0, default=None)


def decode_subscription(data: bytes | bytearray | memoryview) -> ConsumerProtocolSubscription:
    """Read a subscription of any version; an unknown newer one is read as version 3.

    Some clients write version 1 and the fields of version 0. Bytes that end between two fields are
    therefore valid: the missing fields have their defaults.
    """
    newest = _version(data)
    try:
        return _decode(ConsumerProtocolSubscription, data, newest)
    except ProtocolError:
        for older in range(newest):
            with suppress(ProtocolError):
                return _decode(ConsumerProtocolSubscription, data, older, may_trail=False)
        raise


def has_owned_partitions(subscription: bytes) -> bool:
    """Whether the version of a subscription has owned partitions: all have but version 0."""
    return subscription[:2] != b"\0\0"


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = VERSION_MAX) -> bytes:
    """The bytes of a version from 0 to 3, which comes first."""
    assert 0 <= version <= VERSION_MAX
    return _INT16.pack(version) + _encode_assignment(assignment)


def decode_assignment(data: bytes | bytearray | memoryview) -> ConsumerProtocolAssignment:
    """Read an assignment of any version; what an unknown newer one appends is ignored."""
    return _decode(ConsumerProtocolAssignment, data, _version(data))


_encode_assignment = compile_record_encoder(ConsumerProtocolAssignment, 0, flexible=False)


def _version(data: bytes | bytearray | memoryview) -> int:
    if len(data) < _INT16.size:
        raise ProtocolError("truncated consumer protocol version")
    version: int = _INT16.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError(f"invalid consumer protocol version {version}")
    return min(version, VERSION_MAX)


def _decode(
    struct_class: type[S],
    data: bytes | bytearray | memoryview,
    version: int,
    *,
    may_trail: bool = True,
) -> S:
    decode = _decoder(cast("type", struct_class), version, may_trail=may_trail)
    try:
        return cast("S", decode(data, _INT16.size))
    except MALFORMED as error:
        raise ProtocolError(f"malformed {struct_class.__name__}: {error}") from error


@cache
def _decoder(struct_class: type, version: int, *, may_trail: bool) -> Decoder:
    return compile_decoder(struct_class, version, flexible=False, may_trail=may_trail)
