"""A folder of Parquet files, with Hive's folders for the time partition.

Anybody can read the folder. What belongs to the table is said by the job's commits and compactions
(file_log.py); between the renames of files and the commit file others may see rows that the commits
do not have yet, and while a compaction replaces files they may see rows twice.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.file_log import FileLog
from odradek.pipeline.tables.job_folder import JobFolder, staging_name
from odradek.pipeline.tables.job_plan import DataFile, JobCommit, TableJob
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.table_folder import TableFolder


class ParquetLog:
    """Files are renamed into place; the job's commit file says which ones count."""

    is_time_in_file = False

    def __init__(self, files: JobFolder) -> None:
        self._files = files
        self._log = FileLog(files)

    def publish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        """Rename the files. The job's folder has the schema."""
        move_into_place(self._files.folder, commit)

    def scan(
        self, schema: pa.Schema, columns: Sequence[str], wanted: PartitionRange | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of all files."""
        folder = self._files.folder
        paths = dict.fromkeys(
            folder.path_of(file.path)
            for file in self._log.files()
            if wanted is None or may_hold(file, wanted)
        )
        if not paths:
            return
        job = self._files.job()
        time = time_column(job.time_partition) if job is not None else ""
        found = ds.dataset(
            [*paths],
            schema=schema,
            format="parquet",
            filesystem=folder.filesystem,
            partitioning=ds.partitioning(pa.schema([schema.field(time)]), flavor="hive")
            if time
            else None,
            partition_base_dir=folder.path,
        )
        yield from scan_dataset(found, columns, wanted)


def move_into_place(folder: TableFolder, commit: JobCommit) -> None:
    """Move the files of a commit from staging to where they stay; again at any time."""
    staging = staging_name(commit.number)
    folder.move((f"{staging}/{file.path}", file.path) for file in commit.files)


def may_hold(file: DataFile, wanted: PartitionRange) -> bool:
    """Whether rows of the range can be in the file."""
    return (
        (file.topic, file.partition) == wanted.name
        and file.first_offset < wanted.end
        and file.last_offset >= wanted.start
    )


def scan_dataset(
    found: ds.Dataset, columns: Sequence[str], wanted: PartitionRange | None
) -> Iterator[pa.RecordBatch]:
    """Batches of a dataset, few at a time: values may be large."""
    condition = None
    if wanted is not None:
        condition = (
            (ds.field("kafka_topic") == wanted.topic)
            & (ds.field("kafka_partition") == wanted.partition)
            & (ds.field("kafka_offset") >= wanted.start)
            & (ds.field("kafka_offset") < wanted.end)
        )
    batches = found.to_batches(
        columns=[*columns],
        filter=condition,
        batch_size=20_000,
        batch_readahead=2,
        fragment_readahead=1,
    )
    yield from (batch for batch in batches if batch.num_rows)
