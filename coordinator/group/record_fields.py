"""The primitive types that records of `__consumer_offsets` are made of, written and read.

Kafka's types in their two forms: fixed lengths before a structure is flexible, variable ones and
tagged fields (KIP-482) from then on. A reader is never led past the end of its bytes. Called by
`records`, `consumer.records` and `share.records`.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from struct import Struct
from typing import Final

from odradek.protocol.errors import ProtocolError
from odradek.protocol.types import Uuid

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
_INT16_MAX: Final = 0x7FFF
VALUE_VERSION: Final = b"\x00\x00"
"""What values begin with whose type has had one version so far."""
NO_TAGS: Final = b"\x00"
_SMALL: Final = tuple(bytes((value,)) for value in range(0x80))


def string(text: str | None) -> bytes:
    """A text, or null, with an int16 as its length. ProtocolError if it is too long for that."""
    if text is None:
        return b"\xff\xff"
    octets = text.encode()
    if len(octets) > _INT16_MAX:
        raise ProtocolError(f"a text of {len(octets)} bytes fits into no record")
    return INT16.pack(len(octets)) + octets


def uvarint(value: int) -> bytes:
    """A whole number from 0 on, seven bits to a byte."""
    if value <= 0x7F:
        return _SMALL[value]
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def compact_string(text: str | None) -> bytes:
    """A text, or null, in its flexible form."""
    if text is None:
        return b"\x00"
    octets = text.encode()
    return uvarint(len(octets) + 1) + octets


def compact_bytes(octets: bytes) -> bytes:
    """Bytes in their flexible form."""
    return uvarint(len(octets) + 1) + octets


def compact_int32s(values: Collection[int]) -> bytes:
    """An array of INT32 in its flexible form."""
    count = len(values)
    return uvarint(count + 1) + struct.pack(f">{count}i", *values)


def compact_strings(names: Iterable[str]) -> bytes:
    """An array of texts in its flexible form."""
    found = tuple(names)
    return uvarint(len(found) + 1) + b"".join(map(compact_string, found))


def topic_partitions(topics: Mapping[Uuid, frozenset[int]]) -> bytes:
    """An array of topic ids with their partitions, in its flexible form."""
    parts = [uvarint(len(topics) + 1)]
    for topic_id, partitions in topics.items():
        parts += (topic_id, compact_int32s(sorted(partitions)), NO_TAGS)
    return b"".join(parts)


def tag(number: int, octets: bytes) -> bytes:
    """The tagged fields of a structure that has one."""
    return b"\x01" + uvarint(number) + uvarint(len(octets)) + octets


def int64_tag(value: int) -> bytes:
    """The tagged fields of a structure with an INT64 under tag 0, which is left out at 0."""
    return tag(0, INT64.pack(value)) if value else NO_TAGS


class FieldReader:
    """Reads Kafka's primitive types in order; in their flexible forms if `is_flexible` is set."""

    __slots__ = ("_at", "_octets", "is_flexible")

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._at = 0
        self.is_flexible = False

    def version(self, newest: int, what: str) -> int:
        """The int16 a value begins with. A newer version cannot be guessed at."""
        version = self.int16()
        if not 0 <= version <= newest:
            raise ProtocolError(f"{what} version {version}; this release reads 0 to {newest}")
        return version

    def int8(self) -> int:
        """A signed byte."""
        value = self._octets[self._at]
        self._at += 1
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        """Two bytes, signed, the high one first; so are the longer ones."""
        value: int = INT16.unpack_from(self._octets, self._at)[0]
        self._at += 2
        return value

    def int32(self) -> int:
        """Four bytes."""
        value: int = INT32.unpack_from(self._octets, self._at)[0]
        self._at += 4
        return value

    def int64(self) -> int:
        """Eight bytes."""
        value: int = INT64.unpack_from(self._octets, self._at)[0]
        self._at += 8
        return value

    def nullable_string(self) -> str | None:
        """A text, or None."""
        length = self.uvarint() - 1 if self.is_flexible else self.int16()
        return None if length < 0 else self._take(length).decode()

    def string(self) -> str:
        """A text; ProtocolError if there is null."""
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("a record of __consumer_offsets has null where a string must be")
        return text

    def octets(self) -> bytes:
        """Bytes; null counts as none."""
        return self._take(max(self.uvarint() - 1 if self.is_flexible else self.int32(), 0))

    def array_length(self) -> int:
        """How many elements follow; null counts as none."""
        return max(self.uvarint() - 1 if self.is_flexible else self.int32(), 0)

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end a flexible structure, by number."""
        if not self.is_flexible:
            return {}
        tags: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            tags[tag] = self._take(self.uvarint())
        return tags

    def uuid(self) -> bytes:
        """Sixteen bytes."""
        return self._take(16)

    def int32s(self) -> tuple[int, ...]:
        """An array of INT32."""
        length = self.array_length()
        return struct.unpack(f">{length}i", self._take(4 * length))

    def strings(self) -> tuple[str, ...]:
        """An array of texts."""
        return tuple(self.string() for _ in range(self.array_length()))

    def topic_partitions(self) -> dict[Uuid, frozenset[int]]:
        """An array of topic ids with their partitions."""
        topics: dict[Uuid, frozenset[int]] = {}
        for _ in range(self.array_length()):
            topic_id = self.uuid()
            topics[topic_id] = frozenset(self.int32s())
            self.tags()
        return topics

    def int64_tag(self) -> int:
        """The INT64 under tag 0; 0 if it is not there."""
        octets = self.tags().get(0)
        return 0 if octets is None else FieldReader(octets).int64()

    def _take(self, length: int) -> bytes:
        at = self._at
        end = at + length
        if end > len(self._octets):
            raise IndexError(f"{length} bytes wanted at {at} of {len(self._octets)}")
        self._at = end
        return self._octets[at:end]

    def uvarint(self) -> int:
        """A length of at most 32 bits, seven bits to a byte."""
        value = shift = 0
        while True:
            octet = self._octets[self._at]
            self._at += 1
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                return value
            shift += 7
            if shift > 35:
                raise ProtocolError("a length of more than 32 bits")
