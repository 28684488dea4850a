"""Reads message sets of formats 0 and 1 as plainly as possible, as a consumer of that time does.

The product only converts them (protocol/message_converter.py, legacy_records.py).
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from odradek.protocol.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, decompress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.message_converter import LOG_OVERHEAD
from odradek.protocol.records import LOG_APPEND_TIME, MAGIC_AT, compression_of
from odradek.protocol.types import NO_TIMESTAMP

_OFFSET_AND_SIZE = Struct(">qi")
_CRC = Struct(">I")
_INT32 = Struct(">i")
_INT64 = Struct(">q")

# The least size by format: CRC, magic, attributes, (timestamp,) and two empty fields.
_SIZE_MIN: Final = (14, 22)


class Message(NamedTuple):
    """One message of a set; a wrapper is a message whose codec is not NONE."""

    offset: int
    magic: int
    codec: Codec
    is_log_append_time: bool
    timestamp: int
    key: bytes | None
    value: bytes | None


def iter_messages(view: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Message]:
    """The messages of a set and of its wrappers, with absolute offsets.

    Format 0 has no timestamps: they are -1. All wrappers together decompress to at most `limit`
    bytes.
    """
    for message in _iter_shallow_messages(view):
        if message.codec is Codec.NONE:
            yield message
        else:
            inner, size = _unwrap(message, limit)
            limit -= size
            yield from inner


def _iter_shallow_messages(view: Bytes) -> Iterator[Message]:
    """The messages of a set, without those in wrappers. Checks the CRCs."""
    data = memoryview(view)
    at = 0
    while at < len(data):
        if len(data) - at <= MAGIC_AT:
            raise ProtocolError("truncated message")
        offset, size = _OFFSET_AND_SIZE.unpack_from(data, at)
        magic = data[at + MAGIC_AT]
        if magic not in (0, 1):
            raise ProtocolError(f"invalid message format {magic} in a message set")
        end = at + LOG_OVERHEAD + size
        if size < _SIZE_MIN[magic] or end > len(data):
            raise ProtocolError(f"message size {size} exceeds the {len(data) - at} bytes left")
        (crc,) = _CRC.unpack_from(data, at + LOG_OVERHEAD)
        if crc32(data[at + MAGIC_AT : end]) != crc:
            raise ProtocolError("the CRC of a message does not match")
        attributes = data[at + MAGIC_AT + 1]
        at += MAGIC_AT + 2
        timestamp = NO_TIMESTAMP
        if magic == 1:
            (timestamp,) = _INT64.unpack_from(data, at)
            at += 8
        key, at = _read_bytes(data, at, end)
        value, at = _read_bytes(data, at, end)
        if at != end:
            raise ProtocolError("the fields of a message do not match its size")
        codec = compression_of(attributes)
        if codec is Codec.ZSTD:
            raise ProtocolError("zstd is not supported in message formats 0 and 1")
        has_append_time = magic == 1 and attributes & LOG_APPEND_TIME != 0
        yield Message(offset, magic, codec, has_append_time, timestamp, key, value)


def _read_bytes(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    if end - at < 4:
        raise ProtocolError("truncated message")
    (size,) = _INT32.unpack_from(data, at)
    at += 4
    if size < 0:
        return None, at
    if size > end - at:
        raise ProtocolError(
            f"a field of {size} bytes exceeds the {end - at} bytes left in the message"
        )
    return bytes(data[at : at + size]), at + size


def _unwrap(wrapper: Message, limit: int) -> tuple[list[Message], int]:
    """The messages in a wrapper with absolute offsets, and their decompressed size."""
    if wrapper.value is None:
        raise ProtocolError("a compressed message without a value")
    is_format_0 = wrapper.magic == 0
    plain = decompress(wrapper.codec, wrapper.value, limit=limit, is_format_0=is_format_0)
    inner = list(_iter_shallow_messages(plain))
    if not inner:
        raise ProtocolError("a compressed message contains no message")
    for message in inner:
        if message.codec is not Codec.NONE or message.magic != wrapper.magic:
            raise ProtocolError("a compressed message or another format inside a wrapper")
    if is_format_0:
        return inner, len(plain)
    base_offset = wrapper.offset - inner[-1].offset
    if wrapper.is_log_append_time:
        inner = [
            message._replace(is_log_append_time=True, timestamp=wrapper.timestamp)
            for message in inner
        ]
    # Some producers leave 0 in the wrapper. The inner offsets are absolute then.
    if base_offset > 0:
        inner = [message._replace(offset=base_offset + message.offset) for message in inner]
    return inner, len(plain)
