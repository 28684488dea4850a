"""Compacts a folder of Parquet files: small files of one time partition become one.

A larger file is written below the staging folder, and then takes the place of the smaller ones in
the order that file_log.py describes: one file after the other, so a crash leaves at most one of
them halfway, which is finished by whoever has the table's lock next. A compacted file has rows of
many Kafka partitions: the log says of each which offsets it has there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

import pyarrow as pa

from odradek.pipeline.tables.file_compaction import (
    CompactionSource,
    compaction_groups,
    merge_files,
)
from odradek.pipeline.tables.file_log import COMPACTED, FileLog
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import DataFile, TableJob
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.table_folder import TableFolder

UNFOLDED_COMMITS_MAX: Final = 100
"""Reading a log of so many commits takes hundredths of a second; then a checkpoint is made."""


def maintain_parquet(
    location: str, job: TableJob, schema: pa.Schema, *, target_bytes: int, dry_run: bool
) -> MaintenanceReport:
    """Compact to files of about `target_bytes`, and fold the log into a checkpoint.

    Called with the table's lock. PipelineError for a file that is damaged or lost: it stays, and
    files that were compacted before it stay compacted.
    """
    folder = TableFolder(location)
    files = JobFolder(folder)
    log = FileLog(files)
    by_path: dict[str, list[DataFile]] = {}
    for each in log.files():
        by_path.setdefault(each.path, []).append(each)
    groups = compaction_groups(map(_source, by_path.values()), target_bytes)
    time = time_column(job.time_partition)
    columns = pa.schema([each for each in schema if each.name != time])
    if not dry_run:
        try:
            for group in groups:
                parts = [part for source in group for part in by_path[source.path]]
                log.replace([each.path for each in group], _merge(folder, group, parts, columns))
        finally:
            files.empty_staging()
    commits, compactions = log.unfolded()
    is_long = commits > UNFOLDED_COMMITS_MAX or compactions
    return MaintenanceReport(
        compacted=sum(map(len, groups)),
        written=len(groups),
        folded=log.fold() if is_long and not dry_run else 0,
    )


def parts_of(parts: Iterable[DataFile], path: str, size: int) -> tuple[DataFile, ...]:
    """The parts of a file of `size` bytes with the rows of other files, in this order.

    Parts of a Kafka partition that follow each other become one.
    """
    made: list[DataFile] = []
    for each in parts:
        last = made[-1] if made else None
        if (
            last is not None
            and (last.topic, last.partition) == (each.topic, each.partition)
            and last.last_offset < each.first_offset
        ):
            made[-1] = replace(last, last_offset=each.last_offset, rows=last.rows + each.rows)
        else:
            made.append(replace(each, path=path))
    rows = sum(each.rows for each in made)
    return tuple(replace(each, bytes=size * each.rows // max(rows, 1)) for each in made)


def _merge(
    folder: TableFolder,
    group: Sequence[CompactionSource],
    parts: Sequence[DataFile],
    columns: pa.Schema,
) -> tuple[DataFile, ...]:
    place = group[0].path.rpartition("/")[0]
    name = f"compacted-{uuid4().hex}.parquet"
    path = f"{place}/{name}" if place else name
    size = merge_files(folder, group, f"{COMPACTED}/{path}", columns)
    return parts_of(parts, path, size)


def _source(parts: Sequence[DataFile]) -> CompactionSource:
    return CompactionSource(
        path=parts[0].path,
        time=parts[0].time,
        first_row=min((each.topic, each.partition, each.first_offset) for each in parts),
        rows=sum(each.rows for each in parts),
        bytes=sum(each.bytes for each in parts),
    )
