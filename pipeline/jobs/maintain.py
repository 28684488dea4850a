"""`maintain`: compacts small files and expires old versions of a table that a job writes.

It holds the table's lock, so the job does not run meanwhile, and a commit that a crash interrupted
is finished first. Rows stay what they are: `verify` says the same before and after.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.maintenance import maintain_table
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
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
    """PipelineError if the job or another `maintain` runs now, and if a plan is not committed.

    A crash leaves a table that the next `maintain`, or the job's next start, puts in order.
    """
    if options.keep < KEEP_MIN:
        raise PipelineError(
            "keep is less than an hour: those who read the table now need its old files"
        )
    table = open_table("", options.table, options.table_options)
    job = table.job()
    if job is None:
        raise PipelineError(f"{options.table} is no table of a job: it has no _odradek/job.json")
    try:
        table.claim(job)
        pending = table.pending()
        if pending is not None:
            raise PipelineError(
                f"plan {pending.number} of {options.table} is not committed yet: let the"
                " job run first"
            )
        schema = table.schema()
        if schema is None:
            return MaintenanceReport()
        return maintain_table(
            options.table,
            options.table_options,
            job,
            schema,
            target_bytes=options.target_bytes,
            keep=options.keep,
            dry_run=options.dry_run,
        )
    except OSError as error:
        text = " ".join(str(error).split())
        raise PipelineError(
            f"{options.table} cannot be compacted: {text}; no row has changed, run it again"
        ) from error
    finally:
        table.close()
