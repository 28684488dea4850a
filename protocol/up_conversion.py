"""Message sets of formats 0 and 1 become a batch of format 2 (Produce 0 to 2), in steps.

A set of 100 KB can hold a million messages. So the conversion yields after a few hundred messages,
and holds neither all messages nor all decompressed bytes of a wrapper.
Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from odradek.protocol.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.legacy_records import LOG_OVERHEAD, Message, iter_shallow_messages
from odradek.protocol.piecewise_compression import decompress_pieces
from odradek.protocol.records import (
    CODEC_MASK,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    compression_of,
    encode_batch,
    write_record,
)
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

MESSAGES_PER_STEP: Final = 250
"""About a millisecond."""

_SCANNED_PER_STEP: Final = 4_000
_SIZE = Struct(">i")
_SIZE_AT: Final = 8
_ATTRIBUTES_AT: Final = MAGIC_AT + 1


class UpConversion:
    """The conversion of one set: first `find_codec`, then `records`, then `header`.

    All wrappers together decompress to at most `limit` bytes.
    """

    def __init__(self, view: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX) -> None:
        self._view = memoryview(view)
        self._room = limit
        self.codec = Codec.NONE
        """Of the last wrapper of the set, which the batch gets."""
        self.largest_message_bytes = 0
        """The largest message or wrapper, as it is sent."""
        self.record_count = 0
        """The messages so far."""
        self._base_timestamp = self._max_timestamp = NO_TIMESTAMP

    def find_codec(self) -> Iterator[None]:
        """Set `codec` and `largest_message_bytes`. Yields after some thousand messages."""
        view = self._view
        at = seen = 0
        attributes = 0
        # Whether the messages are whole and right is seen when they are read.
        while at + _ATTRIBUTES_AT < len(view):
            attributes = view[at + _ATTRIBUTES_AT]
            size: int = _SIZE.unpack_from(view, at + _SIZE_AT)[0]
            if size < 0:
                break
            at += LOG_OVERHEAD + size
            self.largest_message_bytes = max(self.largest_message_bytes, LOG_OVERHEAD + size)
            seen += 1
            if seen % _SCANNED_PER_STEP == 0:
                yield
        self.codec = compression_of(attributes & CODEC_MASK)

    def records(self) -> Iterator[bytes]:
        """The records of the batch, uncompressed, some hundred at a time."""
        out = bytearray()
        index = 0
        for message in self._messages():
            timestamp = message.timestamp
            if index == 0:
                self._base_timestamp = self._max_timestamp = timestamp
            elif timestamp > self._max_timestamp:
                self._max_timestamp = timestamp
            delta_ms = timestamp - self._base_timestamp
            write_record(out, delta_ms, index, message.key, message.value, ())
            index += 1
            if index % MESSAGES_PER_STEP == 0:
                self.record_count = index
                yield bytes(out)
                out.clear()
        self.record_count = index
        if out:
            yield bytes(out)

    def header(self) -> BatchHeader:
        """The header of the batch, after all records. Its length and CRC are not set."""
        return BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=NO_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=self.codec,
            last_offset_delta=max(self.record_count - 1, 0),
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=self.record_count,
        )

    def _messages(self) -> Iterator[Message]:
        for message in iter_shallow_messages(self._view):
            if message.codec is Codec.NONE:
                yield message
            else:
                yield from self._inner_messages(message)

    def _inner_messages(self, wrapper: Message) -> Iterator[Message]:
        """The messages in a wrapper. Their offsets do not matter."""
        if wrapper.value is None:
            raise ProtocolError("a compressed message without a value")
        rest = bytearray()
        needed = LOG_OVERHEAD
        count = 0
        pieces = decompress_pieces(
            wrapper.codec, wrapper.value, limit=self._room, is_format_0=wrapper.magic == 0
        )
        for piece in pieces:
            self._room -= len(piece)
            rest += piece
            if len(rest) < needed:
                continue
            end, needed = _whole_messages(rest)
            for message in iter_shallow_messages(bytes(rest[:end])):
                count += 1
                if message.codec is not Codec.NONE or message.magic != wrapper.magic:
                    raise ProtocolError("a compressed message or another format inside a wrapper")
                if wrapper.is_log_append_time:
                    yield message._replace(timestamp=wrapper.timestamp)
                else:
                    yield message
            del rest[:end]
        if rest:
            raise ProtocolError("truncated message")
        if not count:
            raise ProtocolError("a compressed message contains no message")


def _whole_messages(data: bytearray) -> tuple[int, int]:
    """The end of the messages that are whole, and how many bytes the next one needs from there."""
    at = 0
    while at + LOG_OVERHEAD <= len(data):
        size: int = _SIZE.unpack_from(data, at + _SIZE_AT)[0]
        if size < 0:
            raise ProtocolError(f"invalid message size {size}")
        if at + LOG_OVERHEAD + size > len(data):
            return at, LOG_OVERHEAD + size
        at += LOG_OVERHEAD + size
    return at, LOG_OVERHEAD


def up_convert(view: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX) -> list[bytes]:
    """The set as one batch of format 2 from offset 0, or no batch if it is empty."""
    conversion = UpConversion(view, limit=limit)
    for _ in conversion.find_codec():
        pass
    body = compress(conversion.codec, b"".join(conversion.records()))
    return [bytes(encode_batch(conversion.header(), body))] if conversion.record_count else []
