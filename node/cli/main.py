"""The `odradek` command: a table of nouns, each loaded when it is asked for.

Nothing heavier than click is imported here, so that `odradek serve` answers its first request
soon and `odradek --help` costs nothing. Errors of a broker or of its absence end here: one line
on stderr and exit code 1; wrong usage exits with 2, as click has it.
"""

import importlib
from collections.abc import Mapping

import click

from odradek.node.cli import connection

# name on the command line -> module and the click command in it
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("odradek.node.cli.serve", "serve"),
    "topic": ("odradek.node.cli.topic", "topic"),
    "group": ("odradek.node.cli.group", "group"),
    "config": ("odradek.node.cli.config", "config"),
    "broker": ("odradek.node.cli.broker", "broker"),
    "cluster": ("odradek.node.cli.cluster", "cluster"),
    "txn": ("odradek.node.cli.txn", "txn"),
    "doctor": ("odradek.node.cli.doctor", "doctor"),
    "produce": ("odradek.node.cli.produce", "produce"),
    "consume": ("odradek.node.cli.consume", "consume"),
    "bench": ("odradek.node.cli.bench", "bench"),
    "node": ("odradek.node.cli.serve", "node"),
    "format": ("odradek.node.cli.serve", "format_data"),
    "log": ("odradek.node.cli.log", "log"),
    "completion": ("odradek.node.cli.completion", "completion"),
}


class Commands(click.Group):
    """A click group whose members are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, attribute = place
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Exception as error:
            told = connection.explain(error)
            if told is None:
                raise
            raise click.ClickException(told) from error


def show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the installed version and leave; reads package metadata only when asked."""
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"odradek {version('odradek')}")
        except PackageNotFoundError:
            click.echo("odradek (not installed: run from its source)")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A Kafka broker in one command, and the tools to talk to any Kafka.

    \b
    odradek serve                          a broker on 127.0.0.1:9092
    echo hello | odradek produce greetings
    odradek consume greetings --follow
    """


def main() -> None:
    """Entry point of the wheel's `odradek` script."""
    cli(prog_name="odradek")


if __name__ == "__main__":
    main()
