"""Decoded records become Kafka's columns, as Arrow validates them."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.arrow_columns import kafka_schema, record_batch
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import KAFKA_SCHEMA
from odradek.pipeline.wire.record_decoder import RecordDecoder
from odradek.protocol.records import HEADER_BYTES, Record, build_batch, read_header
from tests.support.poison_batches import raw_batch, raw_field, raw_record, varint

BYTES = st.one_of(st.none(), st.binary(max_size=10), st.binary(min_size=100, max_size=150))
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=4))))
RECORDS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(-1, 2**42), BYTES, BYTES, st.just([]) | HEADERS),
    min_size=1,
    max_size=20,
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(batch: bytes, *, with_headers: bool = True) -> pa.RecordBatch:
    header = read_header(batch)
    decoder = RecordDecoder(with_headers)
    decoder.decode(
        batch,
        HEADER_BYTES,
        len(batch),
        0,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        True,
        0,
        2**62,
    )
    found = record_batch(
        decoder, batch, topic="orders", partition=3, timestamp_type=0, with_headers=with_headers
    )
    found.validate(full=True)
    return found


@given(RECORDS)
def test_rows_are_the_records(contents: list[tuple[int, int, bytes, bytes, list[object]]]) -> None:
    offset = 99
    records = []
    for step, timestamp, key, value, headers in contents:
        offset += step
        records.append(Record(offset, timestamp, key, value, tuple(headers)))  # type: ignore[arg-type]  # hypothesis' tuples
    found = columns_of(build_batch(records, base_offset=100))
    assert found.schema == KAFKA_SCHEMA
    assert found.to_pylist() == [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in records
    ]


def test_without_headers() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v", (("a", b"b"),))])
    found = columns_of(batch, with_headers=False)
    assert found.schema == kafka_schema(with_headers=False)
    assert found.schema.names == KAFKA_SCHEMA.names[:-1]


def test_header_keys_that_are_no_text_are_replaced() -> None:
    body = raw_record(0, headers=varint(1) + raw_field(b"a\xff") + raw_field(b"b"))
    found = columns_of(raw_batch(body, 1, base_timestamp=0))
    assert found.column("headers").to_pylist() == [[{"key": "a\ufffd", "value": b"b"}]]


def test_a_timestamp_beyond_microseconds_is_told() -> None:
    batch = raw_batch(raw_record(0), 1, base_timestamp=2**60)
    with pytest.raises(PipelineError, match=str(2**60)):
        columns_of(batch)


def test_no_records() -> None:
    found = record_batch(
        RecordDecoder(True), b"", topic="orders", partition=0, timestamp_type=1, with_headers=True
    )
    found.validate(full=True)
    assert found.num_rows == 0
