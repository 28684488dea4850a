"""`odradek pipe lag`: how far jobs are behind their topics."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from odradek.pipeline.cli.cluster_flags import takes_cluster
from odradek.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from odradek.pipeline.jobs.copy_options import ClusterAccess
    from odradek.pipeline.jobs.lag import JobLag

_COLUMNS: Final = ("group", "topic", "partition", "committed", "end", "records", "bytes", "seconds")
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


@click.command("lag")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@takes_cluster
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="For people or scripts."
)
def command(names: tuple[str, ...], access: "ClusterAccess", output: str) -> None:
    """Show the lag of jobs, by partition, in records, bytes and seconds.

    NAME is a job, or the name of a query with the stock connector that has our listener; all of
    the cluster by default. Bytes with ~ are estimated from the first unread records. Seconds are
    between the timestamps of the oldest unread record and the newest one.
    """
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.lag import GROUP_PREFIX, group_lag, job_groups
    from odradek.pipeline.jobs.text_table import aligned
    from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
    from odradek.pipeline.librdkafka import client_properties

    properties = client_properties(access.kafka, bootstrap_servers=access.bootstrap_servers)
    limit_s = timeout_s(access.kafka)
    groups = [f"{GROUP_PREFIX}{name}" for name in names]
    with open_cluster(access.bootstrap_servers, access.kafka) as cluster:
        lags = {
            group: group_lag(cluster, properties, group, timeout_s=limit_s)
            for group in groups or job_groups(properties, timeout_s=limit_s)
        }
    for group in groups:
        if not lags[group]:
            raise PipelineError(
                f"group {group} has committed nothing: check the name and the right to read its"
                " topics, or let the job run first"
            )
    found = [each for of_group in lags.values() for each in of_group]
    if output == "json":
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    elif not found:
        click.echo("No jobs.", err=True)
    else:
        for line in aligned([_COLUMNS, *map(_texts, found)], left=2):
            click.echo(line)
        for each in found:
            if each.lost:
                click.echo(
                    f"{each.group}: {each.lost:,} offsets of {each.topic}-{each.partition} were"
                    " deleted before they were read",
                    err=True,
                )


def _texts(lag: "JobLag") -> tuple[str, ...]:
    size = _size(lag.bytes)
    return (
        lag.group,
        lag.topic,
        str(lag.partition),
        f"{lag.committed:,}",
        f"{lag.end:,}",
        f"{lag.records:,}",
        f"~{size}" if lag.is_estimate else size,
        f"{lag.seconds:,.1f}",
    )


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
