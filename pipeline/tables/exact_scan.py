"""Rows of a table exactly as its files have them: what `verify` compares.

pyiceberg's own reader makes an empty list of one that is null. So of Iceberg only the list of files
is pyiceberg's, and Arrow reads them, as it reads those of the other formats.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.parquet_log import scan_dataset
from odradek.pipeline.tables.target import TableTarget


def exact_scan(
    table: TableTarget, columns: Sequence[str], wanted: PartitionRange | None = None
) -> Iterator[pa.RecordBatch]:
    """As `TableTarget.scan`, with nulls as they were written."""
    job, schema = table.job(), table.schema()
    if job is None or schema is None or job.format != "iceberg":
        return table.scan(columns, wanted)
    paths = _iceberg_files(table, wanted)
    if not paths:
        return iter(())
    filesystem = fs.FileSystem.from_uri(paths[0])[0]
    names = [fs.FileSystem.from_uri(path)[1] for path in paths]
    found = ds.dataset(names, schema=schema, format="parquet", filesystem=filesystem)
    return scan_dataset(found, columns, wanted)


def _iceberg_files(table: TableTarget, wanted: PartitionRange | None) -> list[str]:
    """The files of the current snapshot that may have rows of the range."""
    # An extra of its own.
    import pyiceberg.expressions

    from odradek.pipeline.tables.iceberg_log import IcebergLog

    # Its classes are not typed as they may be called.
    made: Any = pyiceberg.expressions
    condition = made.AlwaysTrue()
    if wanted is not None:
        condition = made.And(
            made.EqualTo("kafka_topic", wanted.topic),
            made.EqualTo("kafka_partition", wanted.partition),
            made.GreaterThanOrEqual("kafka_offset", wanted.start),
            made.LessThan("kafka_offset", wanted.end),
        )
    log, job = table._log, table.job()
    if not isinstance(log, IcebergLog) or job is None:
        return []
    try:
        tasks = list(
            log._catalog().load_table(log._name(job)).scan(row_filter=condition).plan_files()
        )
    except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
        raise log._failure(error) from error
    if any(task.delete_files for task in tasks):
        raise PipelineError(
            f"table {table.location} has deletes by row, which no job of ours makes: rewrite its"
            " data files with Spark's procedure rewrite_data_files first"
        )
    return [task.file.file_path for task in tasks]
