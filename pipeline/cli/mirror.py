"""`odradek pipe mirror`: topics and groups go to another cluster."""

import json
from typing import TYPE_CHECKING

import click

from odradek.pipeline.cli.offload import Interval
from odradek.pipeline.cli.setting_flags import checked, given_settings, takes_settings
from odradek.pipeline.cli.stop_signals import StopSignals
from odradek.pipeline.jobs.copy_options import MIRROR_SETTINGS, mirror_options

if TYPE_CHECKING:
    from odradek.pipeline.jobs.mirror import MirrorRound


@click.command("mirror")
@takes_settings(MIRROR_SETTINGS)
@click.option("--append", is_flag=True, help="Also write to topics that are not empty.")
@click.option("--once", is_flag=True, help="End when all that is there now is copied.")
@click.option("--every", type=Interval(), metavar="TIME", help="Go on, a round each TIME (30s).")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="A line for each round, as text or JSON.",
)
def command(
    append: bool,
    once: bool,
    every: float | None,
    output: str,
    **parameters: object,
) -> None:
    """Copy topics and the offsets of groups to another cluster, exactly once.

    Keys, headers, times, partitions and order are kept; offsets are new, and the topic
    mirror.NAME.offsets in the target maps them. Run again, also after a kill, it goes on behind
    the last record that was copied. SIGTERM and Ctrl-C end it after the current transaction, a
    second one at once: nothing is lost.

    \b
    odradek pipe mirror mirror.yaml --every 30s
    odradek pipe mirror --name west --topics orders --source-bootstrap-servers east:9092
        --target-bootstrap-servers west:9092 --once
    """
    if once == (every is not None):
        raise click.UsageError("say either --once or --every TIME")
    options = checked(
        lambda: mirror_options(given_settings(parameters, MIRROR_SETTINGS), append=append)
    )
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.mirror import Mirror

    def tell(done: "MirrorRound") -> None:
        click.echo(_as_json(done) if output == "json" else _as_text(done))
        for line in _warnings(done):
            click.echo(line, err=True)

    mirror = Mirror(options)
    with StopSignals("the current transaction") as signals:
        if every is None:
            tell(mirror.run_once(signals.stop))
        else:
            mirror.run_every(
                every, signals.stop, tell, lambda error: click.echo(f"Error: {error}", err=True)
            )
    raise SystemExit(signals.exit_code(is_endless=every is not None))


def _as_text(done: "MirrorRound") -> str:
    return (
        f"{done.rows} records of {done.topics} topics in {done.transactions} transactions,"
        f" offsets of {len(done.groups.written)} groups"
    )


def _as_json(done: "MirrorRound") -> str:
    found = {
        "records": done.rows,
        "topics": done.topics,
        "transactions": done.transactions,
        "lost": {str(name): list(bounds) for name, bounds in done.lost.items()},
        "groups": {
            group: {str(name): offset for name, offset in offsets.items()}
            for group, offsets in done.groups.written.items()
        },
        "skipped_groups": done.groups.skipped,
    }
    return json.dumps(found)


def _warnings(done: "MirrorRound") -> list[str]:
    lines = [
        f"{name}: offsets {start} to {end - 1} were deleted before they were mirrored"
        for name, (start, end) in done.lost.items()
    ]
    lines += [f"group {group} is skipped: {why}" for group, why in done.groups.skipped.items()]
    if done.zero_timestamps:
        lines.append(
            f"{done.zero_timestamps} records had the time 0 (1970-01-01) and have 1 ms now:"
            " librdkafka cannot send 0"
        )
    return lines
