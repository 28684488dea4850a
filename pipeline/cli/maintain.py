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
@click.option("--dry-run", is_flag=True, help="Change nothing, and say what would be deleted.")
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

    The job must not run meanwhile. Delta: small files become large ones, files of old versions are
    deleted. Iceberg: old snapshots expire. A folder of Parquet files has no versions: refused.

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
    would = "would be " if dry_run else ""
    if report.compacted:
        click.echo(f"{report.compacted:,} files compacted to {report.written:,}")
    if report.expired:
        click.echo(f"{report.expired:,} snapshots {would}expired")
    if report.deleted:
        click.echo(f"{report.deleted:,} files of old versions {would}deleted")
    if not (report.compacted or report.expired or report.deleted):
        click.echo("nothing to do")
