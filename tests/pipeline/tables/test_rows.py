"""Rows of records: columns, times, and what becomes of values that do not fit."""

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import KAFKA_SCHEMA
from odradek.pipeline.tables.rows import BadRecord, rows_of, table_schema
from odradek.pipeline.values.value_format import value_format

DAY_US = 86_400_000_000


def records(*values: bytes | None, times_us: list[int | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array([b"key-%d" % index for index in range(count)], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["orders"] * count, pa.string()),
        pa.array([3] * count, pa.int32()),
        pa.array(range(100, 100 + count), pa.int64()),
        pa.array(times_us or [0] * count, KAFKA_SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.array(
            [[{"key": "trace", "value": b"%d" % index}] for index in range(count)],
            KAFKA_SCHEMA.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KAFKA_SCHEMA)


def test_raw_values_are_the_same_buffers_under_the_tables_names() -> None:
    batch = records(b"one", None, b"")
    made = rows_of(batch, value_format("raw"), "none")
    assert made.bad == ()
    assert made.rows.schema == table_schema(value_format("raw"), "none")
    assert made.rows.column("kafka_value").to_pylist() == [b"one", None, b""]
    assert made.rows.column("kafka_offset").to_pylist() == [100, 101, 102]
    ours = made.rows.column("kafka_value").chunk(0).buffers()[2]
    assert ours.address == batch.column("value").buffers()[2].address


@pytest.mark.parametrize(
    ("time_us", "date", "hour"),
    [
        (0, "1970-01-01", "1970-01-01-00"),
        (-1000, "1969-12-31", "1969-12-31-23"),
        (DAY_US - 1000, "1970-01-01", "1970-01-01-23"),
        (1_795_478_399_999_000, "2026-11-23", "2026-11-23-23"),
        # Times that no calendar has count as the epoch.
        (9 * 10**18, "1970-01-01", "1970-01-01-00"),
        (-9 * 10**18, "1970-01-01", "1970-01-01-00"),
        (None, "1970-01-01", "1970-01-01-00"),
    ],
)
def test_the_time_partition_is_of_the_records_time_in_utc(
    time_us: int | None, date: str, hour: str
) -> None:
    batch = records(b"v", times_us=[time_us])
    by_date = rows_of(batch, value_format("raw"), "date").rows
    by_hour = rows_of(batch, value_format("raw"), "hour").rows
    assert by_date.column("kafka_date").to_pylist() == [date]
    assert by_hour.column("kafka_hour").to_pylist() == [hour]


def test_values_that_do_not_fit_leave_with_all_that_the_record_had() -> None:
    batch = records(b'{"id": 1}', b"{", b'{"id": 3}', times_us=[0, 9 * 10**18, 0])
    made = rows_of(batch, value_format("json", schema="id BIGINT"), "date")
    assert made.rows.column("id").to_pylist() == [1, 3]
    assert made.rows.column("kafka_offset").to_pylist() == [100, 102]
    (bad,) = made.bad
    assert bad == BadRecord(
        "orders", 3, 101, 9 * 10**15, bad.reason, b"key-1", b"{", (("trace", b"1"),)
    )
    assert bad.reason


def test_a_tombstone_is_a_row_of_nulls() -> None:
    made = rows_of(records(None), value_format("json", schema="id BIGINT"), "none")
    assert made.bad == ()
    assert made.rows.column("id").to_pylist() == [None]


def test_a_field_with_the_name_of_a_column_is_refused() -> None:
    values = value_format("json", schema="Kafka_Offset BIGINT")
    with pytest.raises(PipelineError, match="have a field Kafka_Offset"):
        table_schema(values, "date")
