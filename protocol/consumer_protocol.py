"""What members of a classic consumer group say to each other through the broker.

The bytes in JoinGroup's metadata and SyncGroup's assignment are the clients' affair; the broker
reads them only to know which topics a group subscribes to (OffsetDelete, explaining a group) and
tools read them to show assignments. Each starts with its own version (KIP-429, KIP-792 and KIP-881
added fields), versions only append, and a reader takes what it knows and ignores the rest.

Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from odradek.protocol.errors import ProtocolError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3

_INT16 = Struct(">h")
_INT32 = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSubscription:
    """What a member wants (JoinGroup); fields newer than the bytes' version keep their default."""

    topics: Sequence[str] = ()
    user_data: bytes | None = None
    owned_partitions: Sequence[ConsumerProtocolPartitions] = field(default=())  # version 1
    generation_id: int = -1  # version 2
    rack_id: str | None = None  # version 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolAssignment:
    """What a member gets (SyncGroup); the same in all versions."""

    assigned_partitions: Sequence[ConsumerProtocolPartitions] = ()
    user_data: bytes | None = None


def decode_subscription(data: bytes | bytearray | memoryview) -> ConsumerProtocolSubscription:
    """Read a subscription of any version; an unknown newer one is read as version 3.

    Some clients announce version 1 and send the fields of version 0: where the bytes end between
    two fields the rest keep their defaults.
    """
    reader = _Reader(data)
    version = reader.version()
    topics = [reader.string() for _ in range(reader.count(2))]
    user_data = reader.nullable_bytes()
    owned_partitions: Sequence[ConsumerProtocolPartitions] = ()
    generation_id = -1
    rack_id = None
    if version >= 1 and not reader.is_at_end():
        owned_partitions = reader.topic_partitions()
    if version >= 2 and not reader.is_at_end():
        generation_id = reader.int32()
    if version >= 3 and not reader.is_at_end():
        rack_id = reader.nullable_string()
    return ConsumerProtocolSubscription(
        topics=topics,
        user_data=user_data,
        owned_partitions=owned_partitions,
        generation_id=generation_id,
        rack_id=rack_id,
    )


def can_name_owned(subscription: bytes) -> bool:
    """Whether a subscription has a place for partitions that are kept: version 0 has none."""
    return subscription[:2] != b"\0\0"


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = VERSION_MAX) -> bytes:
    """The bytes of a version from 0 to 3, its number in front."""
    assert 0 <= version <= VERSION_MAX
    return b"".join(
        (
            _INT16.pack(version),
            _topic_partitions(assignment.assigned_partitions),
            _nullable_bytes(assignment.user_data),
        )
    )


def decode_assignment(data: bytes | bytearray | memoryview) -> ConsumerProtocolAssignment:
    """Read an assignment of any version; what an unknown newer one appends is ignored."""
    reader = _Reader(data)
    reader.version()
    return ConsumerProtocolAssignment(
        assigned_partitions=reader.topic_partitions(), user_data=reader.nullable_bytes()
    )


def _string(value: str) -> bytes:
    encoded = value.encode()
    return _INT16.pack(len(encoded)) + encoded


def _nullable_bytes(value: bytes | None) -> bytes:
    return _INT32.pack(-1) if value is None else _INT32.pack(len(value)) + value


def _topic_partitions(topics: Sequence[ConsumerProtocolPartitions]) -> bytes:
    parts = [_INT32.pack(len(topics))]
    for topic in topics:
        parts += (_string(topic.topic), _INT32.pack(len(topic.partitions)))
        parts += (_INT32.pack(partition) for partition in topic.partitions)
    return b"".join(parts)


class _Reader:
    """A place in bytes that is never read past their end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = bytes(data)
        self._at = 0

    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def version(self) -> int:
        version = self._int16()
        if version < 0:
            raise ProtocolError(f"invalid consumer protocol version {version}")
        return version

    def int32(self) -> int:
        (value,) = _INT32.unpack(self._take(4))
        return int(value)

    def count(self, item_bytes_min: int) -> int:
        """An array's length, which the bytes left must be able to hold."""
        count = self.int32()
        if not 0 <= count <= (len(self._data) - self._at) // item_bytes_min:
            raise ProtocolError(f"invalid array length {count}")
        return count

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise ProtocolError("a non-nullable string is null")
        return value

    def nullable_string(self) -> str | None:
        size = self._int16()
        if size < 0:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise ProtocolError("a string is not UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._take(size)

    def topic_partitions(self) -> list[ConsumerProtocolPartitions]:
        return [
            ConsumerProtocolPartitions(
                topic=self.string(), partitions=[self.int32() for _ in range(self.count(4))]
            )
            for _ in range(self.count(6))
        ]

    def _int16(self) -> int:
        (value,) = _INT16.unpack(self._take(2))
        return int(value)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ProtocolError(
                f"a field of {size} bytes exceeds the {len(self._data) - self._at} bytes left"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken
