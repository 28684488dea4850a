"""What keeps a table small and quick, without a change of its rows: exactly once stays proven.

One function for all formats, and Delta's own part: small files become large ones in one version,
old versions' files are deleted. Called by jobs/maintain.py while it has the table's lock, so no
plan is halfway.
"""

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_plan import TableJob
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
from odradek.pipeline.tables.parquet_compaction import maintain_parquet
from odradek.pipeline.tables.table_folder import TableFolder


def maintain_table(
    location: str,
    options: Mapping[str, str],
    job: TableJob,
    schema: pa.Schema,
    *,
    target_bytes: int,
    keep: timedelta,
    dry_run: bool,
) -> MaintenanceReport:
    """Compact to files of about `target_bytes`, and delete what is older than `keep`.

    `schema` is that of the table. A Parquet table has no old versions. PipelineError for what the
    table or its catalog refuses.
    """
    if job.format == "parquet":
        return maintain_parquet(location, job, schema, target_bytes=target_bytes, dry_run=dry_run)
    if job.format == "delta":
        return maintain_delta(
            location, options, target_bytes=target_bytes, keep=keep, dry_run=dry_run
        )
    # An extra of its own.
    from odradek.pipeline.tables.iceberg_compaction import maintain_iceberg

    return maintain_iceberg(
        location, options, job, schema, target_bytes=target_bytes, keep=keep, dry_run=dry_run
    )


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
