"""Since when a table has its columns: a column that was added later is null in all rows before.

A commit has the schema that the table had after it. What a plan wrote was decoded with the schema
of that time, so `verify` expects nulls where the column was not known yet.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.jobs.comparison import OFFSET_COLUMN
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.target import TableTarget

ColumnStarts = Mapping[str, Mapping[PartitionName, int]]
"""Column to the offset of each partition at which it begins; 0 for partitions that came later."""


def columns_added(table: TableTarget) -> ColumnStarts:
    """The columns that the first commit did not have."""
    files = JobFolder(TableFolder(table.location))
    numbers = files.commit_numbers()
    if not numbers:
        return {}
    first_names = set(files.read_commit(numbers[0])[1].names)
    if first_names.issuperset(files.read_commit(numbers[-1])[1].names):
        return {}
    starts: dict[str, dict[PartitionName, int]] = {}
    ends: dict[PartitionName, int] = {}
    for number in numbers:
        found = files.find_commit(number)
        # A checkpoint may stand for it now. The last one before each change is there in any case.
        if found is None:
            continue
        commit, schema = found
        for name in schema.names:
            if name not in first_names and name not in starts:
                starts[name] = ends
        ends = commit.ends
    return starts


def before_they_were_added(rows: pa.Table, name: PartitionName, starts: ColumnStarts) -> pa.Table:
    """Rows of a partition with nulls in the columns that the table did not have yet."""
    for column, offsets in starts.items():
        start = offsets.get(name, 0)
        if column not in rows.column_names or not start:
            continue
        is_before = pc.less(rows.column(OFFSET_COLUMN), start)
        kind = rows.schema.field(column).type
        values = pc.if_else(is_before, pa.scalar(None, kind), rows.column(column))
        rows = rows.set_column(rows.column_names.index(column), column, values)
    return rows
