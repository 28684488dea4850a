"""Where and how tasks write the files of a plan: below `_odradek/staging/<number>/` of the table.

A file has its name from the plan, its piece and chance: an attempt of a task that Spark runs again
never touches the file of another attempt, and only the files that the driver was told of are
committed. A file is durable before the driver hears of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odradek.pipeline.kafka_types import HEADER_TYPE, PartitionRange
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.rows import BadRecord
from odradek.pipeline.tables.table_folder import TableFolder, sync_file

COMPRESSION: Final = "zstd"
ROW_GROUP_BYTES: Final = 32 << 20
"""Of Arrow: what is held for a file before it is written."""
HELD_BYTES_MAX: Final = 128 << 20
"""Of all files of a piece."""
OPEN_FILES_MAX: Final = 100
"""Of a piece: records with times of many years are spread over many folders."""

BAD_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER_TYPE)),
    ]
)
# Bytes that hardly repeat, and numbers that never do: a dictionary of them costs time only.
_WITHOUT_DICTIONARY: Final = frozenset(
    {"kafka_value", "kafka_key", "kafka_offset", "kafka_timestamp"}
)
_WITHOUT_STATISTICS: Final = frozenset({"kafka_value", "kafka_key", "kafka_headers"})


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """A staging folder, as it is sent to the tasks."""

    folder: str
    """A path, or a URI of pyarrow.fs."""
    plan_number: int
    time_column: str
    """`kafka_date`, `kafka_hour`, or empty."""
    is_time_in_file: bool
    """Whether files hold the time column; it is in the folder's name in any case."""
    compression: str = COMPRESSION


@dataclass(slots=True)
class _OpenFile:
    """The file of one time."""

    time: str
    path: str
    held: list[pa.Table] = field(default_factory=list)
    held_bytes: int = 0
    writer: pq.ParquetWriter | None = None
    first_offset: int = -1
    last_offset: int = -1
    rows: int = 0


class PieceWriter:
    """Writes rows of one range of offsets, in offset order, into a file for each time.

    `close` gives the files; without it nothing of the piece is used.
    """

    def __init__(self, place: StagingPlace, wanted: PartitionRange) -> None:
        self._place = place
        self._wanted = wanted
        self._folder = TableFolder(place.folder)
        self._open: dict[str, _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._bad: pq.ParquetWriter | None = None
        self._bad_path = ""

    def add(self, rows: pa.Table) -> None:
        """Rows as `rows_of` gives them."""
        for time, part in self._by_time(rows):
            self._hold(time, part)
        held = sum(each.held_bytes for each in self._open.values())
        while held > HELD_BYTES_MAX:
            largest = max(self._open.values(), key=lambda each: each.held_bytes)
            held -= largest.held_bytes
            self._write_group(largest)

    def add_bad(self, records: Iterable[BadRecord]) -> None:
        """Records for the dead-letter topic: the driver sends them."""
        listed = [
            {
                name: getattr(each, name)
                if name != "headers"
                else [{"key": key, "value": value} for key, value in each.headers]
                for name in BadRecord.__slots__
            }
            for each in records
        ]
        if not listed:
            return
        if self._bad is None:
            self._bad_path = f"bad-{self._file_name()}"
            self._folder.filesystem.create_dir(self._folder.path, recursive=True)
            self._bad = parquet_writer(
                self._folder, self._bad_path, BAD_SCHEMA, self._place.compression
            )
        self._bad.write_table(pa.Table.from_pylist(listed, schema=BAD_SCHEMA))

    def close(self) -> tuple[list[DataFile], str]:
        """The finished files, and the name of that of the bad records: empty without any."""
        for each in [*self._open.values()]:
            self._finish(each)
        if self._bad is not None:
            self._bad.close()
            self._sync(self._bad_path)
        return self._finished, self._bad_path

    def _by_time(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if rows.num_rows == 0:
            return
        name = self._place.time_column
        if not name:
            yield "", rows
            return
        times = rows.column(name)
        # Sorting is stable, so rows of the same time stay in the order of their offsets.
        if pc.min_max(times)["min"] != pc.min_max(times)["max"]:
            rows = rows.take(pc.sort_indices(times))
        counts = pc.value_counts(rows.column(name))
        kept = rows if self._place.is_time_in_file else rows.drop_columns([name])
        start = 0
        for each in counts.to_pylist():
            yield each["values"], kept.slice(start, each["counts"])
            start += each["counts"]

    def _hold(self, time: str, rows: pa.Table) -> None:
        file = self._open.pop(time, None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(next(iter(self._open.values())))
            folder = f"{self._place.time_column}={time}/" if time else ""
            file = _OpenFile(time, f"{folder}{self._file_name()}")
            file.first_offset = rows.column("kafka_offset")[0].as_py()
        # The order of the dictionary is that of the last use.
        self._open[time] = file
        file.held.append(rows)
        file.held_bytes += rows.nbytes
        file.rows += rows.num_rows
        file.last_offset = rows.column("kafka_offset")[-1].as_py()
        if file.held_bytes >= ROW_GROUP_BYTES:
            self._write_group(file)

    def _write_group(self, file: _OpenFile) -> None:
        if not file.held:
            return
        rows = pa.concat_tables(file.held)
        if file.writer is None:
            path = self._folder.path_of(file.path)
            self._folder.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            compression = self._place.compression
            file.writer = parquet_writer(self._folder, file.path, rows.schema, compression)
        file.writer.write_table(rows)
        file.held, file.held_bytes = [], 0

    def _finish(self, file: _OpenFile) -> None:
        self._write_group(file)
        del self._open[file.time]
        if file.writer is None:
            return
        file.writer.close()
        self._sync(file.path)
        size = self._folder.filesystem.get_file_info(self._folder.path_of(file.path)).size
        self._finished.append(
            DataFile(
                path=file.path,
                time=file.time,
                topic=self._wanted.topic,
                partition=self._wanted.partition,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                rows=file.rows,
                bytes=size,
            )
        )

    def _file_name(self) -> str:
        place, wanted = self._place, self._wanted
        return f"{place.plan_number:010d}-{wanted.partition}-{wanted.start}-{uuid4().hex}.parquet"

    def _sync(self, name: str) -> None:
        if self._folder.is_local:
            path = self._folder.path_of(name)
            sync_file(path)
            sync_file(path.rpartition("/")[0])


def parquet_writer(
    folder: TableFolder, name: str, schema: pa.Schema, compression: str = COMPRESSION
) -> pq.ParquetWriter:
    """Of a file of a table, with statistics and dictionaries for what has use for them."""
    leaves = [*_leaves(schema)]
    return pq.ParquetWriter(
        folder.path_of(name),
        schema,
        filesystem=folder.filesystem,
        compression=compression,
        use_dictionary=[leaf for leaf in leaves if leaf not in _WITHOUT_DICTIONARY],
        write_statistics=[
            leaf for leaf in leaves if leaf.partition(".")[0] not in _WITHOUT_STATISTICS
        ],
    )


def read_bad(place: StagingPlace, name: str) -> Iterator[BadRecord]:
    """The bad records that a task wrote, in offset order."""
    folder = TableFolder(place.folder)
    with pq.ParquetFile(folder.path_of(name), filesystem=folder.filesystem) as file:
        for batch in file.iter_batches():
            for each in batch.to_pylist():
                headers = tuple((header["key"], header["value"]) for header in each["headers"])
                yield BadRecord(**each | {"headers": headers})


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """Paths of columns as Parquet has them, for options that are set by column."""

    def below(kind: pa.DataType, path: str) -> Iterator[str]:
        if pa.types.is_struct(kind):
            for child in kind:
                yield from below(child.type, f"{path}.{child.name}")
        elif pa.types.is_map(kind):
            yield from below(kind.key_type, f"{path}.key_value.key")
            yield from below(kind.item_type, f"{path}.key_value.value")
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            yield from below(kind.value_type, f"{path}.list.element")
        else:
            yield path

    for column in schema:
        yield from below(column.type, column.name)
