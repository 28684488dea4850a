"""`odradek pipe`: the data pipeline on Spark. Each command is imported when it is used.

The broker's command line finds it by the entry point group `odradek.commands`. Failures of the
pipeline end here, as one line on stderr with exit code 1; wrong usage exits with 2.
"""

import importlib
from collections.abc import Mapping
from typing import Final

import click

from odradek.pipeline.errors import PipelineError

COMMANDS: Final[Mapping[str, str]] = {
    "offload": "Move topics into a table, exactly once.",
    "verify": "Prove that a table has all records of its topics.",
    "lag": "Show how far jobs are behind their topics.",
    "replay": "Write a table's records into a topic.",
    "mirror": "Copy topics and groups to another cluster.",
    "upsert": "Merge a compacted or Debezium topic into a Delta table.",
    "dlq": "List, redrive or drop dead letters of a job.",
    "maintain": "Compact small files, and expire old versions.",
}
"""Name, which is also that of the module beside this one, to help."""
_EXTRA: Final = "odradek pipe needs Spark and Arrow: pip install 'odradek[spark]'"
_OF_EXTRA: Final = ("pyspark", "pyarrow", "yaml")


class PipeCommands(click.Group):
    """The group; `--help` imports no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"odradek.pipeline.cli.{cmd_name}")
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> Exception:
    """The extra's name for its packages; anything else is our own fault, and stays as it is."""
    package = (error.name or "").partition(".")[0]
    return click.ClickException(_EXTRA) if package in _OF_EXTRA else error


@click.group("pipe", cls=PipeCommands, context_settings={"help_option_names": ["-h", "--help"]})
def pipe() -> None:
    """Move topics into tables and back, on Spark.

    A job is told by one YAML file, by options of the same names, or by both.

    \b
    odradek pipe offload --name archive --topics orders --table lake/orders --once
    odradek pipe verify  --name archive --topics orders --table lake/orders
    """
