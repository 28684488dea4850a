"""`odradek pipe dlq`: the dead letters of a job are listed, redriven or dropped."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import click

from odradek.pipeline.cli.cluster_flags import takes_cluster

if TYPE_CHECKING:
    from odradek.pipeline.jobs.copy_options import ClusterAccess
    from odradek.pipeline.jobs.dead_letter_reader import KeptLetter
    from odradek.pipeline.jobs.redrive import JobLetters

P = ParamSpec("P")
R = TypeVar("R")

_COLUMNS: Final = ("letter", "record", "time", "reason")


@click.group("dlq")
def command() -> None:
    """List, redrive or drop the dead letters of a job.

    A dead letter is a record whose value does not fit the schema. Letters stay in their topic, as
    `verify` needs them; the group pipe.NAME.redriven says which ones are handled.
    """


def _takes_letters(function: Callable[P, R]) -> Callable[..., R]:
    """The argument NAME and the options of the cluster and of the topic."""
    topic = click.option(
        "--topic", default=None, help="The dead-letter topic.  [default: NAME.dlq]"
    )
    return click.argument("name")(takes_cluster(topic(function)))


@command.command("list")
@_takes_letters
@click.option("--all", "is_all", is_flag=True, help="Also those that are handled.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="For people or scripts."
)
def list_letters(
    name: str,
    access: "ClusterAccess",
    topic: str | None,
    is_all: bool,
    limit: int,
    output: str,
) -> None:
    """Show letters: where the record was, and why it is bad."""
    from odradek.pipeline.jobs.dead_letter_reader import letter_ranges
    from odradek.pipeline.jobs.text_table import aligned

    with _opened(name, access, topic) as letters:
        pending = letters.pending_ranges()
        ranges = letter_ranges(letters.cluster, letters.topic) if is_all else pending
        found = list(islice(letters.read(ranges), limit + 1))
    shown = found[:limit]
    if output == "json":
        click.echo(json.dumps([_document(each) for each in shown], indent=2))
    elif not shown:
        click.echo("No dead letters.", err=True)
    else:
        for line in aligned([_COLUMNS, *map(_texts, shown)], left=4):
            click.echo(line)
    if len(found) > limit:
        click.echo(f"There are more than {limit}: see more with --limit.", err=True)


@command.command("redrive")
@_takes_letters
@click.option("--to", default="", metavar="TOPIC", help="Another topic than that of the record.")
def redrive(name: str, access: "ClusterAccess", topic: str | None, to: str) -> None:
    """Send the records of all pending letters to their topics again, exactly once.

    A record keeps key, value, headers, timestamp and partition. Do this when the schema is mended:
    what still does not fit becomes a dead letter again.
    """
    from odradek.pipeline.jobs.redrive import Redrive

    with _opened(name, access, topic) as letters, Redrive(letters, to) as run:
        click.echo(f"{run.run():,} records were sent again.")


@command.command("drop")
@_takes_letters
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(name: str, access: "ClusterAccess", topic: str | None, yes: bool) -> None:
    """Let all pending letters count as handled; nothing is deleted."""
    if not yes:
        click.confirm(f"Drop all pending dead letters of {name}?", abort=True)
    with _opened(name, access, topic) as letters:
        click.echo(f"{letters.drop():,} dead letters are dropped.")


@contextmanager
def _opened(name: str, access: "ClusterAccess", topic: str | None) -> "Iterator[JobLetters]":
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.jobs.redrive import JobLetters
    from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
    from odradek.pipeline.librdkafka import client_properties

    properties = client_properties(access.kafka, bootstrap_servers=access.bootstrap_servers)
    with open_cluster(access.bootstrap_servers, access.kafka) as cluster:
        yield JobLetters(cluster, properties, name, topic or f"{name}.dlq", timeout_s(access.kafka))


def _texts(kept: "KeptLetter") -> tuple[str, ...]:
    record = kept.letter.record
    sent = datetime.fromtimestamp(kept.sent_ms / 1000, UTC)
    return (
        f"{kept.partition}/{kept.offset}",
        f"{record.topic}-{record.partition} offset {record.offset}",
        sent.strftime("%Y-%m-%d %H:%M:%S"),
        record.reason,
    )


def _document(kept: "KeptLetter") -> dict[str, object]:
    record = kept.letter.record
    return {
        "letter_partition": kept.partition,
        "letter_offset": kept.offset,
        "sent_ms": kept.sent_ms,
        "plan": kept.letter.plan,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "reason": record.reason,
        "key": _readable(record.key),
        "value": _readable(record.value),
        "headers": [[name, _readable(value)] for name, value in record.headers],
    }


def _readable(value: bytes | None) -> str | None:
    """Text, with escapes for bytes that are none."""
    return None if value is None else value.decode(errors="backslashreplace")
