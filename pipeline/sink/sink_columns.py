"""The columns of a DataFrame that is written to Kafka, and the records in them.

They are those of the stock connector's sink: `value` (required), `key`, `topic`, `partition` and
`headers`; what else the DataFrame has is not written. Text is UTF-8. Called on the driver to check
the schema, and in tasks for each Arrow batch.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from odradek.pipeline.errors import PipelineError

ANY_PARTITION: Final = -1
"""librdkafka's: the partitioner chooses."""
NO_TIMESTAMP: Final = 0
"""librdkafka's: the time of sending."""
_MASK: Final = (1 << 64) - 1


class SinkRecord(NamedTuple):
    """A record as the producer takes it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]] | None
    timestamp_ms: int


class RowDigest:
    """Count and checksum of records, whatever their order.

    Rows that come out of a shuffle are the same rows in another order when a task runs again. It
    finds accidents: 32 bits of CRC a record, added up.
    """

    def __init__(self, topic: str | None) -> None:
        """`topic`: of all records; None if each has its own."""
        self.rows = 0
        self._with_topics = topic is None
        self._sum = zlib.crc32((topic or "").encode())

    def add(self, record: SinkRecord) -> None:
        """Count a record in. Its timestamp is left out: Spark may have made it just now."""
        # Other start values for null: the CRC of nothing is its start value.
        crc = zlib.crc32(record.key or b"", 1 if record.key is None else 0)
        crc = zlib.crc32(record.value or b"", crc ^ 2 if record.value is None else crc)
        if record.headers or record.partition >= 0 or self._with_topics:
            place = f"{record.topic} {record.partition} {record.headers}"
            crc = zlib.crc32(place.encode(), crc)
        self.rows += 1
        self._sum += crc

    @property
    def checksum(self) -> str:
        """In hexadecimal."""
        return f"{self._sum & _MASK:016x}"


_TEXT_OR_BYTES: Final = (StringType, BinaryType)
_COLUMNS: Final[Mapping[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_TEXT_OR_BYTES, "string or binary"),
    "value": (_TEXT_OR_BYTES, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
}


def check_columns(schema: StructType, *, has_topic: bool, keeps_timestamp: bool) -> None:
    """PipelineError if rows of this schema cannot become records. `has_topic`: by an option."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise PipelineError(
            "the DataFrame has no column value, which Kafka's records need: select one as value,"
            f" string or binary (columns: {', '.join(types) or 'none'})"
        )
    if not has_topic and "topic" not in types:
        raise PipelineError("no topic to write to: set the option topic, or add a column topic")
    for name, (allowed, text) in _COLUMNS.items():
        if name in types and not isinstance(types[name], allowed):
            raise PipelineError(
                f"column {name} is {types[name].simpleString()} and must be {text}: cast it"
            )
    if "headers" in types and not _is_headers(types["headers"]):
        raise PipelineError(
            f"column headers is {types['headers'].simpleString()} and must be"
            " array<struct<key:string,value:binary>>: cast it, or drop it"
        )
    if keeps_timestamp and not isinstance(types.get("timestamp"), TimestampType):
        raise PipelineError("keepTimestamp needs a column timestamp of type timestamp: add it")


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def records_of(
    batch: pa.RecordBatch, *, topic: str | None, keeps_timestamp: bool
) -> Iterator[SinkRecord]:
    """The rows in order; `topic` wins over the column. PipelineError for a row without a topic."""
    rows = batch.num_rows
    names = frozenset(batch.schema.names)
    keys = _bytes_of(batch.column("key"), rows) if "key" in names else [None] * rows
    values = _bytes_of(batch.column("value"), rows)
    topics: Sequence[str] = [topic] * rows if topic is not None else []
    if topic is None:
        topics = batch.column("topic").to_pylist()
        if batch.column("topic").null_count:
            raise PipelineError(
                "a row has no topic (column topic is null): filter such rows, or set the option"
                " topic"
            )
    partitions: Sequence[int | None] = [None] * rows
    if "partition" in names:
        partitions = batch.column("partition").to_pylist()
    headers: Sequence[list[Mapping[str, object]] | None] = [None] * rows
    if "headers" in names:
        headers = batch.column("headers").to_pylist()
    times: Sequence[int | None] = [None] * rows
    if keeps_timestamp:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for name, partition, key, value, pairs, time_us in zip(
        topics, partitions, keys, values, headers, times, strict=True
    ):
        yield SinkRecord(
            name,
            ANY_PARTITION if partition is None else partition,
            key,
            value,
            [(str(pair["key"]), pair["value"]) for pair in pairs] if pairs else None,
            NO_TIMESTAMP if time_us is None else time_us // 1000,
        )


def _bytes_of(column: pa.Array, rows: int) -> Sequence[bytes | None]:
    if rows and not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        # Arrow's text is UTF-8 already: no text is made of it.
        column = column.cast(pa.large_binary() if _is_large(column) else pa.binary())
    found: Sequence[bytes | None] = column.to_pylist()
    return found


def _is_large(column: pa.Array) -> bool:
    return bool(pa.types.is_large_string(column.type))
