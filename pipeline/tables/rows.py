"""Rows of an offloaded table from Kafka's records: a pure function, column by column.

The same records and the same schema always give the same rows. The job writes what it gives, and
`verify` applies it again to what the topic holds.
"""

from dataclasses import dataclass

import pyarrow as pa

from odradek.pipeline.values.value_format import ValueFormat


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


def table_schema(values: ValueFormat, time_partition: str) -> pa.Schema:
    """The columns of the table: Kafka's, those of the value, the time partition."""
    raise NotImplementedError


def rows_of(batch: pa.RecordBatch, values: ValueFormat, time_partition: str) -> TableRows:
    """Rows of a batch of KAFKA_SCHEMA; `time_partition` is date, hour or none (in UTC)."""
    raise NotImplementedError
