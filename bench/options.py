"""Command-line options of the benchmarks beside Kafka."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

REPOSITORY = Path(__file__).parents[1]

Command = TypeVar("Command", bound=Callable[..., Any])

with_kafka_jars = click.option(
    "--kafka-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="KAFKA_JARS",
    default=REPOSITORY / ".venv" / "kafka-jars",
    callback=lambda _context, _parameter, jars: _checked(jars),
    help="The folder of Kafka's jars; also $KAFKA_JARS.",
)
with_rounds = click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
with_warm_up = click.option(
    "--warm-up", default=25.0, show_default=True, help="Seconds of load beforehand."
)


def with_page(default: Path) -> Callable[[Command], Command]:
    """Add the option for the page's path."""
    return click.option(
        "--page",
        type=click.Path(dir_okay=False, path_type=Path),
        default=default,
        help=f"Where to write the table.  [default: {default.relative_to(REPOSITORY)}]",
    )


def _checked(jars: Path) -> Path:
    if not list(jars.glob("kafka_2.13-*.jar")):
        raise click.BadParameter(f"{jars} holds no Kafka broker: name the folder of its jars")
    if shutil.which("java") is None:
        raise click.ClickException("Kafka needs java on the PATH")
    return jars


def log_progress(text: str) -> None:
    """Print a line of progress."""
    click.echo(f"bench: {text}", err=True)
