"""The few pieces of the wire that the compiled codecs call instead of spelling them out.

All of them are off the common path: lengths and tags of 128 and more, tagged fields nobody here
knows, and the refusals. Readers take a buffer and a position and return the position behind what
they read; running over the end is an IndexError, which the codec turns into a ProtocolError.
"""

from __future__ import annotations

from typing import Final, NoReturn

from odradek.protocol.errors import ProtocolError

Buffer = bytes | memoryview

_UVARINT_SIZE_MAX: Final = 5
"""Kafka's unsigned varints carry 32 bits."""


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint (base 128, least significant group first) and the position behind it."""
    first = data[at]
    if first < 128:
        return first, at + 1
    return finish_uvarint(data, at + 1, first)


def finish_uvarint(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, of 128 or more, has been read already."""
    value = first & 127
    for shift in range(7, 7 * _UVARINT_SIZE_MAX, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ProtocolError("a varint exceeds 32 bits")


def uvarint(value: int) -> bytes:
    """The unsigned varint of `value`, in one to five bytes."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tags(data: Buffer, at: int, count: int) -> int:
    """Pass over a tagged section whose count byte has been read: `count` unknown fields."""
    if count > 127:
        count, at = finish_uvarint(data, at, count)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def refuse_null(field: str) -> NoReturn:
    """A null, or a negative length, where the version allows none."""
    raise ProtocolError(f"{field} is null or has a negative length")


def refuse_tag_size(field: str) -> NoReturn:
    """A tagged field that is longer or shorter than its own size says."""
    raise ProtocolError(f"the size of the tagged field {field} is wrong")


def refuse_value(field: str, version: int) -> NoReturn:
    """A value that the version has no field for and that must not be dropped silently."""
    raise ProtocolError(f"version {version} cannot carry {field}")
