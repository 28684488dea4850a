"""A table that a job writes: Parquet, Delta or Iceberg, opened by `open_table`.

All three are used alike. `prepare` writes the plan down, tasks write Parquet files below `staging`,
`commit` makes them visible at once. `claim` finishes a commit that a crash interrupted; readers
(verify, replay) do without it and see the newest finished commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.file_log import FileLog
from odradek.pipeline.tables.job_folder import JobFolder, staging_name
from odradek.pipeline.tables.job_plan import (
    DataFile,
    JobCommit,
    JobPlan,
    PlanResult,
    TableJob,
    commit_of,
)
from odradek.pipeline.tables.parquet_log import ParquetLog
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.staging import StagingPlace
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.table_log import TableLog, TableSnapshot, merged_schema

FORMATS: Final = ("parquet", "delta", "iceberg")


class TableTarget:
    """An open table."""

    def __init__(self, files: JobFolder, file_log: FileLog, log: TableLog) -> None:
        self._files = files
        self._file_log = file_log
        self._log = log
        # The writer's memory of its last commit: nobody else writes the table meanwhile.
        self._last: tuple[JobCommit, pa.Schema] | None = None

    @property
    def location(self) -> str:
        """The folder, as it was given."""
        return self._files.folder.location

    def job(self) -> TableJob | None:
        """The job that writes the table; None before `claim` was ever called."""
        return self._files.job()

    def claim(self, job: TableJob) -> None:
        """Be the only writer until `close`, and write `job` down for good the first time.

        Finishes a commit or a compaction that a crash interrupted. PipelineError if the table is of
        another job, or if another process writes it now.
        """
        known = self._files.job()
        if known is None:
            self._files.check_free()
        else:
            _check_same(known, job, self.location)
        self._files.lock()
        if known is None:
            self._files.write_job(job)
        self._file_log.finish_prepared()
        prepared = self._files.prepared_commit()
        if prepared is not None:
            self._finish(job, *prepared)

    def last_commit(self) -> JobCommit | None:
        """The newest commit; None for a table without one."""
        found = self._newest()
        return None if found is None else found[0]

    def files(self) -> list[DataFile]:
        """All files of committed plans, in any order, without those that a compaction replaced.

        Delta and Iceberg have logs of their own: this is what the job has added to them.
        """
        return self._file_log.files()

    def pending(self) -> JobPlan | None:
        """The plan that was prepared and not committed."""
        return self._files.read_plan(self._next_number())

    def prepare(self, plan: JobPlan) -> None:
        """Write the plan down, durably, and empty the staging folder.

        Its number follows that of the last commit; a pending plan may be prepared again.
        """
        if plan.number != self._next_number():
            raise PipelineError(
                f"table {self.location}: plan {plan.number} does not follow"
                f" {self._next_number() - 1}: another process has written the table"
            )
        self._files.write_plan(plan)

    def staging(self, plan: JobPlan) -> StagingPlace:
        """Where the tasks of a prepared plan write their files; sent to them."""
        job = self._files.job()
        folder = f"{self._files.folder.location.rstrip('/')}/{staging_name(plan.number)}"
        return StagingPlace(
            folder=folder,
            plan_number=plan.number,
            time_column=time_column(job.time_partition) if job is not None else "",
            is_time_in_file=self._log.is_time_in_file,
        )

    def discard_staging(self) -> None:
        """Delete what tasks wrote for a plan that failed: it keeps its number and runs again."""
        if self._files.prepared_commit() is None:
            self._files.empty_staging()

    def commit(self, plan: JobPlan, result: PlanResult) -> JobCommit:
        """Make the files visible at once, with columns that the table did not have.

        The same plan again does nothing and returns the commit that there is.
        """
        job = self._files.job()
        newest = self._newest()
        if job is None:
            raise PipelineError(f"table {self.location} is of no job: claim it first")
        if newest is not None and newest[0].number >= plan.number:
            return self._files.read_commit(plan.number)[0]
        before, known = newest if newest is not None else (None, None)
        schema = merged_schema(known, result.schema, time_column(job.time_partition))
        made = commit_of(plan, result, before)
        self._check_staged(made)
        self._files.write_prepared(made, schema)
        self._finish(job, made, schema)
        return made

    def schema(self) -> pa.Schema | None:
        """The columns of the table, the time partition last; None for a table without commits."""
        found = self._newest()
        return None if found is None else found[1]

    def check_schema(self, rows: pa.Schema) -> None:
        """PipelineError if rows with this schema do not fit the table: before anything runs."""
        job = self._files.job()
        merged_schema(self.schema(), rows, time_column(job.time_partition) if job else "")

    def scan(
        self, columns: Sequence[str] | None = None, wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the committed table, in any order; a column that a file lacks is null.

        All columns by default. Of `wanted` topic, partition and offsets count, not the id.
        """
        schema, snapshot = self.schema(), self.snapshot()
        if schema is None or snapshot is None:
            return
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown:
            raise PipelineError(f"table {self.location} has no column {unknown[0]}")
        yield from snapshot.scan(columns if columns is not None else schema.names, wanted)

    def snapshot(self) -> TableSnapshot | None:
        """What is committed now, whatever is committed later; None for a table without commits.

        Reads the list of files: whoever reads many ranges keeps it (exact_scan.py).
        """
        job, schema = self._files.job(), self.schema()
        return None if job is None or schema is None else self._log.snapshot(job, schema)

    def close(self) -> None:
        """Let another process write the table."""
        self._files.unlock()

    def _next_number(self) -> int:
        newest = self._newest()
        return 1 if newest is None else newest[0].number + 1

    def _newest(self) -> tuple[JobCommit, pa.Schema] | None:
        if self._last is not None:
            return self._last
        number = self._files.last_number()
        return self._files.read_commit(number) if number else None

    def _check_staged(self, commit: JobCommit) -> None:
        """A commit that is prepared is rolled forward for ever: its files have to be here."""
        staging = staging_name(commit.number)
        for each in commit.files:
            if not self._files.folder.exists(f"{staging}/{each.path}"):
                raise PipelineError(
                    f"a task has written {staging}/{each.path} and it is not in {self.location}"
                    " here: the table needs a folder that all of Spark's machines share, or a URI"
                    " such as s3://BUCKET/TABLE"
                )

    def _finish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        self._log.publish(job, commit, schema)
        self._files.finish_commit(commit)
        self._files.empty_staging()
        self._last = (commit, schema)


def open_table(kind: str, location: str, options: Mapping[str, str] | None = None) -> TableTarget:
    """Open a table at a folder or a URI of pyarrow.fs; an empty `kind` takes what the job wrote.

    Options: for Iceberg `catalog.*` (pyiceberg's names: `catalog.uri`, `catalog.type`; by default a
    sqlite catalog in the folder) and `catalog.table` (default `odradek.<job name>`); for Delta
    `storage.*` (deltalake's storage options).
    """
    files = JobFolder(TableFolder(location))
    job = files.job()
    if not kind:
        if job is None:
            raise PipelineError(f"{location} is no table of a job: it has no _odradek/job.json")
        kind = job.format
    elif job is not None and job.format != kind:
        raise PipelineError(
            f"table {location} was made with format {job.format} and not {kind}: set format to"
            f" {job.format}, or choose another table"
        )
    file_log = FileLog(files)
    return TableTarget(files, file_log, open_log(kind, files, file_log, options or {}))


def open_log(
    kind: str, files: JobFolder, file_log: FileLog, options: Mapping[str, str]
) -> TableLog:
    """The part of a table that is of its format, by which files are published and read."""
    # Imported when they are used: each is an extra of its own.
    if kind == "parquet":
        return ParquetLog(files, file_log)
    if kind == "delta":
        from odradek.pipeline.tables.delta_log import DeltaLog

        return DeltaLog(files, options)
    if kind == "iceberg":
        from odradek.pipeline.tables.iceberg_log import IcebergLog

        return IcebergLog(files, options)
    raise PipelineError(f"format is {kind!r}: take one of {', '.join(FORMATS)}")


def _check_same(known: TableJob, job: TableJob, location: str) -> None:
    """PipelineError that says what differs first: rows of two jobs must not mix."""
    for name in TableJob.__slots__:
        before, now = getattr(known, name), getattr(job, name)
        if before != now:
            raise PipelineError(
                f"table {location} was made with {name.replace('_', '.')} {_shown(before)} and not"
                f" {_shown(now)}: choose another table, or go back to that"
            )


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value) or "(none)"
