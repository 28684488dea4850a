"""Kafka's primitive types, old and flexible (KIP-482), as a message's writer and reader.

A flexible message has compact lengths (unsigned varints, one more than the length, 0 for null)
and ends every structure with tagged fields. Whoever writes or reads a message says once whether it
is flexible; texts, bytes and arrays then have the right length.
"""

import base64
from struct import Struct, error
from typing import Final

from odradek.pipeline.errors import PipelineError

ARRAY_LENGTH_MAX: Final = 10_000_000
"""No answer has more elements: what claims more is no answer."""
UUID_BYTES: Final = 16
ZERO_ID: Final = bytes(UUID_BYTES)

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_CUT: Final = "The answer of the broker ends too early. Is this address a Kafka broker?"


def topic_id_text(topic_id: bytes) -> str:
    """As Kafka's tools print it: base64url without padding; empty for the zero id."""
    if topic_id == ZERO_ID:
        return ""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def topic_id_bytes(text: str) -> bytes:
    """The 16 bytes of a topic id; the zero id for an empty text."""
    if not text:
        return ZERO_ID
    try:
        found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        found = b""
    if len(found) != UUID_BYTES:
        raise PipelineError(
            f"{text!r} is no topic id. Kafka's tools print them with 22 characters."
        )
    return found


class MessageWriter:
    """Writes the body of a request, field by field."""

    def __init__(self, *, is_flexible: bool) -> None:
        self.is_flexible = is_flexible
        self._bytes = bytearray()

    def take(self) -> bytes:
        """All that was written."""
        return bytes(self._bytes)

    def int8(self, value: int) -> None:
        """A signed byte; also booleans."""
        self._bytes += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """16 bits, signed."""
        self._bytes += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """32 bits, signed."""
        self._bytes += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """64 bits, signed."""
        self._bytes += _INT64.pack(value)

    def uvarint(self, value: int) -> None:
        """An unsigned varint."""
        while value > 127:
            self._bytes.append(value & 127 | 128)
            value >>= 7
        self._bytes.append(value)

    def string(self, value: str | None) -> None:
        """A text or null."""
        encoded = None if value is None else value.encode()
        if self.is_flexible:
            self.uvarint(0 if encoded is None else len(encoded) + 1)
        else:
            self.int16(-1 if encoded is None else len(encoded))
        self._bytes += encoded or b""

    def binary(self, value: bytes) -> None:
        """Bytes with their length."""
        self.array(len(value))
        self._bytes += value

    def raw(self, value: bytes) -> None:
        """Bytes as they are, as those of a uuid."""
        self._bytes += value

    def array(self, length: int | None) -> None:
        """The length of an array whose elements follow; None is null."""
        if self.is_flexible:
            self.uvarint(0 if length is None else length + 1)
        else:
            self.int32(-1 if length is None else length)

    def end_structure(self) -> None:
        """No tagged fields."""
        if self.is_flexible:
            self._bytes.append(0)


class MessageReader:
    """Reads an answer, field by field. Raises PipelineError where it is cut."""

    def __init__(self, data: bytes, at: int = 0, *, is_flexible: bool) -> None:
        self.data = data
        self.at = at
        self.is_flexible = is_flexible

    def _number(self, layout: Struct) -> int:
        try:
            (value,) = layout.unpack_from(self.data, self.at)
        except error:
            raise PipelineError(_CUT) from None
        self.at += layout.size
        return int(value)

    def int8(self) -> int:
        """A signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """16 bits, signed."""
        return self._number(_INT16)

    def int32(self) -> int:
        """32 bits, signed."""
        return self._number(_INT32)

    def int64(self) -> int:
        """64 bits, signed."""
        return self._number(_INT64)

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = shift = 0
        while shift < 35:
            if self.at >= len(self.data):
                raise PipelineError(_CUT)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise PipelineError(_CUT)

    def skip(self, length: int) -> int:
        """Pass so many bytes; returns where they begin."""
        start = self.at
        if length < 0 or start + length > len(self.data):
            raise PipelineError(_CUT)
        self.at = start + length
        return start

    def raw(self, length: int) -> bytes:
        """So many bytes, as those of a uuid."""
        start = self.skip(length)
        return self.data[start : self.at]

    def string(self) -> str | None:
        """A text or null."""
        length = self.uvarint() - 1 if self.is_flexible else self.int16()
        return None if length < 0 else self.raw(length).decode(errors="replace")

    def text(self) -> str:
        """A text; null is empty."""
        return self.string() or ""

    def span(self) -> tuple[int, int] | None:
        """Where bytes that have a length lie: [start, end) of the data, or None for null."""
        length = self.uvarint() - 1 if self.is_flexible else self.int32()
        if length < 0:
            return None
        return self.skip(length), self.at

    def binary(self) -> bytes:
        """Bytes with their length; null is empty."""
        found = self.span()
        return b"" if found is None else self.data[found[0] : found[1]]

    def array(self) -> int:
        """The length of an array whose elements follow; null is 0."""
        length = self.uvarint() - 1 if self.is_flexible else self.int32()
        if length > ARRAY_LENGTH_MAX:
            raise PipelineError(_CUT)
        return max(length, 0)

    def int32_array(self) -> tuple[int, ...]:
        """An array of 32-bit numbers."""
        return tuple(self.int32() for _ in range(self.array()))

    def end_structure(self) -> None:
        """Skip the tagged fields: none of them is needed here."""
        if self.is_flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.skip(self.uvarint())
