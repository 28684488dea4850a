"""The columns are Spark's, and a range knows its partition."""

import pyarrow as pa

from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionName, PartitionRange


def test_the_columns_are_those_of_spark_kafka_source() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert KAFKA_SCHEMA.names == [*names, "headers"]
    assert KAFKA_SCHEMA.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert KAFKA_SCHEMA.field("headers").type.value_type.field("value").type == pa.binary()


def test_a_range_is_of_a_partition() -> None:
    wanted = PartitionRange("orders", "", 3, start=5, end=9)
    assert wanted.name == PartitionName("orders", 3)
    assert str(wanted.name) == "orders-3"
