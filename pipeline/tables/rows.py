"""Rows of an offloaded table from Kafka's records: a pure function, column by column.

The same records and the same schema always give the same rows. The job writes what it gives, and
`verify` applies it again to what the topic holds. Raw values never become objects of Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import HEADER_TYPE
from odradek.pipeline.values.value_format import ValueDecoder

COORDINATES: Final = pa.schema(
    [
        pa.field("kafka_topic", pa.string()),
        pa.field("kafka_partition", pa.int32()),
        pa.field("kafka_offset", pa.int64()),
        pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("kafka_timestamp_type", pa.int32()),
        pa.field("kafka_key", pa.binary()),
        pa.field("kafka_headers", pa.list_(HEADER_TYPE)),
    ]
)
"""The columns of every table, before those of the value."""

_SOURCES: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "headers",
)
_TIMES: Final[Mapping[str, tuple[str, str, str]]] = {
    "date": ("kafka_date", "day", "%Y-%m-%d"),
    "hour": ("kafka_hour", "hour", "%Y-%m-%d-%H"),
}
TIME_PARTITIONS: Final = (*_TIMES, "none")

_EPOCH: Final = pa.scalar(0, pa.timestamp("us", tz="UTC"))
_YEAR_1: Final = pa.scalar(-62_135_596_800_000_000, pa.timestamp("us", tz="UTC"))
_YEAR_10000: Final = pa.scalar(253_402_300_800_000_000, pa.timestamp("us", tz="UTC"))


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record whose value does not fit the schema: it goes to the dead-letter topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of the good records, in the records' order, and the bad records."""

    rows: pa.Table
    bad: tuple[BadRecord, ...]


def time_column(time_partition: str) -> str:
    """`kafka_date` or `kafka_hour`; empty for none."""
    return _TIMES[time_partition][0] if time_partition in _TIMES else ""


def table_schema(values: ValueDecoder, time_partition: str) -> pa.Schema:
    """The columns of the table: Kafka's, those of the value, the time partition.

    PipelineError if the value has a column with the name of another one.
    """
    columns = [*COORDINATES, *values.columns()]
    if name := time_column(time_partition):
        columns.append(pa.field(name, pa.string()))
    # Delta and Iceberg's readers may compare names without case.
    names = [each.name.lower() for each in columns]
    doubled = [each.name for each in columns if names.count(each.name.lower()) > 1]
    if doubled:
        raise PipelineError(
            f"the values have a field {doubled[-1]}, and the table has a column of that name:"
            " rename the field in the schema, or take value.format raw"
        )
    return pa.schema(columns)


def rows_of(batch: pa.RecordBatch, values: ValueDecoder, time_partition: str) -> TableRows:
    """Rows of a batch of KAFKA_SCHEMA; `time_partition` is date, hour or none (in UTC)."""
    schema = table_schema(values, time_partition)
    decoded = values.decode(batch.column("value"))
    columns = [batch.column(name) for name in _SOURCES]
    if decoded.problems:
        columns = [column.filter(decoded.good) for column in columns]
    times = [_times(columns[3], time_partition)] if time_partition in _TIMES else []
    rows = pa.Table.from_arrays([*columns, *decoded.table.columns, *times], schema=schema)
    return TableRows(rows, _bad_records(batch, decoded.problems))


def _times(timestamps: pa.Array, time_partition: str) -> pa.Array:
    """Dates or hours as text. Only distinct ones are formatted: there are few in a batch.

    Producers may write any time. What has no year of four digits counts as the epoch, so a record
    with a foolish time cannot stop the job.
    """
    _, unit, text_format = _TIMES[time_partition]
    is_usual = pc.and_(pc.greater_equal(timestamps, _YEAR_1), pc.less(timestamps, _YEAR_10000))
    usual = pc.if_else(pc.fill_null(is_usual, False), timestamps, _EPOCH)
    encoded = pc.floor_temporal(usual, unit=unit).dictionary_encode()
    texts = pc.strftime(encoded.dictionary, format=text_format)
    return texts.take(encoded.indices)


def _bad_records(batch: pa.RecordBatch, problems: Mapping[int, str]) -> tuple[BadRecord, ...]:
    if not problems:
        return ()
    indices = sorted(problems)
    taken = batch.take(pa.array(indices, pa.int64()))
    # As numbers: a datetime of Python ends with the year 9999. Kafka's times are milliseconds.
    times = pc.fill_null(taken.column("timestamp").cast(pa.int64()), 0).to_pylist()
    found = taken.drop_columns(["timestamp"]).to_pylist()
    return tuple(
        BadRecord(
            topic=each["topic"],
            partition=each["partition"],
            offset=each["offset"],
            timestamp_ms=time_us // 1000,
            reason=problems[index],
            key=each["key"],
            value=each["value"],
            headers=tuple((header["key"], header["value"]) for header in each["headers"] or ()),
        )
        for index, time_us, each in zip(indices, times, found, strict=True)
    )
