"""Converts messages of formats 0 and 1 to records of format 2; up_conversion.py decompresses them.

mypyc compiles this module like record_walker.py (docs/adr/0013-every-record-is-checked.md). The
messages come as bytes that may end inside a message. Every CRC is checked. The old formats are
described in legacy_records.py, that of the records in record_walker.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    # Only for the compiler: a 64-bit integer instead of a Python one.
    from mypy_extensions import i64

IS_COMPILED: Final = not __file__.endswith(".py")
"""Whether mypyc has compiled this module."""
MESSAGES_PER_STEP: Final = 1_000 if IS_COMPILED else 250
"""As many messages are converted at once: half a millisecond, or a whole one."""
LOG_OVERHEAD: Final = 12
"""Bytes of a message that its size does not count: the offset and the size."""

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63 - 1) - 1
_MAGIC_AT: Final = 16
_CODEC_MASK: Final = 7
_LOG_APPEND_TIME: Final = 8
_NO_MAGIC: Final = -1
# The least size by format: CRC, magic, attributes, (timestamp,) and two empty fields.
_SIZE_MIN_0: Final = 14
_SIZE_MIN_1: Final = 22
_BYTES: Final[list[bytes]] = [bytes((number,)) for number in range(256)]


class MalformedMessagesError(Exception):
    """The bytes are no message set."""


class MessageConverter:
    """The conversion of one set: `convert` its bytes in order, those of a wrapper between
    `enter_wrapper` and `leave_wrapper`."""

    def __init__(self) -> None:
        self.record_count: i64 = 0
        """The records so far: the index of the next one."""
        self.base_timestamp: i64 = -1
        """Of the first message."""
        self.max_timestamp: i64 = -1
        self.position: i64 = 0
        """Where `convert` stopped."""
        self.needed: i64 = 0
        """If not 0, `convert` needs so many bytes from `position` on for the next message."""
        self.is_at_wrapper = False
        """Whether `convert` stopped behind a compressed message. The following fields are its."""
        self.magic: i64 = 0
        self.codec: i64 = 0
        self.value_start: i64 = 0
        self.value_end: i64 = 0
        """-1 if it has no value."""
        self._timestamp: i64 = -1
        self._is_log_append_time = False
        self._inner_magic: i64 = _NO_MAGIC
        # The messages of a wrapper may all have its timestamp.
        self._replaces_timestamp = False
        self._wrapper_timestamp: i64 = -1

    def enter_wrapper(self) -> None:
        """What is converted next is the content of the wrapper that `convert` stopped at."""
        self._inner_magic = self.magic
        self._replaces_timestamp = self._is_log_append_time
        self._wrapper_timestamp = self._timestamp

    def leave_wrapper(self) -> None:
        """The wrapper has no further bytes."""
        self._inner_magic = _NO_MAGIC
        self._replaces_timestamp = False

    def convert(self, data: bytes, at: i64) -> bytes:
        """The records of the next MESSAGES_PER_STEP messages, or of those before a wrapper or a
        message that is not there as a whole. Raises MalformedMessagesError."""
        size: i64 = len(data)
        parts: list[bytes] = []
        left: i64 = MESSAGES_PER_STEP
        self.is_at_wrapper = False
        self.needed = 0
        while left:
            if size - at < LOG_OVERHEAD:
                self.needed = LOG_OVERHEAD
                break
            message_size = _int32(data, at + 8)
            if message_size < _SIZE_MIN_0:
                raise MalformedMessagesError(f"invalid message size {message_size}")
            end = at + LOG_OVERHEAD + message_size
            if end > size:
                self.needed = LOG_OVERHEAD + message_size
                break
            self._convert_message(data, at, end, parts)
            at = end
            if self.is_at_wrapper:
                break
            left -= 1
        self.position = at
        return b"".join(parts)

    def _convert_message(self, data: bytes, at: i64, end: i64, parts: list[bytes]) -> None:
        """Append the record of one message to `parts`, or note what a wrapper is."""
        magic: i64 = data[at + _MAGIC_AT]
        if magic > 1:
            raise MalformedMessagesError(f"invalid message format {magic} in a message set")
        if magic == 1 and end - at < LOG_OVERHEAD + _SIZE_MIN_1:
            raise MalformedMessagesError(f"invalid message size {end - at - LOG_OVERHEAD}")
        expected = _int32(data, at + LOG_OVERHEAD) & 0xFFFFFFFF
        if crc32(data[at + _MAGIC_AT : end]) != expected:
            raise MalformedMessagesError("the CRC of a message does not match")
        attributes: i64 = data[at + _MAGIC_AT + 1]
        at += _MAGIC_AT + 2
        timestamp: i64 = -1
        if magic == 1:
            timestamp = (_int32(data, at) << 32) | (_int32(data, at + 4) & 0xFFFFFFFF)
            at += 8
        key_length = _int32(data, at)
        key_start = at + 4
        if key_length < 0:
            key_length = -1
            at = key_start
        else:
            at = key_start + key_length
        if end - at < 4:
            raise MalformedMessagesError("the key of a message exceeds its size")
        value_length = _int32(data, at)
        value_start = at + 4
        if value_length < 0:
            value_length = -1
            at = value_start
        else:
            at = value_start + value_length
        if at != end:
            raise MalformedMessagesError("the fields of a message do not match its size")
        if attributes & _CODEC_MASK:
            self._note_wrapper(magic, attributes, timestamp)
            self.value_start = value_start
            self.value_end = -1 if value_length < 0 else end
            return
        if self._inner_magic != _NO_MAGIC and magic != self._inner_magic:
            raise MalformedMessagesError("another format inside a wrapper")
        delta = self._timestamp_delta(timestamp)
        index = self.record_count
        self.record_count = index + 1
        record_size = (
            2  # the attributes, and no headers
            + _varint_size(delta)
            + _varint_size(index)
            + _varint_size(key_length)
            + _varint_size(value_length)
        )
        if key_length > 0:
            record_size += key_length
        if value_length > 0:
            record_size += value_length
        _append_varint(parts, record_size)
        parts.append(_BYTES[0])
        _append_varint(parts, delta)
        _append_varint(parts, index)
        _append_varint(parts, key_length)
        if key_length > 0:
            parts.append(data[key_start : key_start + key_length])
        _append_varint(parts, value_length)
        if value_length > 0:
            parts.append(data[value_start:end])
        parts.append(_BYTES[0])

    def _note_wrapper(self, magic: i64, attributes: i64, timestamp: i64) -> None:
        if self._inner_magic != _NO_MAGIC:
            raise MalformedMessagesError("a compressed message inside a wrapper")
        self.is_at_wrapper = True
        self.magic = magic
        self.codec = attributes & _CODEC_MASK
        self._timestamp = timestamp
        self._is_log_append_time = magic == 1 and attributes & _LOG_APPEND_TIME != 0

    def _timestamp_delta(self, timestamp: i64) -> i64:
        """From the first timestamp to this one, or to its wrapper's."""
        if self._replaces_timestamp:
            timestamp = self._wrapper_timestamp
        if self.record_count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
            return 0
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        base = self.base_timestamp
        # So that no difference has more than 64 bits, which would wrap where this is compiled.
        if base < 0:
            if timestamp > _INT64_MAX + base:
                raise MalformedMessagesError("the timestamps are too far apart")
        elif timestamp < _INT64_MIN + base:
            raise MalformedMessagesError("the timestamps are too far apart")
        return timestamp - base


def _int32(data: bytes, at: i64) -> i64:
    """A signed big-endian 32-bit number."""
    byte0: i64 = data[at]
    byte1: i64 = data[at + 1]
    byte2: i64 = data[at + 2]
    byte3: i64 = data[at + 3]
    value = byte0 << 24 | byte1 << 16 | byte2 << 8 | byte3
    return value - 0x100000000 if byte0 >= 128 else value


def _varint_size(value: i64) -> i64:
    # Zigzag. The sign of a compiled number fills all 64 bits, hence the mask below.
    rest = (value << 1) ^ (value >> 63)
    size: i64 = 1
    while rest & ~127:
        rest = (rest >> 7) & 0x1FFFFFFFFFFFFFF
        size += 1
    return size


def _append_varint(parts: list[bytes], value: i64) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest & ~127:
        parts.append(_BYTES[rest & 127 | 128])
        rest = (rest >> 7) & 0x1FFFFFFFFFFFFFF
    parts.append(_BYTES[rest])
