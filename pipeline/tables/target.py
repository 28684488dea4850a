"""A table that a job writes: Parquet, Delta or Iceberg, opened by `open_table`.

All three are used alike. `prepare` writes the plan down, tasks write Parquet files below `staging`,
`commit` makes them visible at once. Opening a table finishes a commit that a crash interrupted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import JobCommit, JobPlan, PlanResult, TableJob
from odradek.pipeline.tables.staging import StagingPlace

FORMATS = ("parquet", "delta", "iceberg")


class TableTarget(Protocol):
    """An open table. Readers (verify, replay) use it without `claim`."""

    def job(self) -> TableJob | None:
        """The job that writes the table; None before `claim` was ever called."""

    def claim(self, job: TableJob) -> None:
        """Be the only writer until `close`, and write `job` down for good the first time.

        PipelineError if the table is of another job, or if another process writes it now.
        """

    def last_commit(self) -> JobCommit | None:
        """The newest commit; None for a table without one."""

    def commits(self) -> Iterator[JobCommit]:
        """All commits, oldest first, with their files as they were added."""

    def pending(self) -> JobPlan | None:
        """The plan that was prepared and not committed."""

    def prepare(self, plan: JobPlan) -> None:
        """Write the plan down, durably, and empty its staging folder."""

    def staging(self, plan: JobPlan) -> StagingPlace:
        """Where the tasks of a prepared plan write their files; sent to them."""

    def commit(self, plan: JobPlan, result: PlanResult) -> JobCommit:
        """Make the files visible at once, with columns that the table did not have.

        The same plan again does nothing and returns the commit that there is.
        """

    def schema(self) -> pa.Schema | None:
        """The columns of the table, the time partition last; None for a table without commits."""

    def scan(
        self, columns: Sequence[str] | None = None, wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the committed table, in any order; a column that a file lacks is null.

        All columns by default. Of `wanted` topic, partition and offsets count, not the id.
        """

    def close(self) -> None:
        """Let another process write the table."""


def open_table(kind: str, location: str, options: Mapping[str, str] | None = None) -> TableTarget:
    """Open a table at a folder or a URI of pyarrow.fs; an empty `kind` takes what is there.

    Options: for Iceberg `catalog.*` (pyiceberg's names: `catalog.uri`, `catalog.type`; by default a
    sqlite catalog in the folder) and `identifier` (default `odradek.<job name>`); for Delta
    `storage.*` (deltalake's storage options).
    """
    raise PipelineError("not yet")
