"""Rows of a list of Parquet files as Arrow has them: a null list is not an empty one.

What a Parquet table and an Iceberg table have committed at one time. Only files that may hold rows
of a range are opened. (pyiceberg's own reader gives an empty list for one that is null.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.dataset as ds

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.table_folder import TableFolder


@dataclass(frozen=True, slots=True)
class FileBounds:
    """A file, and what its rows are between, inclusively."""

    path: str
    """Of its file system."""
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    topic: str = ""
    """Empty if that is not known."""

    @classmethod
    def of(cls, file: DataFile, folder: TableFolder) -> Self:
        """Of a file that a job wrote, or of one Kafka partition in a compacted file."""
        return cls(
            folder.path_of(file.path),
            (file.partition, file.partition),
            (file.first_offset, file.last_offset),
            file.topic,
        )

    def may_hold(self, wanted: PartitionRange) -> bool:
        """Whether rows of the range can be in it."""
        return (
            self.topic in ("", wanted.topic)
            and self.partitions[0] <= wanted.partition <= self.partitions[1]
            and self.offsets[0] < wanted.end
            and self.offsets[1] >= wanted.start
        )


@dataclass(frozen=True, slots=True)
class ParquetSnapshot:
    """Files, which are equal to others if they are the same."""

    files: tuple[FileBounds, ...]
    """A file that a compaction wrote is there once for each partition."""
    folder: TableFolder = field(compare=False)
    schema: pa.Schema = field(compare=False)
    """Of the table: a column that a file lacks is null."""
    path_column: str = field(default="", compare=False)
    """The column that is in the paths and not in the files, as Hive has it."""

    def scan(
        self, columns: Sequence[str], wanted: PartitionRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, in any order; FileNotFoundError if a file is not there."""
        paths = dict.fromkeys(
            each.path for each in self.files if wanted is None or each.may_hold(wanted)
        )
        if not paths:
            return
        in_path = pa.schema([self.schema.field(self.path_column)] if self.path_column else [])
        found = ds.dataset(
            [*paths],
            schema=self.schema,
            format="parquet",
            filesystem=self.folder.filesystem,
            partitioning=ds.partitioning(in_path, flavor="hive") if self.path_column else None,
            partition_base_dir=self.folder.path,
        )
        yield from scan_dataset(found, columns, wanted)


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
