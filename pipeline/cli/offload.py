"""`odradek pipe offload`: topics become a table."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odradek.pipeline.cli.job_flags import takes_job
from odradek.pipeline.cli.stop_signals import StopSignals

if TYPE_CHECKING:
    from odradek.pipeline.jobs.job_metrics import TriggerProgress
    from odradek.pipeline.jobs.job_options import JobOptions

_EVERY: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class Interval(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click only
    """A time such as 30s or 5m, in seconds."""

    name = "interval"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = _EVERY.fullmatch(str(value))
        if found is None:
            self.fail(f"{value} is no interval: write 500ms, 30s, 5m or 1h", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


@click.command("offload")
@takes_job
@click.option("--once", is_flag=True, help="End when all that is there now has moved.")
@click.option(
    "--every", type=Interval(), metavar="TIME", help="Go on, a trigger each TIME (30s, 5m)."
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="A line for each plan, as text or JSON.",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Prometheus' text format, for the node exporter.",
)
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve /metrics for Prometheus.")
def command(
    options: "JobOptions",
    once: bool,
    every: float | None,
    output: str,
    metrics_file: Path | None,
    metrics_listen: str | None,
) -> None:
    """Move topics into a table of Parquet, Delta or Iceberg, exactly once.

    FILE is YAML with the same names as the options. Run again, the job goes on where the table
    ends. SIGTERM and Ctrl-C end it after the current plan, a second one at once: nothing is lost.

    \b
    odradek pipe offload job.yaml --once
    odradek pipe offload --name archive --topics orders --table lake/orders --every 30s
    """
    if once == (every is not None):
        raise click.UsageError("say either --once or --every TIME")
    # Only now: `--help` needs neither Arrow nor Spark.
    from odradek.pipeline.jobs.job_metrics import JobMetrics, MetricsPage
    from odradek.pipeline.jobs.offload import Offload

    metrics = JobMetrics(options.name)
    page = None if metrics_listen is None else MetricsPage(metrics_listen, metrics)
    if page is not None:
        click.echo(f"metrics on http://{page.address}/metrics", err=True)

    def write_metrics() -> None:
        if metrics_file is not None:
            metrics.write_file(metrics_file)

    def told(progress: "TriggerProgress") -> None:
        metrics.add(progress)
        write_metrics()
        click.echo(progress.to_json() if output == "json" else progress.to_text())

    signals = StopSignals("the current plan")
    try:
        with signals, Offload(options, told, metrics.set_lags) as job:
            if every is not None:
                job.run_every(every, signals.stop)
            elif job.run_once(signals.stop) == 0 and output == "text":
                click.echo("no new records")
        write_metrics()
    finally:
        if page is not None:
            page.close()
    raise SystemExit(signals.exit_code(is_endless=every is not None))
