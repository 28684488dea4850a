"""`odradek pipe upsert`: a compacted or Debezium topic becomes a Delta table with a row per key."""

from typing import TYPE_CHECKING

import click

from odradek.pipeline.cli.job_flags import takes_job
from odradek.pipeline.cli.offload import Interval
from odradek.pipeline.cli.stop_signals import StopSignals

if TYPE_CHECKING:
    from odradek.pipeline.jobs.job_options import JobOptions


@click.command("upsert")
@takes_job
@click.option(
    "--envelope",
    type=click.Choice(["none", "debezium"]),
    default="none",
    show_default=True,
    help="What values are: whole rows, or changes by Debezium.",
)
@click.option("--once", is_flag=True, help="End when all that is there now is merged.")
@click.option("--every", type=Interval(), metavar="TIME", help="Go on, a merge each TIME (30s).")
def command(options: "JobOptions", envelope: str, once: bool, every: float | None) -> None:
    """Merge a topic into a Delta table by the records' keys, exactly once.

    Of each key the table has the row of its last record. A tombstone deletes the row, and so does
    Debezium's op d. For Debezium in JSON, value.schema is that of the row; in Avro and Protobuf
    that of the envelope. The table is always Delta, without time folders; Spark is not needed.
    SIGTERM and Ctrl-C end it after the current plan, a second one at once: nothing is lost.

    \b
    odradek pipe upsert --name customers --topics db.public.customers --table lake/customers \\
        --envelope debezium --value-format json --value-schema 'id BIGINT, name STRING' --once
    """
    if once == (every is not None):
        raise click.UsageError("say either --once or --every TIME")
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.upsert import Upsert

    signals = StopSignals("the current plan")
    with (
        signals,
        Upsert(options, envelope, lambda progress: click.echo(progress.to_text())) as job,
    ):
        if every is not None:
            job.run_every(every, signals.stop)
        elif job.run_once(signals.stop) == 0:
            click.echo("no new records")
    raise SystemExit(signals.exit_code(is_endless=every is not None))
