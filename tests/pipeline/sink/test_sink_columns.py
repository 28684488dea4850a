"""Columns of a DataFrame as records."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import HEADER_TYPE
from odradek.pipeline.sink.sink_columns import (
    RowDigest,
    SinkRecord,
    check_columns,
    records_of,
)

TEXT, BYTES, INT, LONG, TIME = (
    StringType(),
    BinaryType(),
    IntegerType(),
    LongType(),
    TimestampType(),
)
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BYTES))


def schema_of(columns: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def refusal_of(
    columns: Mapping[str, DataType], *, has_topic: bool = True, keeps_timestamp: bool = False
) -> str:
    with pytest.raises(PipelineError) as refused:
        check_columns(schema_of(columns), has_topic=has_topic, keeps_timestamp=keeps_timestamp)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": TEXT},
        {"value": BYTES, "key": TEXT},
        {"value": BYTES, "key": BYTES, "partition": INT, "other": MapType(TEXT, INT)},
        {"value": BYTES, "headers": HEADERS},
        # All of what the source gives.
        {"value": BYTES, "offset": LONG, "timestamp": TIME, "timestampType": INT},
    ],
)
def test_the_columns_of_the_stock_connector_are_taken(columns: dict[str, DataType]) -> None:
    check_columns(schema_of(columns), has_topic=True, keeps_timestamp=False)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "no column value, which Kafka's records need: select one as value"),
        ({"key": TEXT, "amount": INT}, "(columns: key, amount)"),
        ({"value": INT}, "column value is int and must be string or binary: cast it"),
        ({"value": TEXT, "key": LONG}, "column key is bigint and must be string or binary"),
        ({"value": TEXT, "partition": LONG}, "column partition is bigint and must be int"),
        ({"value": TEXT, "topic": BYTES}, "column topic is binary and must be string"),
        (
            {"value": TEXT, "headers": MapType(TEXT, BYTES)},
            "must be array<struct<key:string,value:binary>>: cast it, or drop it",
        ),
        (
            {"value": TEXT, "headers": ArrayType(StructType().add("key", TEXT).add("value", TEXT))},
            "column headers is array<struct<key:string,value:string>> and must be",
        ),
    ],
)
def test_a_wrong_schema_is_one_clear_line(columns: dict[str, DataType], said: str) -> None:
    assert said in refusal_of(columns)


def test_a_topic_comes_from_the_option_or_from_a_column() -> None:
    assert "set the option topic, or add a column" in refusal_of({"value": TEXT}, has_topic=False)
    check_columns(schema_of({"value": TEXT, "topic": TEXT}), has_topic=False, keeps_timestamp=False)


def test_timestamps_are_kept_only_of_timestamps() -> None:
    said = refusal_of({"value": TEXT, "timestamp": LONG}, keeps_timestamp=True)
    assert said == "keepTimestamp needs a column timestamp of type timestamp: add it"


def test_text_becomes_utf8_and_null_stays_null() -> None:
    batch = pa.record_batch(
        {"key": pa.array(["ä", None]), "value": pa.array([None, b"\xff"], pa.binary())}
    )
    found = list(records_of(batch, topic="t", keeps_timestamp=False))
    assert found == [
        SinkRecord("t", -1, "ä".encode(), None, None, 0),
        SinkRecord("t", -1, None, b"\xff", None, 0),
    ]


def test_without_a_key_column_keys_are_null() -> None:
    batch = pa.record_batch({"value": pa.array(["a"], pa.large_string())})
    assert [each.key for each in records_of(batch, topic="t", keeps_timestamp=False)] == [None]


def test_place_time_and_headers_come_from_the_row() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b"]),
            "topic": pa.array(["x", "y"]),
            "partition": pa.array([3, None], pa.int32()),
            "timestamp": pa.array([at, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
                pa.list_(HEADER_TYPE),
            ),
        }
    )
    first, second = records_of(batch, topic=None, keeps_timestamp=True)
    at_ms = int(at.timestamp() * 1000)
    assert first == ("x", 3, None, b"a", [("h", b"1"), ("h", None)], at_ms)
    assert second == ("y", -1, None, b"b", None, 0)
    by_option = records_of(batch, topic="z", keeps_timestamp=False)
    assert [(each.topic, each.timestamp_ms) for each in by_option] == [("z", 0), ("z", 0)]


def test_a_row_without_a_topic_is_told() -> None:
    batch = pa.record_batch({"value": pa.array([b"a"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(PipelineError, match="a row has no topic"):
        list(records_of(batch, topic=None, keeps_timestamp=False))


def digest_of(*records: SinkRecord, topic: str | None = None) -> tuple[int, str]:
    digest = RowDigest(topic)
    for record in records:
        digest.add(record)
    return digest.rows, digest.checksum


A = SinkRecord("t", -1, b"a", b"1", None, 5)
B = SinkRecord("t", -1, b"b", b"2", None, 6)


def test_a_digest_is_of_the_rows_in_any_order_and_at_any_time() -> None:
    assert digest_of(A, B) == digest_of(B, A._replace(timestamp_ms=7))
    assert digest_of(A, B)[0] == 2


@pytest.mark.parametrize(
    "other",
    [
        A._replace(value=b"2"),
        A._replace(value=None),
        A._replace(key=None),
        A._replace(key=b""),
        A._replace(key=b"1", value=b"a"),
        A._replace(partition=0),
        A._replace(headers=[("h", b"1")]),
        A._replace(topic="u"),
    ],
)
def test_a_digest_is_of_all_that_is_written(other: SinkRecord) -> None:
    assert digest_of(A) != digest_of(other)


def test_a_digest_is_of_the_topic_that_an_option_names() -> None:
    assert digest_of(A, topic="t") != digest_of(A, topic="u")


def test_null_is_not_the_empty_text_in_a_digest() -> None:
    empty = A._replace(key=b"", value=b"")
    nulls = [empty._replace(key=None), empty._replace(value=None), A._replace(key=None, value=None)]
    assert len({digest_of(each) for each in [empty, *nulls]}) == 4
