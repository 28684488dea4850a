"""Compacts an Iceberg table and expires its snapshots, with what pyiceberg has for it.

Larger files are written to their places, where no snapshot knows them, and one snapshot puts them
in the place of the small ones. Its operation is `overwrite`: pyiceberg has no `replace`. It names
the job's last plan, as the snapshots of plans do. pyiceberg expires snapshots and leaves their
files: those that no snapshot has any more are deleted here, and with them what a compaction wrote
that did not come to its end.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import pyarrow as pa

# First: it says which package is missing.
from odradek.pipeline.tables.iceberg_log import IcebergLog  # isort: skip
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from odradek.pipeline.tables.file_compaction import (
    CompactionSource,
    compaction_groups,
    merge_files,
)
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import TableJob
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
from odradek.pipeline.tables.rows import time_column
from odradek.pipeline.tables.table_folder import TableFolder

_OURS: Final = re.compile(r"(?:\d{10}-\d+-\d+|compacted)-[0-9a-f]{32}\.parquet")
"""Names of files that jobs and compactions write; other engines may write files of their own."""


def maintain_iceberg(
    location: str,
    options: Mapping[str, str],
    job: TableJob,
    schema: pa.Schema,
    *,
    target_bytes: int,
    keep: timedelta,
    dry_run: bool,
) -> MaintenanceReport:
    """Compact to files of about `target_bytes`, and expire the snapshots that another one has
    followed longer ago than `keep`. Heads of branches and tags stay.

    Called with the table's lock. PipelineError for what the catalog refuses, and for a damaged
    file: nothing has changed then.
    """
    # Before the compaction: what it replaces was current until now, however old it is.
    before_ms = int((datetime.now(UTC) - keep).timestamp() * 1000)
    folder = TableFolder(location)
    log = IcebergLog(JobFolder(folder), options)
    table = log.load(job)
    try:
        files = _Files(folder, table, time_column(job.time_partition))
        groups = compaction_groups(files.sources(), target_bytes)
        if groups and not dry_run:
            written = files.merge(groups, schema)
            _replace(table, job, [files.of(each) for group in groups for each in group], written)
        old = _old_snapshots(table, before_ms)
        if old and not dry_run:
            _expire(table, old)
        unreferenced = files.unreferenced(
            [each for each in table.snapshots() if each.snapshot_id not in old]
        )
        if not dry_run:
            folder.delete_files(unreferenced)
    except Exception as error:  # pyiceberg's, sqlalchemy's, and those of any catalog
        raise log.failure(error) from error
    return MaintenanceReport(
        compacted=sum(map(len, groups)),
        written=len(groups),
        expired=len(old),
        deleted=len(unreferenced),
    )


class _Files:
    """The data files of a table that its job and its compactions wrote."""

    def __init__(self, folder: TableFolder, table: Table, time: str) -> None:
        self._folder = folder
        self._table = table
        self._time = time
        self._by_path: dict[str, IcebergFile] = {}

    def sources(self) -> list[CompactionSource]:
        """The files of the current snapshot, but for those that have deletes by row, and those
        of another partitioning or of other columns than the job's."""
        spec = self._table.spec()
        names = [each.name for each in spec.fields]
        if names != ([self._time] if self._time else []):
            return []
        fields = [
            self._table.schema().find_field(name).field_id
            for name in ("kafka_partition", "kafka_offset")
        ]
        found = []
        for task in self._table.scan().plan_files():
            file, path = task.file, self._path_in_folder(task.file.file_path)
            if task.delete_files or file.spec_id != spec.spec_id or not _is_ours(path):
                continue
            partition, offset = (
                int.from_bytes((file.lower_bounds or {}).get(field, b""), "little", signed=True)
                for field in fields
            )
            self._by_path[path] = file
            found.append(
                CompactionSource(
                    path=path,
                    time=str(file.partition[0]) if names else "",
                    first_row=("", partition, offset),
                    rows=file.record_count,
                    bytes=file.file_size_in_bytes,
                )
            )
        return found

    def of(self, source: CompactionSource) -> IcebergFile:
        """As the table's manifests have it."""
        return self._by_path[source.path]

    def merge(self, groups: Iterable[Sequence[CompactionSource]], schema: pa.Schema) -> list[str]:
        """Write a larger file for each group: their URIs. No snapshot has them yet, and if one
        fails none is left: the disk may be full."""
        written: list[str] = []
        try:
            for group in groups:
                place = group[0].path.rpartition("/")[0]
                name = f"compacted-{uuid4().hex}.parquet"
                path = f"{place}/{name}" if place else name
                merge_files(self._folder, group, path, pa.schema([*schema]))
                written.append(path)
        except BaseException:
            self._folder.delete_files(written)
            raise
        return [self._folder.uri_of(path) for path in written]

    def unreferenced(self, snapshots: Sequence[Snapshot]) -> list[str]:
        """Files of ours that none of these snapshots has: paths below the table's folder."""
        places = (
            [each for each in self._folder.names() if each.startswith(f"{self._time}=")]
            if self._time
            else [""]
        )
        there = {
            f"{place}/{name}" if place else name
            for place in places
            for name in self._folder.names(place)
            if _is_ours(name)
        }
        for each in _without_older(snapshots):
            if there:
                there -= self._live_in(each)
        return sorted(there)

    def _live_in(self, snapshot: Snapshot) -> set[str]:
        return {
            self._path_in_folder(entry.data_file.file_path)
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        }

    def _path_in_folder(self, uri: str) -> str:
        return uri.removeprefix(f"{self._folder.uri_of('').rstrip('/')}/")


def _is_ours(path: str) -> bool:
    return "://" not in path and _OURS.fullmatch(path.rpartition("/")[2]) is not None


def _replace(
    table: Table, job: TableJob, removed: Sequence[IcebergFile], added: Sequence[str]
) -> None:
    """One snapshot. pyiceberg refuses it if somebody has deleted one of the files meanwhile."""
    properties = {
        "odradek.job": job.name,
        "odradek.plan": table.properties.get(f"odradek.plan.{job.name}", ""),
    }
    with table.transaction() as transaction:
        metadata = transaction.table_metadata
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as update:
            for file in removed:
                update.delete_data_file(file)
            for uri in added:
                update.append_data_file(parquet_file_to_data_file(table.io, metadata, uri))


def _old_snapshots(table: Table, before_ms: int) -> list[int]:
    """Snapshots that were followed by another one before that time: until then it was the table's
    newest, and somebody may have opened it."""
    kept = {each.snapshot_id for each in table.refs().values()}
    followed_ms: dict[int, int] = {}
    for each in table.snapshots():
        parent = each.parent_snapshot_id
        if parent is not None:
            followed_ms[parent] = min(each.timestamp_ms, followed_ms.get(parent, each.timestamp_ms))
    return [
        each.snapshot_id
        for each in table.snapshots()
        if each.snapshot_id not in kept
        and followed_ms.get(each.snapshot_id, each.timestamp_ms) < before_ms
    ]


def _expire(table: Table, old: Sequence[int]) -> None:
    """With their lists of manifests: each is of one snapshot, and has all files of that time."""
    lists = [each.manifest_list for each in table.snapshots() if each.snapshot_id in old]
    table.maintenance.expire_snapshots().by_ids([*old]).commit()
    for path in lists:
        with suppress(FileNotFoundError):
            table.io.delete(path)


def _without_older(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Those that together have all files: what an append follows, the append has, too."""
    followed = {
        each.parent_snapshot_id
        for each in snapshots
        if each.summary is not None and each.summary.operation == Operation.APPEND
    }
    return [each for each in snapshots if each.snapshot_id not in followed]
