"""A folder of Parquet files, with Hive's folders for the time partition.

Anybody can read the folder. What belongs to the table is said by the job's commits and compactions
(file_log.py); between the renames of files and the commit file others may see rows that the commits
do not have yet, and while a compaction replaces files they may see rows twice.
"""

import pyarrow as pa

from odradek.pipeline.tables.file_log import FileLog
from odradek.pipeline.tables.job_folder import JobFolder, staging_name
from odradek.pipeline.tables.job_plan import JobCommit, TableJob
from odradek.pipeline.tables.parquet_snapshot import FileBounds, ParquetSnapshot
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.table_folder import TableFolder


class ParquetLog:
    """Files are renamed into place; the job's commit file says which ones count."""

    is_time_in_file = False

    def __init__(self, files: JobFolder, file_log: FileLog) -> None:
        """`file_log` is of the same folder: it remembers the commits that it has read."""
        self._files = files
        self._file_log = file_log

    def publish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        """Rename the files. The job's folder has the schema."""
        move_into_place(self._files.folder, commit)

    def snapshot(self, job: TableJob, schema: pa.Schema) -> ParquetSnapshot:
        """The files of all commits."""
        folder = self._files.folder
        files = tuple(FileBounds.of(file, folder) for file in self._file_log.files())
        return ParquetSnapshot(files, folder, schema, time_column(job.time_partition))


def move_into_place(folder: TableFolder, commit: JobCommit) -> None:
    """Move the files of a commit from staging to where they stay; again at any time."""
    staging = staging_name(commit.number)
    folder.move((f"{staging}/{file.path}", file.path) for file in commit.files)
