"""The `odradek` command: a table of subcommands, each imported when it is used.

Little is imported here, so that `odradek serve` and `odradek --help` start fast. Errors of Kafka
clients end here, as one line on stderr with exit code 1; wrong usage exits with 2, as click has it.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from odradek.node.cli import connection

# name on the command line -> module and the click command in it
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("odradek.node.cli.serve", "serve"),
    "topic": ("odradek.node.cli.topic", "topic"),
    "group": ("odradek.node.cli.group", "group"),
    "config": ("odradek.node.cli.config", "config"),
    "broker": ("odradek.node.cli.broker", "broker"),
    "client": ("odradek.node.cli.client", "client"),
    "trace": ("odradek.node.cli.trace", "trace"),
    "cluster": ("odradek.node.cli.cluster", "cluster"),
    "elect": ("odradek.node.cli.elect", "elect"),
    "feature": ("odradek.node.cli.feature", "feature"),
    "user": ("odradek.node.cli.user", "user"),
    "token": ("odradek.node.cli.token", "token"),
    "quota": ("odradek.node.cli.quota", "quota"),
    "acl": ("odradek.node.cli.acl", "acl"),
    "txn": ("odradek.node.cli.txn", "txn"),
    "profile": ("odradek.node.cli.profile", "profile"),
    "doctor": ("odradek.node.cli.doctor", "doctor"),
    "produce": ("odradek.node.cli.produce", "produce"),
    "consume": ("odradek.node.cli.consume", "consume"),
    "bench": ("odradek.node.cli.bench", "bench"),
    "node": ("odradek.node.cli.serve", "node"),
    "format": ("odradek.node.cli.format", "format_data"),
    "certificate": ("odradek.node.cli.certificate", "certificate"),
    "log": ("odradek.node.cli.log", "log"),
    "logdir": ("odradek.node.cli.logdir", "logdir"),
    "reassign": ("odradek.node.cli.reassign", "reassign_partitions"),
    "completion": ("odradek.node.cli.completion", "completion"),
}


class LazyGroup(click.Group):
    """A click group whose `members` are imported when they are used."""

    members: Mapping[str, tuple[str, str]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.members, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.members:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.members[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Exception as error:
            explanation = connection.explain(error)
            if explanation is None:
                raise
            raise click.ClickException(explanation) from error


ENTRY_POINTS: Final = "odradek.commands"
"""The group of entry points by which a package gives the command line further commands: the data
pipeline, of which this floor knows nothing."""


@cache
def further_commands() -> Mapping[str, EntryPoint]:
    """The commands of installed packages. It reads their metadata: only a name that is none of
    ours and the list of all commands need it."""
    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}


class Commands(LazyGroup):
    """`odradek`, with the commands of installed packages."""

    members = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *further_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in further_commands():
            found = further_commands()[cmd_name].load()
        return found


def show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the installed version and exit. The package metadata is read only here."""
    if wanted and not ctx.resilient_parsing:
        version = connection.installed_version()
        click.echo(f"odradek {version or '(not installed: run from its source)'}")
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
@connection.properties_options(None)
@connection.bootstrap_option(None)
@connection.profile_option
def cli(**_cluster: object) -> None:
    """A Kafka broker in one command, and the tools to talk to any Kafka.

    The options of the cluster may stand before the command or after it.

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
