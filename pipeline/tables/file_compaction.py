"""Makes one Parquet file of many small ones: which files, and how their rows are copied.

Rows are copied as they are, in the order of the files; a column that an old file lacks is null, as
readers see it already. Called by the compactions of Parquet and Iceberg tables.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.staging import ROW_GROUP_BYTES, parquet_writer
from odradek.pipeline.tables.table_folder import TableFolder, sync_file

_BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class CompactionSource:
    """A data file that may become a part of a larger one."""

    path: str
    """Below the table's folder."""
    time: str
    """Of the time partition: files of different times never become one."""
    first_row: tuple[str, int, int]
    """Topic, partition and offset."""
    rows: int
    bytes: int


def compaction_groups(
    sources: Iterable[CompactionSource], target_bytes: int
) -> list[list[CompactionSource]]:
    """Files that become one each: of one time, in the order of their rows, `target_bytes` at most.

    A file of at least half of `target_bytes` stays as it is, so that what was compacted is not
    compacted again and again.
    """
    groups: list[list[CompactionSource]] = []
    held = 0
    small = (each for each in sources if each.bytes < target_bytes // 2)
    for each in sorted(small, key=lambda each: (each.time, each.first_row)):
        is_same = groups and groups[-1][0].time == each.time
        if is_same and held + each.bytes <= target_bytes:
            groups[-1].append(each)
            held += each.bytes
        else:
            groups.append([each])
            held = each.bytes
    return [group for group in groups if len(group) > 1]


def merge_files(
    folder: TableFolder, sources: Sequence[CompactionSource], name: str, schema: pa.Schema
) -> int:
    """Write all rows of the sources to a file `name` with the columns of `schema`: its bytes.

    The file is durable afterwards. Memory holds a row group. PipelineError if a source is damaged
    or has not the rows that it should have; then there is no file.
    """
    path = folder.path_of(name)
    folder.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    try:
        with parquet_writer(folder, name, schema) as writer:
            held: list[pa.Table] = []
            held_bytes = 0
            for source in sources:
                for rows in _rows_of(folder, source, schema):
                    held.append(rows)
                    held_bytes += rows.nbytes
                    if held_bytes >= ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(held))
                        held, held_bytes = [], 0
            if held:
                writer.write_table(pa.concat_tables(held))
    except BaseException:
        folder.delete_files([name])
        raise
    if folder.is_local:
        sync_file(path)
        sync_file(path.rpartition("/")[0])
    return int(folder.filesystem.get_file_info(path).size)


def _rows_of(
    folder: TableFolder, source: CompactionSource, schema: pa.Schema
) -> Iterator[pa.Table]:
    path, count = folder.path_of(source.path), 0
    try:
        with pq.ParquetFile(path, filesystem=folder.filesystem) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                count += batch.num_rows
                yield _with_columns(batch, schema)
    except (FileNotFoundError, pa.ArrowException) as error:
        text = " ".join(str(error).split())
        raise PipelineError(f"{path} cannot be read: {text}: run `odradek pipe verify`") from error
    if count != source.rows:
        raise PipelineError(
            f"{path} has {count} rows and should have {source.rows}: run `odradek pipe verify`"
        )


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    unknown = [name for name in batch.schema.names if name not in schema.names]
    if unknown:
        raise PipelineError(f"a file has a column {unknown[0]}, which the table does not have")
    columns = [
        batch.column(each.name).cast(each.type)
        if each.name in batch.schema.names
        else pa.nulls(batch.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
