"""Record batches of message format 2, as views over bytes.

A batch is a header of 61 bytes and the records, which are compressed together. The produce and
fetch paths read only the header. The CRC covers everything from the attributes on, so base offset
and leader epoch can be rewritten in place.

Byte layout, big-endian (Kafka's documentation, "Record Batch"):

     0 base offset            int64      21 attributes        int16   (CRC from here on)
     8 batch length           int32      23 last offset delta int32
    12 partition leader epoch int32      27 base timestamp    int64
    16 magic                  int8       35 max timestamp     int64
    17 CRC-32C                uint32     43 producer id       int64
                                         51 producer epoch    int16
                                         53 base sequence     int32
                                         57 record count      int32
                                         61 records

Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress, decompress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

HEADER_BYTES: Final = 61
MAGIC: Final = 2

BATCH_LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43

# The bytes before those that the batch length counts: base offset and batch length.
LENGTH_OVERHEAD: Final = 12

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_LENGTH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_unpack_header = _HEADER.unpack_from
_unpack_length = _LENGTH.unpack_from
_unpack_crc = _CRC.unpack_from
_unpack_span = Struct(">qi9xhi16xq").unpack_from
"""Base offset, batch length, attributes, last offset delta and producer id."""
_unpack_producer = Struct(">qh").unpack_from
_pack_offset = _OFFSET.pack_into
_new_tuple = tuple.__new__

_INT64: Final = 1 << 63

ZIGZAG: Final = tuple((byte >> 1) ^ -(byte & 1) for byte in range(128))
"""The values of the varints of one byte."""

Header: TypeAlias = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    """The fields of the header in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The offset of the last record, also of one that compaction removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record: the batch's exclusive end."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_log_append_time(self) -> bool:
        """Whether the max timestamp is the broker's time and applies to every record."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction, markers included."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker instead of a client's records."""
        return self.attributes & CONTROL != 0


class BatchSpan(NamedTuple):
    """A batch with the offsets [start, end), at the bytes [at, at + size) of a view."""

    start: int
    end: int
    at: int
    size: int
    attributes: int
    producer_id: int

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker."""
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL != 0


class Record(NamedTuple):
    """One record with its absolute offset and timestamp. Header keys can repeat."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def unpack_header(view: Bytes, at: int = 0) -> BatchHeader:
    """The header at `at`, unchecked: for batches that are validated already or by the caller."""
    return _new_tuple(BatchHeader, _unpack_header(view, at))


def read_header(view: Bytes, at: int = 0) -> BatchHeader:
    """The header of the batch at `at`, which must be whole and of format 2.

    The CRC and the records are not checked.
    """
    if at < 0 or len(view) - at < HEADER_BYTES:
        raise ProtocolError(f"{len(view) - at} bytes are too few for a record batch")
    header = unpack_header(view, at)
    if header.magic != MAGIC:
        raise ProtocolError(
            f"unsupported message format {header.magic}; a batch of format 2 is required"
        )
    length = header.batch_length
    if not HEADER_BYTES - LENGTH_OVERHEAD <= length <= len(view) - at - LENGTH_OVERHEAD:
        raise ProtocolError(f"batch length {length} does not match {len(view) - at} bytes")
    return header


def batch_size(view: Bytes, at: int = 0) -> int:
    """The size in bytes of the batch at `at`, from its batch length. It may exceed the view."""
    if at < 0 or len(view) - at < LENGTH_OVERHEAD:
        raise ProtocolError(f"{len(view) - at} bytes are too few for a record batch")
    length: int = _unpack_length(view, at + BATCH_LENGTH_AT)[0]
    if length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise ProtocolError(f"invalid batch length {length}")
    return length + LENGTH_OVERHEAD


def producer_of(view: Bytes, at: int = 0) -> tuple[int, int]:
    """Producer id and epoch of the batch at `at`, of which HEADER_BYTES must be there."""
    producer: tuple[int, int] = _unpack_producer(view, at + PRODUCER_ID_AT)
    return producer


def is_crc_valid(view: memoryview, at: int, size: int) -> bool:
    """Whether the CRC-32C of the batch of `size` bytes at `at` is right; copies nothing."""
    expected: int = _unpack_crc(view, at + CRC_AT)[0]
    return crc32c(view[at + ATTRIBUTES_AT : at + size]) == expected


def iter_batches(view: Bytes) -> Iterator[tuple[int, BatchHeader]]:
    """The position and the header of each batch; the last one must be whole too."""
    at = 0
    end = len(view)
    while at < end:
        header = read_header(view, at)
        yield at, header
        at += header.batch_length + LENGTH_OVERHEAD


def spans_of(view: Bytes) -> list[BatchSpan]:
    """All batches of a view that a store has validated. Twice as fast as `iter_batches`."""
    spans: list[BatchSpan] = []
    at = 0
    size_of_view = len(view)
    while at < size_of_view:
        if at + HEADER_BYTES > size_of_view:
            raise ProtocolError("truncated batch header")
        start, length, attributes, last_delta, producer_id = _unpack_span(view, at)
        size = length + LENGTH_OVERHEAD
        if length <= 0 or at + size > size_of_view:
            raise ProtocolError(f"batch size {size} exceeds the {size_of_view - at} bytes left")
        spans.append(BatchSpan(start, start + last_delta + 1, at, size, attributes, producer_id))
        at += size
    return spans


def set_log_append_time(view: memoryview, at: int, timestamp_ms: int) -> None:
    """Set the timestamp of all records of the batch to the broker's time, and the CRC.

    The timestamp deltas of the records stay; with this attribute readers ignore them.
    """
    size = batch_size(view, at)
    attributes: int = _ATTRIBUTES.unpack_from(view, at + ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(view, at + ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _pack_offset(view, at + MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(view, at + CRC_AT, crc32c(view[at + ATTRIBUTES_AT : at + size]))


def set_create_time(view: memoryview, at: int, max_timestamp_ms: int) -> None:
    """Set the max timestamp of the batch, whose records have the timestamps of their producer, and
    the CRC."""
    size = batch_size(view, at)
    attributes: int = _ATTRIBUTES.unpack_from(view, at + ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(view, at + ATTRIBUTES_AT, attributes & ~LOG_APPEND_TIME)
    _pack_offset(view, at + MAX_TIMESTAMP_AT, max_timestamp_ms)
    _CRC.pack_into(view, at + CRC_AT, crc32c(view[at + ATTRIBUTES_AT : at + size]))


def compression_of(attributes: int) -> Codec:
    """The codec of a batch; ProtocolError for the three unknown numbers."""
    number = attributes & CODEC_MASK
    if number > Codec.ZSTD:
        raise ProtocolError(f"unknown compression type {number}")
    return Codec(number)


def iter_records(
    batch: Bytes, header: BatchHeader | None = None, *, limit: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """The records of the batch that `batch` starts with, decompressed to at most `limit` bytes.

    The CRC is not checked. ProtocolError can be raised after some records.
    """
    header = header or read_header(batch)
    return records_in(decompress_records(batch, header, limit=limit), header)


def records_in(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records in the uncompressed bytes of a batch, as `iter_records`."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    offset_delta_max = header.last_offset_delta
    at = 0
    # Varints of one byte, which are nearly all, are read inline: calls would double the time.
    for _ in range(header.record_count):
        try:
            end, at = _read_record_end(data, at)
            if (delta_ms := data[at]) < 128:
                delta_ms, at = ZIGZAG[delta_ms], at + 1
            else:
                delta_ms, at = read_varint(data, at)
            if (offset_delta := data[at]) < 128:
                offset_delta, at = ZIGZAG[offset_delta], at + 1
            else:
                offset_delta, at = read_varint(data, at)
            if (size := data[at]) < 128:
                size, at = ZIGZAG[size], at + 1
            else:
                size, at = read_varint(data, at)
            if size < 0:
                key = None
            else:
                key = data[at : at + size]
                at += size
            if (size := data[at]) < 128:
                size, at = ZIGZAG[size], at + 1
            else:
                size, at = read_varint(data, at)
            if size < 0:
                value = None
            else:
                value = data[at : at + size]
                at += size
            headers: tuple[Header, ...] = ()
            if data[at]:
                headers, at = _read_headers(data, at, end)
            else:
                at += 1
        except IndexError:
            raise ProtocolError("truncated record") from None
        # This also finds a field beyond the end, and a wrong length.
        if at != end:
            raise ProtocolError("the fields of a record do not match its length")
        timestamp = base_timestamp + delta_ms if append_time is None else append_time
        if not (0 <= offset_delta <= offset_delta_max and -_INT64 <= timestamp < _INT64):
            raise ProtocolError(f"invalid offset delta {offset_delta} or timestamp {timestamp}")
        yield _new_tuple(Record, (base_offset + offset_delta, timestamp, key, value, headers))
    if at != len(data):
        raise ProtocolError(f"{len(data) - at} bytes follow the last record")


def iter_timestamps(
    batch: Bytes, header: BatchHeader | None = None, *, limit: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record; keys, values and headers are not read."""
    header = header or read_header(batch)
    return timestamps_in(decompress_records(batch, header, limit=limit), header)


def timestamps_in(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """The same of the uncompressed records of a batch."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    offset_delta_max = header.last_offset_delta
    at = 0
    for _ in range(header.record_count):
        try:
            end, at = _read_record_end(data, at)
            delta_ms, at = read_varint(data, at)
            offset_delta, at = read_varint(data, at)
        except IndexError:
            raise ProtocolError("truncated record") from None
        if at >= end:
            raise ProtocolError("the fields of a record do not match its length")
        at = end
        timestamp = base_timestamp + delta_ms if append_time is None else append_time
        if not (0 <= offset_delta <= offset_delta_max and -_INT64 <= timestamp < _INT64):
            raise ProtocolError(f"invalid offset delta {offset_delta} or timestamp {timestamp}")
        yield base_offset + offset_delta, timestamp
    if at != len(data):
        raise ProtocolError(f"{len(data) - at} bytes follow the last record")


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    max_timestamp: int | None = None,
    partition_leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """One batch. Offsets must ascend from `base_offset`, with or without gaps.

    `last_offset` (inclusive) and `max_timestamp` default to those of the records. `attributes` are
    flags besides the codec. Raises ValueError if the records do not fit the format.
    """
    payload = bytearray()
    base_timestamp = NO_TIMESTAMP
    latest = NO_TIMESTAMP
    count = 0
    delta = -1
    for record in records:
        offset, timestamp, key, value, headers = record
        if count == 0:
            base_timestamp = latest = timestamp
        elif timestamp > latest:
            latest = timestamp
        if offset - base_offset <= delta:
            raise ValueError(f"offset {offset} in a batch from {base_offset} is not ascending")
        delta = offset - base_offset
        count += 1
        write_record(payload, timestamp - base_timestamp, delta, key, value, headers)
    if last_offset is not None:
        if last_offset - base_offset < delta:
            raise ValueError(f"last offset {last_offset} is before that of the last record")
        delta = last_offset - base_offset
    if delta > 0x7FFFFFFF:
        raise ValueError(f"a batch cannot span {delta} offsets")
    body = payload if codec is Codec.NONE else compress(codec, payload)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=partition_leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=(attributes & ~CODEC_MASK) | codec,
        last_offset_delta=max(delta, 0),
        base_timestamp=base_timestamp,
        max_timestamp=latest if max_timestamp is None else max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return bytes(encode_batch(header, body))


def encode_batch(header: BatchHeader, body: Bytes) -> bytearray:
    """The batch of a header and a body, which is compressed already. Length and CRC are computed;
    those of the header are ignored."""
    batch = bytearray(HEADER_BYTES)
    _HEADER.pack_into(batch, 0, *header)
    _LENGTH.pack_into(batch, BATCH_LENGTH_AT, HEADER_BYTES - LENGTH_OVERHEAD + len(body))
    batch += body
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch


def decompress_records(
    batch: Bytes, header: BatchHeader, *, limit: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The uncompressed bytes of the records, at most `limit`. They are copied, because indexing
    `bytes` takes half the time of indexing a memoryview."""
    end = LENGTH_OVERHEAD + header.batch_length
    if not HEADER_BYTES <= end <= len(batch):
        raise ProtocolError(f"batch length {header.batch_length} does not match {len(batch)} bytes")
    if header.record_count < 0:
        raise ProtocolError(f"invalid record count {header.record_count}")
    body = memoryview(batch)[HEADER_BYTES:end]
    codec = compression_of(header.attributes)
    if codec is Codec.NONE:
        return bytes(body)
    return decompress(codec, body, limit=limit)


def _read_record_end(data: bytes, at: int) -> tuple[int, int]:
    """The end of the record at `at`, within the data, and the position of its timestamp delta."""
    if (size := data[at]) < 128:
        size, at = ZIGZAG[size], at + 1
    else:
        size, at = read_varint(data, at)
    # Attributes (unused), two deltas, two lengths and a header count.
    if not 6 <= size <= len(data) - at:
        raise ProtocolError(f"record size {size} exceeds the {len(data) - at} bytes left")
    return at + size, at + 1


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    if (size := data[at]) < 128:
        size, at = ZIGZAG[size], at + 1
    else:
        size, at = read_varint(data, at)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise ProtocolError(
            f"a field of {size} bytes exceeds the {end - at} bytes left in the record"
        )
    return data[at:stop], stop


def _read_headers(data: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, at = read_varint(data, at)
    # A header is two bytes at least.
    if not 0 <= count <= (end - at) // 2:
        raise ProtocolError(f"{count} headers exceed the {end - at} bytes left in the record")
    headers: list[Header] = []
    for _ in range(count):
        key, at = _read_bytes(data, at, end)
        if key is None:
            raise ProtocolError("a header without a key")
        value, at = _read_bytes(data, at, end)
        # Kafka checks nowhere that a key is UTF-8, and its client reads it like this.
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers), at


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A zigzag varint of at most ten bytes, and the position behind it. IndexError if it is cut."""
    result = data[at]
    if result < 128:
        return (result >> 1) ^ -(result & 1), at + 1
    byte = data[at + 1]
    result = (result & 0x7F) | (byte & 0x7F) << 7
    if byte < 128:
        return (result >> 1) ^ -(result & 1), at + 2
    at += 2
    for shift in range(14, 70, 7):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 128:
            return (result >> 1) ^ -(result & 1), at
    raise ProtocolError("a varint exceeds ten bytes")


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    if 0 <= value < 64:
        out.append(value << 1)
        return
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 127:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # the zigzag varint of -1
    else:
        size = len(value)
        if size < 64:
            out.append(size << 1)
        else:
            write_varint(out, size)
        out += value


def write_record(
    out: bytearray,
    delta_ms: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> None:
    """Append one record. The deltas are to the base timestamp and base offset of its batch."""
    body = bytearray(1)  # attributes: unused
    write_varint(body, delta_ms)
    write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    write_varint(body, len(headers))
    for name, header_value in headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, header_value)
    write_varint(out, len(body))
    out += body
