"""The positions of the records in a batch, for log compaction, which keeps some and removes others.

Kept records are copied and not decoded. Their deltas stay right, because a compacted batch keeps
its base offset, last offset, base timestamp and sequence (KIP-98). Timestamps are rewritten only
when a batch with tombstones is compacted for the first time: its base timestamp then becomes the
delete horizon, the time from which the tombstones can be removed (KIP-534, attribute bit 6).

Malformed bytes raise ProtocolError and nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import (
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    ZIGZAG,
    BatchHeader,
    compression_of,
    encode_batch,
    read_varint,
    write_varint,
)
from odradek.protocol.types import NO_TIMESTAMP

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
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    max_timestamp = header.max_timestamp
    if not kept:
        # As in Kafka an emptied batch keeps its max timestamp, for lookup by time and retention.
        body = b""
        attributes &= ~CODEC_MASK
    elif delete_horizon_ms is not None:
        body = _shifted(data, kept, base_timestamp - delete_horizon_ms)
    else:
        body = _joined(data, kept)
    if kept and not attributes & LOG_APPEND_TIME:
        latest = max(span.timestamp_delta for span in kept)
        max_timestamp = base_timestamp + latest if base_timestamp != NO_TIMESTAMP else max_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    codec = compression_of(attributes)
    if codec is not Codec.NONE:
        body = compress(codec, body)
    compacted = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    return bytes(encode_batch(compacted, body))


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
