"""What a table format adds to the job's folder: how files are published, and how rows are read."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import JobCommit, TableJob


class TableSnapshot(Protocol):
    """What a table had committed at one time. Equal to another one of the same files."""

    def scan(
        self, columns: Sequence[str], wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, in any order. Lists that were null are null, and not empty: a
        record without headers is told from none. FileNotFoundError if a file is not there."""


class TableLog(Protocol):
    """Parquet, Delta or Iceberg."""

    is_time_in_file: bool
    """Whether files hold the column of the time partition, too."""

    def publish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        """Move the files from staging to their places and make them visible.

        At any time again, also after a crash at any point: what was done is not done twice.
        `schema` is that of the whole table and may have columns that the table did not have.
        """

    def snapshot(self, job: TableJob, schema: pa.Schema) -> TableSnapshot:
        """What is committed now, with the columns of the schema. PipelineError if the table has
        lost it."""


def merged_schema(table: pa.Schema | None, rows: pa.Schema, time_column: str) -> pa.Schema:
    """The table's schema with the columns that only the rows have; the time partition stays last.

    PipelineError for a column that has another type now.
    """
    if table is None:
        return rows
    added = []
    for column in rows:
        if column.name not in table.names:
            added.append(column)
        elif not table.field(column.name).type.equals(column.type):
            raise PipelineError(
                f"column {column.name} is {table.field(column.name).type} in the table and"
                f" {column.type} in the schema of values: give the new field another name, or fill"
                " another table"
            )
    last = [column for column in table if column.name == time_column]
    first = [column for column in table if column.name != time_column]
    return pa.schema([*first, *added, *last])
