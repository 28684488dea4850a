"""A column is null in the rows of a partition before the plan that added it."""

from pathlib import Path

import pyarrow as pa

from odradek.pipeline.jobs.column_history import before_they_were_added, columns_added
from odradek.pipeline.jobs.maintain import MaintainOptions, maintain
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.target import open_table
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import job, plan, run_tasks

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


def test_columns_begin_with_their_plan_also_when_a_checkpoint_stands_for_it(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path))
    table.claim(job())
    schemas = (
        ["id BIGINT"] * 3 + ["id BIGINT, a STRING"] * 3 + ["id BIGINT, a STRING, b STRING"] * 3
    )
    for number, schema in enumerate(schemas, 1):
        each = plan(number, (0, 10 * number, 10 * number + 10))
        table.prepare(each)
        values = value_format("json", schema=schema)
        table.commit(each, run_tasks(table, each, values, b'{"id": %d}'))
    table.close()
    expected = {"a": {ORDERS: 40}, "b": {ORDERS: 70}}
    assert columns_added(table) == expected

    assert maintain(MaintainOptions(table=str(tmp_path))).folded == 6

    assert JobFolder(TableFolder(str(tmp_path))).commit_numbers() == [3, 6, 9]
    assert columns_added(open_table("", str(tmp_path))) == expected
