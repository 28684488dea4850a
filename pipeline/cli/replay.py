"""`odradek pipe replay`: a table goes back into a topic."""

import time
from typing import Final

import click

from odradek.pipeline.cli.setting_flags import checked, given_settings, takes_settings
from odradek.pipeline.jobs.copy_options import REPLAY_SETTINGS, replay_options

_TELL_EVERY_S: Final = 5.0


@click.command("replay")
@takes_settings(REPLAY_SETTINGS)
@click.option("--append", is_flag=True, help="Also write to a topic that is not empty.")
def command(append: bool, **parameters: object) -> None:
    """Write the records of a table into a topic: keys, headers, times, partitions and order kept.

    The table is one that `odradek pipe offload` has filled with value.format raw. Run again, also
    after a kill, it goes on behind the last record that was written.

    \b
    odradek pipe replay --table lake/orders --to orders-again
    """
    options = checked(
        lambda: replay_options(given_settings(parameters, REPLAY_SETTINGS), append=append)
    )
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.replay import replay

    told_s = time.monotonic()

    def tell(name: object, next_offset: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _TELL_EVERY_S:
            told_s = time.monotonic()
            click.echo(f"{name}: up to offset {next_offset}", err=True)

    result = replay(options, tell)
    again = ", going on with an earlier run" if result.resumed else ""
    click.echo(f"{result.rows} records from {options.table} to topic {options.to}{again}")
    if result.expired:
        click.echo(
            f"{result.expired} records are older than the retention.ms of topic {options.to}:"
            " the broker may delete them at once; raise it",
            err=True,
        )
    if result.zero_timestamps:
        click.echo(
            f"{result.zero_timestamps} records had the time 0 (1970-01-01) and have 1 ms now:"
            " librdkafka cannot send 0",
            err=True,
        )
