"""`maintain`: compacts small files and expires old versions of a table that a job writes.

It holds the table's lock, so the job does not run meanwhile, and a commit that a crash interrupted
is finished first. Rows stay what they are: `verify` says the same before and after.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.maintenance import (
    MaintenanceReport,
    maintain_delta,
    maintain_iceberg,
)
from odradek.pipeline.tables.target import open_table

TARGET_BYTES: Final = 128 << 20
KEEP_MIN: Final = timedelta(hours=1)
"""Whoever reads a table has its version of the time when it was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainOptions:
    """Which table, and how."""

    table: str
    """A path, or a URI."""
    target_bytes: int = TARGET_BYTES
    """Of a compacted file, about."""
    keep: timedelta = timedelta(days=7)
    """Versions of this time stay readable."""
    dry_run: bool = False
    table_options: Mapping[str, str] = field(default_factory=dict)
    """`storage.*` and `catalog.*` as `open_table` takes them."""


def maintain(options: MaintainOptions) -> MaintenanceReport:
    """PipelineError if the job runs now, and for a table of Parquet files."""
    if options.keep < KEEP_MIN:
        raise PipelineError(
            "keep is less than an hour: those who read the table now need its old files"
        )
    table = open_table("", options.table, options.table_options)
    job = table.job()
    if job is None:
        raise PipelineError(f"{options.table} is no table of a job: it has no _odradek/job.json")
    if job.format == "parquet":
        # Readers see the files as they are: there is no moment at which one file takes the place
        # of many for all of them.
        raise PipelineError(
            f"{options.table} is a folder of Parquet files, which cannot be exchanged while others"
            " read it: take larger plans (rows.per.trigger, --every), or format delta"
        )
    table.claim(job)
    try:
        pending = table.pending()
        if pending is not None:
            raise PipelineError(
                f"plan {pending.number} of {options.table} is not committed yet: let the"
                " job run first"
            )
        if job.format == "delta":
            return maintain_delta(
                options.table,
                options.table_options,
                target_bytes=options.target_bytes,
                keep=options.keep,
                dry_run=options.dry_run,
            )
        return maintain_iceberg(
            options.table, options.table_options, job, keep=options.keep, dry_run=options.dry_run
        )
    finally:
        table.close()
