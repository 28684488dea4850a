"""A Delta table, committed by deltalake without Spark and without a JVM.

A plan is one version of the table. The version names the plan as the transaction of an application
(Delta's `txn` action), which the protocol lets nobody commit twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import DataFile, JobCommit, TableJob
from odradek.pipeline.tables.parquet_log import move_into_place
from odradek.pipeline.tables.parquet_snapshot import scan_dataset
from odradek.pipeline.tables.rows import time_column

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction
except ImportError as error:
    raise PipelineError(
        "format delta needs the package deltalake: pip install 'odradek[delta]'"
    ) from error


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """A version of the table: its log has the files, and says which of their rows are deleted."""

    version: int
    dataset: ds.Dataset = field(compare=False)

    def scan(
        self, columns: Sequence[str], wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, in any order."""
        yield from scan_dataset(self.dataset, columns, wanted)


class DeltaLog:
    """Commits by version; `storage.*` options are deltalake's storage options."""

    is_time_in_file = False

    def __init__(self, files: JobFolder, options: Mapping[str, str]) -> None:
        self._files = files
        folder = files.folder
        self._uri = folder.path if folder.is_local else folder.location
        self._storage = {
            name.removeprefix("storage."): value
            for name, value in options.items()
            if name.startswith("storage.")
        }

    def publish(self, job: TableJob, commit: JobCommit, schema: pa.Schema) -> None:
        """One version of the table; columns that it does not have are added by a version before."""
        time = time_column(job.time_partition)
        try:
            table = self._opened(job, schema, time)
            application = f"odradek.{commit.job}"
            if (table.transaction_version(application) or 0) >= commit.number:
                return
            move_into_place(self._files.folder, commit)
            known = {each.name for each in table.schema().fields}
            added = [each for each in Schema.from_arrow(schema).fields if each.name not in known]
            if added:
                table.alter.add_columns(added)
            table.create_write_transaction(
                [_add_action(file, time, commit.committed_ms) for file in commit.files],
                "append",
                table.schema(),
                [time] if time else None,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application, commit.number, commit.committed_ms)],
                    custom_metadata={"job": commit.job, "plan": str(commit.number)},
                ),
            )
        except DeltaError as error:
            raise self._failure(error) from error

    def snapshot(self, job: TableJob, schema: pa.Schema) -> DeltaSnapshot:
        """The newest version."""
        try:
            table = DeltaTable(self._uri, storage_options=self._storage or None)
            # Arrow's own file system: deltalake's is of Python, and a thread of Arrow that asks it
            # while Python exits aborts the process, whatever the exit code was to be.
            folder = self._files.folder
            files = fs.SubTreeFileSystem(folder.path, folder.filesystem)
            found = table.to_pyarrow_dataset(filesystem=files, schema=schema)
        except DeltaError as error:
            raise self._failure(error) from error
        return DeltaSnapshot(table.version(), found)

    def _opened(self, job: TableJob, schema: pa.Schema, time: str) -> DeltaTable:
        storage = self._storage or None
        if DeltaTable.is_deltatable(self._uri, storage):
            return DeltaTable(self._uri, storage_options=storage)
        return DeltaTable.create(
            self._uri,
            schema=schema,
            partition_by=[time] if time else None,
            name=job.name,
            storage_options=storage,
        )

    def _failure(self, error: Exception) -> PipelineError:
        text = " ".join(str(error).split())
        return PipelineError(f"Delta table {self._files.folder.location}: {text}")


def _add_action(file: DataFile, time: str, committed_ms: int) -> AddAction:
    """With the statistics that readers skip files by."""
    statistics = {
        "numRecords": file.rows,
        "minValues": {
            "kafka_topic": file.topic,
            "kafka_partition": file.partition,
            "kafka_offset": file.first_offset,
        },
        "maxValues": {
            "kafka_topic": file.topic,
            "kafka_partition": file.partition,
            "kafka_offset": file.last_offset,
        },
        "nullCount": {"kafka_topic": 0, "kafka_partition": 0, "kafka_offset": 0},
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={time: file.time} if time else {},
        modification_time=committed_ms,
        data_change=True,
        stats=json.dumps(statistics),
    )
