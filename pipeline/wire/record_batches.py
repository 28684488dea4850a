"""The record batches of a Fetch answer: their headers, checksums, and records as they were before
compression (Kafka's documentation, "Record Batch").

     0 base offset            int64      21 attributes        int16   (CRC from here on)
     8 batch length           int32      23 last offset delta int32
    12 partition leader epoch int32      27 base timestamp    int64
    16 magic                  int8       35 max timestamp     int64
    17 CRC-32C                uint32     43 producer id       int64
                                         51 producer epoch    int16
                                         53 base sequence     int32
                                         57 record count      int32
                                         61 records

What a batch claims is believed only as far as its bytes go, and as DECOMPRESSED_BYTES_MAX.
"""

import zlib
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from types import ModuleType
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from odradek.pipeline.errors import PipelineError

HEADER_BYTES: Final = 61
DECOMPRESSED_BYTES_MAX: Final = 512 * 1024 * 1024
"""No batch has more once it is decompressed."""

_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH_OVERHEAD: Final = 12
"""Base offset and batch length, which the batch length does not count."""
_MAGIC_AT: Final = 16
_CRC_FROM: Final = 21
_MAGIC: Final = 2

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_GUESS_FACTOR: Final = 8
_GUESS_BYTES_MIN: Final = 256 * 1024
_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
"""Of snappy-java's stream: then two versions (int32), and blocks, each behind its int32 length."""
_XERIAL_HEADER_BYTES: Final = 16
_SNAPPY_RATIO_MAX: Final = 22
"""Three bytes of snappy become 64 at most."""
_INT32 = Struct(">i")
_ABORT_MARKER: Final = 0


class CorruptBatch(PipelineError):
    """A batch whose bytes are not those that were written."""


class FetchedBatch(NamedTuple):
    """A batch's header, and where the batch lies in its answer: at the bytes [at, end)."""

    at: int
    end: int
    base_offset: int
    next_offset: int
    """After its last offset, also if compaction removed that record."""
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    record_count: int
    crc: int

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the broker's time, which is `max_timestamp`."""
        return self.attributes & _LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether it is the end of a transaction instead of records."""
        return self.attributes & _CONTROL != 0

    @property
    def is_whole(self) -> bool:
        """Whether every offset from the base to the last one still has its record."""
        return self.record_count == self.next_offset - self.base_offset


def batches_between(data: bytes, start: int, end: int) -> list[FetchedBatch]:
    """The batches in the bytes [start, end); the last one is left out if it is cut.

    Raises CorruptBatch for bytes that are no batches, and PipelineError for message formats of
    before Kafka 0.11.
    """
    found = []
    at = start
    while at + _MAGIC_AT < end:
        if data[at + _MAGIC_AT] != _MAGIC:
            raise PipelineError(
                f"A record is in message format {data[at + _MAGIC_AT]}. Only format 2, of Kafka "
                "0.11 and later, can be read; copy the topic into a new one with Kafka 3."
            )
        if at + HEADER_BYTES > end:
            break
        (base, length, _, _, crc, attributes, last_delta, first_ms, max_ms, producer) = (
            _HEADER.unpack_from(data, at)[:10]
        )
        batch_end = at + _LENGTH_OVERHEAD + length
        if length < HEADER_BYTES - _LENGTH_OVERHEAD or last_delta < 0 or base < 0:
            raise CorruptBatch(f"The batch at offset {base} has an impossible header.")
        if batch_end > end:
            break
        (count,) = _INT32.unpack_from(data, at + HEADER_BYTES - 4)
        found.append(
            FetchedBatch(
                at,
                batch_end,
                base,
                base + last_delta + 1,
                attributes,
                first_ms,
                max_ms,
                producer,
                count,
                crc,
            )
        )
        at = batch_end
    return found


def check_crc(data: bytes, batch: FetchedBatch) -> None:
    """Raises CorruptBatch if a bit of the batch is not as it was written."""
    with memoryview(data) as view, view[batch.at + _CRC_FROM : batch.end] as checked:
        if crc32c(checked) != batch.crc:
            raise CorruptBatch(f"The checksum of the batch at offset {batch.base_offset} is wrong.")


def is_abort_marker(data: bytes, batch: FetchedBatch) -> bool:
    """Whether a control batch ends an aborted transaction.

    Its one record has a key of version and type (int16 each). Everything before it is a varint.
    """
    at = batch.at + HEADER_BYTES
    try:
        at = _after_varint(data, at) + 1  # the length, and the attributes
        for _ in range(3):  # timestamp delta, offset delta, length of the key
            at = _after_varint(data, at)
        return data[at + 2] << 8 | data[at + 3] == _ABORT_MARKER
    except IndexError:
        raise CorruptBatch(f"The control record at offset {batch.base_offset} is cut.") from None


def _after_varint(data: bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1


class Decompressor:
    """Decompresses the records of batches. Keeps a buffer, as batches are of similar sizes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def records_of(self, data: bytes, batch: FetchedBatch) -> tuple[bytes, int, int]:
        """The bytes in which the batch's records are, and where: [start, end). Those of a batch
        that is not compressed are those of the answer."""
        codec = batch.attributes & _CODEC_MASK
        start = batch.at + HEADER_BYTES
        if codec == 0 or start == batch.end:
            return data, start, batch.end
        if codec >= len(_CODECS):
            raise CorruptBatch(
                f"The batch at offset {batch.base_offset} has an unknown compression ({codec})."
            )
        with memoryview(data) as view, view[start : batch.end] as compressed:
            try:
                records = self._decompress(_CODECS[codec], compressed)
            except (cramjam.DecompressionError, zlib.error, ValueError) as error:
                raise CorruptBatch(
                    f"The batch at offset {batch.base_offset} cannot be decompressed "
                    f"({_CODECS[codec]}): {error}."
                ) from None
        return records, 0, len(records)

    def _decompress(self, codec: str, compressed: memoryview) -> bytes:
        if codec == "gzip":
            return _gunzip(compressed)
        if codec == "snappy":
            return _decompress_snappy(compressed)
        return self._decompress_into(cramjam.lz4 if codec == "lz4" else cramjam.zstd, compressed)

    def _decompress_into(self, codec: ModuleType, compressed: memoryview) -> bytes:
        # cramjam says the same of corrupt bytes and of a buffer that is too small. So what fails
        # is tried again with the largest buffer, whose pages exist once they are written.
        guess = max(_GUESS_BYTES_MIN, _GUESS_FACTOR * len(compressed))
        if len(self._buffer) < guess <= DECOMPRESSED_BYTES_MAX:
            self._buffer = bytearray(guess)
        try:
            size = codec.decompress_into(compressed, self._buffer)
        except cramjam.DecompressionError:
            with mmap(-1, DECOMPRESSED_BYTES_MAX, flags=MAP_PRIVATE | MAP_ANONYMOUS) as pages:
                size = codec.decompress_into(compressed, pages)
                if size <= _BUFFER_BYTES_MAX:
                    self._buffer = bytearray(2 * size)  # the next batch is like this one
                return pages[:size]
        return bytes(memoryview(self._buffer)[:size])


def _gunzip(compressed: memoryview) -> bytes:
    """All members of the stream. zlib is faster than cramjam's gzip, and stops at the limit."""
    parts = []
    room = DECOMPRESSED_BYTES_MAX
    rest: bytes | memoryview = compressed
    while rest:
        member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(rest, room + 1))
        room -= len(parts[-1])
        if room < 0:
            raise ValueError(f"it is larger than {DECOMPRESSED_BYTES_MAX} bytes")
        if not member.eof:
            raise ValueError("it is cut")
        rest = member.unused_data
    return b"".join(parts)


def _decompress_snappy(compressed: memoryview) -> bytes:
    """Of snappy-java's stream, or one block as other clients write it."""
    if bytes(compressed[:8]) != _XERIAL_MAGIC:
        return _decompress_block(compressed, DECOMPRESSED_BYTES_MAX)
    parts = []
    room = DECOMPRESSED_BYTES_MAX
    at = _XERIAL_HEADER_BYTES
    while at < len(compressed):
        if at + 4 > len(compressed):
            raise ValueError("it is cut")
        (size,) = _INT32.unpack_from(compressed, at)
        at += 4
        if not 0 < size <= len(compressed) - at:
            raise ValueError("it is cut")
        parts.append(_decompress_block(compressed[at : at + size], room))
        room -= len(parts[-1])
        at += size
    return b"".join(parts)


def _decompress_block(block: memoryview, room: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > min(room, _SNAPPY_RATIO_MAX * len(block)):
        raise ValueError(f"a block of {len(block)} bytes claims to have {claimed}")
    return bytes(cramjam.snappy.decompress_raw(block))
