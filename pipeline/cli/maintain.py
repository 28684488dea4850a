"""`odradek pipe maintain`: compacts small files of a table, and expires its old versions."""

import os
import re
from datetime import timedelta
from typing import Final

import click

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import check_count, parse_properties

_AGE: Final = re.compile(r"(\d+)([hd])")


class Age(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click only
    """A time such as 12h or 7d."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value} is no age: write 12h or 7d", param, ctx)
        count = int(found[1])
        return timedelta(hours=count) if found[2] == "h" else timedelta(days=count)


@click.command("maintain")
@click.argument("table")
@click.option(
    "--target-size", default="128M", show_default=True, help="Bytes of a compacted file, about."
)
@click.option(
    "--keep", type=Age(), default="7d", show_default=True, help="Versions of this time stay."
)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing, and say what would be done (Delta: deleted)."
)
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="storage.NAME for Delta, catalog.NAME for Iceberg.",
)
def command(
    table: str, target_size: str, keep: timedelta, dry_run: bool, properties: tuple[str, ...]
) -> None:
    """Compact small files and expire old versions of TABLE; its rows stay what they are.

    The job must not run meanwhile. Small files of a time partition become large ones: in one
    version (Delta) or one snapshot (Iceberg), and what is older than --keep is deleted.

    A folder of Parquet files has no versions. One after the other, a large file is renamed into its
    place and the small ones are deleted. Whoever lists the folder in the milliseconds between sees
    these rows twice, or not at all if the listing had passed the large file's name; whoever has
    listed it before finds files gone, and has to read again. `verify` and `replay` see none of
    this. After a crash rows may be there twice until `maintain` or the job starts again.

    \b
    odradek pipe maintain lake/orders --keep 2d
    """
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.maintain import MaintainOptions, maintain

    try:
        options = MaintainOptions(
            table=table if "://" in table else os.path.abspath(os.path.expanduser(table)),
            target_bytes=check_count("target-size", target_size),
            keep=keep,
            dry_run=dry_run,
            table_options=parse_properties(properties),
        )
    except PipelineError as error:
        raise click.UsageError(str(error)) from error
    report = maintain(options)
    for line in report.lines(dry_run=dry_run):
        click.echo(line)
