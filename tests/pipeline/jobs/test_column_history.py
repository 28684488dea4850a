"""A column is null in the rows of a partition before the plan that added it."""

import pyarrow as pa

from odradek.pipeline.jobs.column_history import before_they_were_added
from odradek.pipeline.kafka_types import PartitionName

ROWS = pa.table({"kafka_offset": pa.array([4, 5, 6]), "a": ["x", "y", "z"], "b": [1, 2, 3]})
ORDERS = PartitionName("orders", 0)


def test_values_before_the_column_are_null() -> None:
    changed = before_they_were_added(ROWS, ORDERS, {"b": {ORDERS: 6}, "c": {ORDERS: 9}})

    assert changed.to_pydict() == {
        "kafka_offset": [4, 5, 6],
        "a": ["x", "y", "z"],
        "b": [None, None, 3],
    }
    assert changed.schema == ROWS.schema


def test_partitions_that_came_later_have_the_column_from_the_start() -> None:
    assert before_they_were_added(ROWS, PartitionName("orders", 1), {"b": {ORDERS: 6}}) == ROWS
