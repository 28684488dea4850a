"""Decoded records as an Arrow record batch with Kafka's columns (KAFKA_SCHEMA).

The decoder says where keys and values lie in the bytes that were fetched. Here they become a binary
array of those bytes, in which every other element is what lies between two of them; Arrow then
takes the elements that are wanted, which copies each of their bytes once, in C++.
"""

from array import array
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import HEADER_TYPE, KAFKA_SCHEMA
from odradek.pipeline.wire.record_decoder import RecordDecoder

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_SCHEMA_WITHOUT_HEADERS: Final = pa.schema(list(KAFKA_SCHEMA)[:-1])
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


def kafka_schema(*, with_headers: bool) -> pa.Schema:
    """KAFKA_SCHEMA, or all of it but the headers."""
    return KAFKA_SCHEMA if with_headers else _SCHEMA_WITHOUT_HEADERS


def record_batch(
    records: RecordDecoder,
    data: bytes,
    *,
    topic: str,
    partition: int,
    timestamp_type: int,
    with_headers: bool,
) -> pa.RecordBatch:
    """The records that the decoder has collected; their spans are positions in `data`."""
    rows = records.rows
    fetched = pa.py_buffer(data)
    columns = [
        _gather(records.keys, records.null_keys, fetched)
        if records.keys
        else pa.nulls(rows, pa.binary()),
        _gather(records.values, records.null_values, fetched),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        _offsets(records.offset_runs, rows),
        _timestamps(records.timestamps),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), rows),
    ]
    if with_headers:
        columns.append(_headers(records, fetched))
    return pa.RecordBatch.from_arrays(columns, schema=kafka_schema(with_headers=with_headers))


def _gather(spans: list[int], nulls: list[int], fetched: pa.Buffer) -> pa.BinaryArray:
    """The bytes of each span; none for the elements that are null."""
    if not spans:
        return pa.array([], pa.binary())
    starts_and_ends = pa.array(spans, pa.int64()).buffers()[1]
    elements = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(spans) - 1, [None, starts_and_ends, fetched]
    )
    wanted = _every_other(len(spans))
    if nulls:
        wanted = pc.if_else(_mask(nulls, len(spans)), pa.scalar(None, pa.int32()), wanted)
    return elements.take(wanted)


def _mask(indices: Sequence[int], length: int) -> pa.BooleanArray:
    """True at these indices."""
    marks = bytearray(length)
    for index in indices:
        marks[index] = 1
    return pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(marks)]).cast(pa.bool_())


def _int64_array(numbers: "array[int]") -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _int32_array(numbers: "array[int]") -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _offsets(runs: list[int], rows: int) -> pa.Int64Array:
    if len(runs) == 2:
        return pc.add(_numbers(rows), pa.scalar(runs[1], pa.int64()))
    offsets = array("q")
    for at in range(0, len(runs), 2):
        row, offset = runs[at], runs[at + 1]
        next_row = runs[at + 2] if at + 2 < len(runs) else rows
        offsets.extend(range(offset, offset + next_row - row))
    return _int64_array(offsets)


def _timestamps(milliseconds: list[int]) -> pa.TimestampArray:
    times = pa.array(milliseconds, pa.int64()).view(_MILLISECONDS)
    try:
        return times.cast(KAFKA_SCHEMA.field("timestamp").type)
    except pa.ArrowInvalid:
        raise PipelineError(
            f"A record's timestamp is {max(milliseconds, key=abs)} ms: microseconds of it do not "
            "fit into 64 bits. Delete the record, or start behind it."
        ) from None


def _headers(records: RecordDecoder, fetched: pa.Buffer) -> pa.ListArray:
    """A list for each record; null if it has no headers, as in Spark's Kafka source."""
    rows = records.rows
    if not records.header_ends:
        return pa.nulls(rows, pa.list_(HEADER_TYPE))
    keys = _texts(_gather(records.header_keys, [], fetched))
    values = _gather(records.header_values, records.null_header_values, fetched)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    ends = _int32_array(array("i", [0, *records.header_ends]))
    has_headers = pc.not_equal(ends[1:], ends[:-1])
    return pa.Array.from_buffers(
        pa.list_(HEADER_TYPE),
        rows,
        [has_headers.buffers()[1], ends.buffers()[1]],
        children=[pairs],
    )


def _texts(encoded: pa.BinaryArray) -> pa.StringArray:
    """As UTF-8; bytes that are none are replaced, as in Java."""
    try:
        return encoded.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([item.as_py().decode(errors="replace") for item in encoded], pa.string())


_number_cache = pa.array([], pa.int64())
_every_other_cache = pa.array([], pa.int32())


def _numbers(count: int) -> pa.Int64Array:
    """0, 1, 2, ...: made once, as it is needed for every batch."""
    global _number_cache
    if len(_number_cache) < count:
        _number_cache = _int64_array(array("q", range(2 * count)))
    return _number_cache[:count]


def _every_other(count: int) -> pa.Int32Array:
    """0, 2, 4, ..."""
    global _every_other_cache
    if len(_every_other_cache) < count:
        _every_other_cache = _int32_array(array("i", range(0, 4 * count, 2)))
    return _every_other_cache[:count]
