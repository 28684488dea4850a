"""What the compiled codecs call: varints of 128 and more, unknown tagged fields, errors, and the
structs of arrays.

Readers take a buffer and a position, and return the position behind what they read. They raise
IndexError at the end of the buffer, which the codec turns into a ProtocolError.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NoReturn

from odradek.protocol.errors import ProtocolError
from odradek.protocol.schema import FIXED_SIZE

Buffer = bytes | memoryview

_UVARINT_SIZE_MAX: Final = 5
"""Kafka's unsigned varints carry 32 bits."""


class ArrayStructs(dict[int, Struct]):
    """By count: the Struct of so many values of one kind. Those of more than 64 are not kept."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __missing__(self, count: int) -> Struct:
        made = Struct(f">{count}{self._code}")
        return self.setdefault(count, made) if count <= 64 else made


ARRAY_STRUCTS: Final = {kind: ArrayStructs(kind.value) for kind in FIXED_SIZE}


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint (base 128, least significant group first) and the position behind it."""
    first = data[at]
    if first < 128:
        return first, at + 1
    return finish_uvarint(data, at + 1, first)


def finish_uvarint(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose `first` byte is 128 or more, and the position behind."""
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
    """Skip a section of `count` unknown tagged fields, whose count byte has been read."""
    if count > 127:
        count, at = finish_uvarint(data, at, count)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def refuse_null(field: str) -> NoReturn:
    """Null, or a negative length, in a field that is not nullable in this version."""
    raise ProtocolError(f"{field} is null or has a negative length")


def refuse_tag_size(field: str) -> NoReturn:
    """A tagged field that is longer or shorter than its size."""
    raise ProtocolError(f"the size of the tagged field {field} is wrong")


def refuse_value(field: str, version: int) -> NoReturn:
    """A value other than the default, in a field that the version lacks."""
    raise ProtocolError(f"version {version} cannot carry {field}")
