"""Message sets of formats 0 and 1 become a batch of format 2 (Produce 0 to 2), in steps.

A set of 100 KB can hold a million messages. So the conversion yields after some hundred messages
(message_converter.py), and holds neither all messages nor all decompressed bytes of a wrapper.
Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from odradek.protocol.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.message_converter import (
    LOG_OVERHEAD,
    MalformedMessagesError,
    MessageConverter,
)
from odradek.protocol.piecewise_compression import (
    PIECE_BYTES,
    decompress_pieces,
    step_bytes_max,
)
from odradek.protocol.records import (
    CODEC_MASK,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    compression_of,
    encode_batch,
)
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

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
        self._converter = MessageConverter()

    @property
    def record_count(self) -> int:
        """The messages so far."""
        return self._converter.record_count

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
        """The records of the batch, uncompressed, some hundred at a time, and b"" before a step
        that decompresses more than a piece."""
        try:
            yield from self._shallow_records()
        except MalformedMessagesError as error:
            raise ProtocolError(str(error)) from None

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
            base_timestamp=self._converter.base_timestamp,
            max_timestamp=self._converter.max_timestamp,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=self.record_count,
        )

    def _shallow_records(self) -> Iterator[bytes]:
        """Of the set itself, which is copied in parts of a piece or of one message."""
        view, converter = self._view, self._converter
        at = 0
        needed = PIECE_BYTES
        while at < len(view):
            if needed > PIECE_BYTES and needed > len(view) - at:
                raise ProtocolError("truncated message")
            data = bytes(view[at : at + max(needed, PIECE_BYTES)])
            yield from self._records_in(data)
            if not converter.position and len(data) == len(view) - at:
                raise ProtocolError("truncated message")
            at += converter.position
            needed = converter.needed

    def _records_in(self, data: bytes) -> Iterator[bytes]:
        """Up to the last whole message. The converter's `position` and `needed` are set then."""
        converter = self._converter
        at = 0
        while True:
            records = converter.convert(data, at)
            at = converter.position
            if records:
                yield records
            if converter.is_at_wrapper:
                if converter.value_end < 0:
                    raise ProtocolError("a compressed message without a value")
                value = memoryview(data)[converter.value_start : converter.value_end]
                yield from self._inner_records(value)
            elif converter.needed:
                converter.position = at
                return

    def _inner_records(self, value: memoryview) -> Iterator[bytes]:
        """Of the wrapper that the converter stopped at. The offsets inside do not matter."""
        converter = self._converter
        codec = compression_of(converter.codec)
        if codec is Codec.ZSTD:
            raise ProtocolError("zstd is not supported in message formats 0 and 1")
        is_format_0 = converter.magic == 0
        count = converter.record_count
        converter.enter_wrapper()
        if step_bytes_max(codec, value) > PIECE_BYTES:
            yield b""
        rest = bytearray()
        needed = LOG_OVERHEAD
        for piece in decompress_pieces(codec, value, limit=self._room, is_format_0=is_format_0):
            self._room -= len(piece)
            rest += piece
            if len(rest) < needed:
                continue
            yield from self._records_in(bytes(rest))
            del rest[: converter.position]
            needed = converter.needed
        if rest:
            raise ProtocolError("truncated message")
        if converter.record_count == count:
            raise ProtocolError("a compressed message contains no message")
        converter.leave_wrapper()


def up_convert(view: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX) -> list[bytes]:
    """The set as one batch of format 2 from offset 0, or no batch if it is empty."""
    conversion = UpConversion(view, limit=limit)
    for _ in conversion.find_codec():
        pass
    body = compress(conversion.codec, b"".join(conversion.records()))
    return [bytes(encode_batch(conversion.header(), body))] if conversion.record_count else []
