"""Message sets of formats 0 and 1, before Kafka 0.11.

The log has format 2 only: records of Produce 0 to 2 are up-converted before the append
(up_conversion.py), and those of Fetch 0 to 3 down-converted before the response, in slices.
Malformed bytes raise ProtocolError and nothing else.

A message, big-endian:

     0 offset     int64     17 attributes int8
     8 size       int32     18 timestamp  int64   (format 1 only)
    12 CRC-32     uint32       key        int32 length, bytes
    16 magic      int8         value      int32 length, bytes

Compressed messages are the value of a wrapper message, whose offset is that of the last inner
message. The inner offsets are absolute in format 0 and relative to the first in format 1 (KIP-31).
"""

from collections.abc import Iterable
from functools import partial
from struct import Struct
from typing import Final
from zlib import crc32

from odradek.protocol.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    BatchHeader,
    Record,
    compression_of,
    decompress_records,
    iter_batches,
    records_in,
)
from odradek.protocol.sliced_work import SlicedWork

_OFFSET_AND_SIZE = Struct(">qi")
_CRC = Struct(">I")
_MAGIC_AND_ATTRIBUTES = Struct(">bb")
_INT32 = Struct(">i")
_INT64 = Struct(">q")

_MESSAGE_OVERHEAD: Final = 34
"""Bytes of a message of format 1 beside key and value."""
_RECORDS_PER_SLICE: Final = 200
_BATCHES_PER_SLICE: Final = 100


def down_convert(
    buffers: Iterable[Bytes],
    magic: int,
    first_offset: int,
    *,
    bytes_max: int,
    limit: int = DECOMPRESSED_BYTES_MAX,
) -> SlicedWork[bytes]:
    """Batches of format 2 as one message set of format `magic` (0 or 1), up to about `bytes_max`
    uncompressed bytes, but at least one message.

    Each buffer has whole batches. Control batches, headers, (in format 0) timestamps, and records
    below `first_offset` are left out. Each compressed batch becomes one wrapper. Raises
    ProtocolError, and ApiError UNSUPPORTED_COMPRESSION_TYPE for zstd, which clients of these
    formats cannot read (KIP-110), unless messages precede it.
    """
    assert magic in (0, 1)
    out: list[bytes] = []
    left = bytes_max
    for buffer in buffers:
        view = memoryview(buffer)
        for count, (start, header) in enumerate(iter_batches(view), 1):
            if count % _BATCHES_PER_SLICE == 0:
                yield None
            if header.is_control or header.next_offset <= first_offset:
                continue
            codec = compression_of(header.attributes)
            if codec is Codec.ZSTD:
                if out:
                    return b"".join(out)
                raise ApiError(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                    "The batch is compressed with zstd. Use Fetch version 10 or newer.",
                )
            batch = view[start:]
            if codec is Codec.NONE:
                data = decompress_records(batch, header, limit=limit)
            else:
                data = yield from _unfold(batch, header, limit)
            records, size = yield from _records_from(data, header, first_offset, left)
            type_flag = LOG_APPEND_TIME if header.is_log_append_time else 0
            if codec is Codec.NONE:
                out += yield from _messages(records, magic, type_flag, 0)
            else:
                out += yield from _wrap(records, magic, type_flag, codec)
            left -= size
            if left <= 0:
                return b"".join(out)
        yield None
    return b"".join(out)


def _unfold(batch: Bytes, header: BatchHeader, limit: int) -> SlicedWork[bytes]:
    def decompress_batch() -> bytes | None:
        try:
            return decompress_records(batch, header, limit=limit)
        except ProtocolError:
            return None

    data = yield decompress_batch
    if data is None:
        raise ProtocolError("the records of a batch cannot be decompressed")
    return data


def _records_from(
    data: bytes, header: BatchHeader, first_offset: int, bytes_max: int
) -> SlicedWork[tuple[list[Record], int]]:
    """The records from `first_offset` on, up to `bytes_max`, and their size as messages."""
    records: list[Record] = []
    size = 0
    for count, record in enumerate(records_in(data, header), 1):
        if record.offset >= first_offset:
            records.append(record)
            size += _MESSAGE_OVERHEAD + len(record.key or b"") + len(record.value or b"")
            if size >= bytes_max:
                break
        if count % _RECORDS_PER_SLICE == 0:
            yield None
    return records, size


def _messages(
    records: list[Record], magic: int, type_flag: int, base_offset: int
) -> SlicedWork[list[bytes]]:
    messages = []
    for count, record in enumerate(records, 1):
        messages.append(_message(record.offset - base_offset, magic, type_flag, record))
        if count % _RECORDS_PER_SLICE == 0:
            yield None
    return messages


def _wrap(
    records: list[Record], magic: int, type_flag: int, codec: Codec
) -> SlicedWork[list[bytes]]:
    """A wrapper of the records; nothing for a batch that compaction emptied."""
    if not records:
        return []
    base_offset = records[0].offset if magic == 1 else 0
    plain = b"".join((yield from _messages(records, magic, type_flag, base_offset)))
    timestamp = max(record.timestamp for record in records)
    value = yield partial(compress, codec, plain, is_format_0=magic == 0)
    wrapper = Record(records[-1].offset, timestamp, None, value)
    return [_message(wrapper.offset, magic, type_flag | codec, wrapper)]


def _message(offset: int, magic: int, attributes: int, record: Record) -> bytes:
    body = b"".join(
        (
            _MAGIC_AND_ATTRIBUTES.pack(
                magic, attributes if magic == 1 else attributes & CODEC_MASK
            ),
            _INT64.pack(record.timestamp) if magic == 1 else b"",
            _INT32.pack(-1) if record.key is None else _INT32.pack(len(record.key)),
            record.key or b"",
            _INT32.pack(-1) if record.value is None else _INT32.pack(len(record.value)),
            record.value or b"",
        )
    )
    return _OFFSET_AND_SIZE.pack(offset, len(body) + 4) + _CRC.pack(crc32(body)) + body
