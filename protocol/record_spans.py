"""The positions of the records in a batch, for log compaction, which keeps some and removes others.

Kept records are copied and not decoded. Their deltas stay right, because a compacted batch keeps
its base offset, last offset, base timestamp and sequence (KIP-98). Timestamps are rewritten only
when a batch with tombstones is compacted for the first time: its base timestamp then becomes the
delete horizon, the time from which the tombstones can be removed (KIP-534, attribute bit 6).

Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from odradek.protocol.errors import ProtocolError
from odradek.protocol.piecewise_compression import StreamCompressor, decompress_pieces
from odradek.protocol.records import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    ZIGZAG,
    BatchHeader,
    compression_of,
    encode_batch,
    read_varint,
    write_varint,
)
from odradek.protocol.types import NO_TIMESTAMP

SPANS_MAX: Final = 2_000
"""As many records are taken apart at a time: about three milliseconds."""

_NULL: Final = 1  # the zigzag varint of -1


class RecordSpan(NamedTuple):
    """The record `data[start:end]` of a batch's uncompressed bytes: its attributes are at `body`,
    the fields after its timestamp delta at `rest`. A tombstone has no value."""

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_spans(data: bytes, record_count: int) -> list[RecordSpan]:
    """The positions of the records in the bytes of `decompress_records`, in order."""
    spans: list[RecordSpan] = []
    new = tuple.__new__
    at = 0
    size_of_data = len(data)
    try:
        for _ in range(record_count):
            start = at
            if (number := data[at]) < 128:
                number, at = ZIGZAG[number], at + 1
            else:
                number, at = read_varint(data, at)
            body = at
            end = at + number
            if number < 6 or end > size_of_data:
                raise ProtocolError(f"invalid record size {number} at {start} of {size_of_data}")
            at += 1  # attributes
            if (delta_ms := data[at]) < 128:
                delta_ms, at = ZIGZAG[delta_ms], at + 1
            else:
                delta_ms, at = read_varint(data, at)
            rest = at
            if (offset_delta := data[at]) < 128:
                offset_delta, at = ZIGZAG[offset_delta], at + 1
            else:
                offset_delta, at = read_varint(data, at)
            if (number := data[at]) < 128:
                number, at = ZIGZAG[number], at + 1
            else:
                number, at = read_varint(data, at)
            if number < 0:
                key = None
            else:
                key = data[at : at + number]
                at += number
            if at >= end:
                raise ProtocolError(f"the key of the record at {start} exceeds the record")
            has_value = data[at] != _NULL
            spans.append(
                new(
                    RecordSpan,
                    (start, body, rest, end, delta_ms, offset_delta, key, has_value),
                )
            )
            at = end
    except IndexError:
        raise ProtocolError("truncated record") from None
    if at != size_of_data:
        raise ProtocolError(f"{size_of_data - at} bytes follow the last record")
    return spans


def iter_record_spans(
    batch: memoryview, header: BatchHeader
) -> Iterator[tuple[bytes, list[RecordSpan]]]:
    """The records of a batch, some at a time: their spans, and the bytes that these refer to. For
    batches of any size: only what is yielded is decompressed at a time. ProtocolError can be raised
    after some records."""
    codec = compression_of(header.attributes)
    body = batch[HEADER_BYTES : LENGTH_OVERHEAD + header.batch_length]
    rest = bytearray()
    needed = seen = 0
    for piece in decompress_pieces(codec, body):
        rest += piece
        while len(rest) >= needed:
            end, count, needed = _whole_records(rest)
            if not count:
                break
            seen += count
            data = bytes(rest[:end])
            del rest[:end]
            yield data, record_spans(data, count)
    if rest or seen != header.record_count:
        raise ProtocolError(f"the batch has {seen} records and {len(rest)} bytes more")


def _whole_records(data: bytearray) -> tuple[int, int, int]:
    """The end and the number of the records that are whole, at most SPANS_MAX, and how many bytes
    the next one needs from there."""
    at = count = 0
    size = len(data)
    while count < SPANS_MAX and at < size:
        try:
            length, start = read_varint(data, at)
        except IndexError:
            return at, count, 1 if count else size + 1
        if length < 0:
            raise ProtocolError(f"invalid record size {length}")
        if start + length > size:
            return at, count, start + length - at
        at = start + length
        count += 1
    return at, count, 1


class BatchRebuild:
    """`rebuild_batch` for batches of any size: `add` what `iter_record_spans` has yielded, with the
    spans that are kept, then `finish`."""

    def __init__(self, header: BatchHeader, *, delete_horizon_ms: int | None = None) -> None:
        self._header = header
        self._horizon_ms = delete_horizon_ms
        codec = compression_of(header.attributes)
        self._compressor = StreamCompressor(codec)
        self._body = bytearray()
        self._count = 0
        self._latest: int | None = None

    def add(self, data: bytes, kept: Sequence[RecordSpan]) -> None:
        """Keep these records of `data`."""
        if not kept:
            return
        if self._horizon_ms is None:
            records = _joined(data, kept)
        else:
            records = _shifted(data, kept, self._header.base_timestamp - self._horizon_ms)
        self._body += self._compressor.compress(records)
        self._count += len(kept)
        latest = max(span.timestamp_delta for span in kept)
        self._latest = latest if self._latest is None else max(self._latest, latest)

    def finish(self) -> bytes:
        """The batch. At least one record was kept."""
        assert self._latest is not None
        self._body += self._compressor.finish()
        header = _compacted(self._header, self._count, self._latest, self._horizon_ms)
        return bytes(encode_batch(header, self._body))


def _compacted(
    header: BatchHeader, count: int, latest_delta: int, delete_horizon_ms: int | None
) -> BatchHeader:
    """The header of a batch that keeps `count` records, one at least."""
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    max_timestamp = header.max_timestamp
    if not attributes & LOG_APPEND_TIME and base_timestamp != NO_TIMESTAMP:
        max_timestamp = base_timestamp + latest_delta
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    return header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )


def rebuild_batch(
    header: BatchHeader,
    data: bytes,
    kept: Sequence[RecordSpan],
    *,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch with only the `kept` records of `data`, the bytes of `decompress_records`. Offsets,
    producer, sequence, codec and timestamps stay the same.

    Without records it is an empty batch, which keeps the offsets and the producer's sequence. With
    `delete_horizon_ms` the batch gets this delete horizon for its tombstones or its marker.
    """
    if kept:
        rebuild = BatchRebuild(header, delete_horizon_ms=delete_horizon_ms)
        rebuild.add(data, kept)
        return rebuild.finish()
    # As in Kafka an emptied batch keeps its max timestamp, for lookup by time and retention.
    attributes = header.attributes & ~CODEC_MASK
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    emptied = header._replace(attributes=attributes, base_timestamp=base_timestamp, record_count=0)
    return bytes(encode_batch(emptied, b""))


def delete_horizon_of(header: BatchHeader) -> int | None:
    """When the batch's tombstones can be removed; None before its first compaction (KIP-534)."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def _joined(data: bytes, kept: Sequence[RecordSpan]) -> bytes:
    """The bytes of the records; adjacent ones are copied together."""
    pieces = []
    start, end = kept[0].start, kept[0].end
    for span in kept:
        if span.start > end:
            pieces.append(data[start:end])
            start = span.start
        end = span.end
    pieces.append(data[start:end])
    return b"".join(pieces)


def _shifted(data: bytes, kept: Sequence[RecordSpan], shift_ms: int) -> bytes:
    """The records with `shift_ms` added to each timestamp delta."""
    out = bytearray()
    for span in kept:
        delta = bytearray()
        write_varint(delta, span.timestamp_delta + shift_ms)
        write_varint(out, span.end - span.rest + len(delta) + 1)
        out.append(data[span.body])
        out += delta
        out += data[span.rest : span.end]
    return bytes(out)
