"""What keeps a table small and quick, without a change of its rows: exactly once stays proven.

Delta: small files become large ones in one version, old versions' files are deleted. Iceberg:
snapshots expire. Called by jobs/maintain.py while it has the table's lock, so no plan is halfway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import TableJob
from odradek.pipeline.tables.table_folder import TableFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What was done, or with a dry run what would be."""

    compacted: int = 0
    """Files that became part of a larger one."""
    written: int = 0
    """The larger ones."""
    deleted: int = 0
    """Files of old versions."""
    expired: int = 0
    """Snapshots."""


def maintain_delta(
    location: str, options: Mapping[str, str], *, target_bytes: int, keep: timedelta, dry_run: bool
) -> MaintenanceReport:
    """Compact to files of about `target_bytes`, and delete what no version of `keep` needs.

    The versions of applications (which plans are committed) are in the checkpoint that is written.
    A dry run tells the deletions only.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder = TableFolder(location)
    storage = {
        name.removeprefix("storage."): value
        for name, value in options.items()
        if name.startswith("storage.")
    }
    uri = folder.path if folder.is_local else location
    metrics = {"numFilesRemoved": 0, "numFilesAdded": 0}
    try:
        table = DeltaTable(uri, storage_options=storage or None)
        if not dry_run:
            metrics = table.optimize.compact(target_size=target_bytes)
            if metrics["numFilesRemoved"]:
                table.create_checkpoint()
        # A file counts as old from the time when it left the table.
        deleted = table.vacuum(
            retention_hours=-(-keep // timedelta(hours=1)),
            dry_run=dry_run,
            enforce_retention_duration=False,
        )
    except DeltaError as error:
        text = " ".join(str(error).split())
        raise PipelineError(f"Delta table {location}: {text}") from error
    return MaintenanceReport(
        compacted=metrics["numFilesRemoved"],
        written=metrics["numFilesAdded"],
        deleted=len(deleted),
    )


def maintain_iceberg(
    location: str, options: Mapping[str, str], job: TableJob, *, keep: timedelta, dry_run: bool
) -> MaintenanceReport:
    """Expire the snapshots that are older than `keep`; the current one stays.

    pyiceberg does not rewrite data files: Spark's procedure `rewrite_data_files` does.
    """
    from odradek.pipeline.tables.iceberg_log import IcebergLog

    before = datetime.now(UTC) - keep
    log = IcebergLog(JobFolder(TableFolder(location)), options)
    table = log._catalog().load_table(log._name(job))
    current = table.current_snapshot()
    old = [
        each.snapshot_id
        for each in table.snapshots()
        if each.timestamp_ms < before.timestamp() * 1000
        and (current is None or each.snapshot_id != current.snapshot_id)
    ]
    if old and not dry_run:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    return MaintenanceReport(expired=len(old))
