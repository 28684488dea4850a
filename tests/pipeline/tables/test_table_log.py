"""How a table's schema grows."""

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.table_log import merged_schema

TABLE = pa.schema([("kafka_offset", pa.int64()), ("id", pa.int64()), ("kafka_date", pa.string())])


def test_new_columns_come_before_the_time_partition() -> None:
    rows = pa.schema([("kafka_offset", pa.int64()), ("name", pa.string())])
    merged = merged_schema(TABLE, rows, "kafka_date")
    assert merged.names == ["kafka_offset", "id", "name", "kafka_date"]
    assert merged_schema(None, TABLE, "kafka_date") == TABLE
    assert merged_schema(merged, TABLE, "kafka_date") == merged


def test_a_column_keeps_its_type() -> None:
    rows = pa.schema([("id", pa.struct([("a", pa.int64())]))])
    with pytest.raises(PipelineError, match="column id is int64 in the table and struct<a: int64>"):
        merged_schema(TABLE, rows, "kafka_date")
