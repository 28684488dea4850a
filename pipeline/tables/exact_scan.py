"""Rows of a table exactly as its files have them, window after window: what `verify` compares.

The list of files is read once: a table may have many thousand commits, and what its job commits
meanwhile is of later offsets. Arrow reads the files of all formats. (pyiceberg's own reader gives
an empty list for one that is null.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.parquet_log import scan_dataset
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.target import TableTarget

_OFFSET_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A file, and what its rows are between, inclusively."""

    path: str
    """Of its file system."""
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_hold(self, wanted: PartitionRange | None) -> bool:
        """Whether rows of the range can be in it."""
        return wanted is None or (
            self.partitions[0] <= wanted.partition <= self.partitions[1]
            and self.offsets[0] < wanted.end
            and self.offsets[1] >= wanted.start
        )


class ExactScan:
    """Scans of a table, for rows that are committed when it is made."""

    def __init__(self, table: TableTarget) -> None:
        job, self._schema = table.job(), table.schema()
        self._kind = "" if job is None else job.format
        self._table = table
        self._time = "" if job is None else time_column(job.time_partition)
        self._folder = TableFolder(table.location)
        self._files: list[_Bounds] | None = None

    def batches(
        self, columns: Sequence[str], wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `TableTarget.scan`, with nulls as they were written."""
        if self._schema is None:
            return iter(())
        if self._kind == "delta":
            # Delta's log has all in its checkpoints, and says which rows of a file are deleted.
            return self._table.scan(columns, wanted)
        if self._files is None:
            self._files = self._iceberg() if self._kind == "iceberg" else self._parquet()
        # A file that a compaction wrote is there once for each partition.
        paths = [*dict.fromkeys(each.path for each in self._files if each.may_hold(wanted))]
        if not paths:
            return iter(())
        is_in_path = self._time and self._kind == "parquet"
        found = ds.dataset(
            paths,
            schema=self._schema,
            format="parquet",
            filesystem=self._folder.filesystem,
            partitioning=ds.partitioning(pa.schema([self._schema.field(self._time)]), flavor="hive")
            if is_in_path
            else None,
            partition_base_dir=self._folder.path,
        )
        return scan_dataset(found, columns, wanted)

    def read(self, columns: Sequence[str], wanted: PartitionRange) -> list[pa.RecordBatch]:
        """All rows of a range at once, also if a compaction replaces files meanwhile."""
        while True:
            try:
                return list(self.batches(columns, wanted))
            except FileNotFoundError:
                if not self.refresh():
                    raise

    def refresh(self) -> bool:
        """Read the list of files again; whether it is another one, as after a compaction."""
        known = self._files
        if self._kind == "parquet":
            self._files = self._parquet()
        return known != self._files

    def _parquet(self) -> list[_Bounds]:
        return [
            _Bounds(
                self._folder.path_of(file.path),
                (file.partition, file.partition),
                (file.first_offset, file.last_offset),
            )
            for file in self._table.files()
        ]

    def _iceberg(self) -> list[_Bounds]:
        # An extra of its own.
        from odradek.pipeline.tables.iceberg_log import IcebergLog

        log, job = self._table._log, self._table.job()
        if not isinstance(log, IcebergLog) or job is None:
            return []
        try:
            table = log.load(job)
            tasks = list(table.scan().plan_files())
            names = ("kafka_partition", "kafka_offset")
            fields = [table.schema().find_field(name).field_id for name in names]
        except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
            raise log.failure(error) from error
        if any(task.delete_files for task in tasks):
            raise PipelineError(
                f"table {self._table.location} has deletes by row, which no job of ours makes:"
                " rewrite its data files with Spark's procedure rewrite_data_files first"
            )
        return [
            _Bounds(
                fs.FileSystem.from_uri(task.file.file_path)[1],
                *(
                    (
                        _bound(task.file.lower_bounds, field, -_OFFSET_END),
                        _bound(task.file.upper_bounds, field, _OFFSET_END),
                    )
                    for field in fields
                ),
            )
            for task in tasks
        ]


def _bound(bounds: Mapping[int, bytes] | None, field: int, default: int) -> int:
    """As Iceberg serializes int and long."""
    found = (bounds or {}).get(field)
    return default if found is None else int.from_bytes(found, "little", signed=True)
