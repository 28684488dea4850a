"""`odradek produce`: records from arguments, a file or stdin into a topic of any Kafka cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from odradek.node.cli.completion import complete_topic
from odradek.node.cli.connection import ClusterConnection, reason, with_connection
from odradek.node.cli.output import Output, with_output
from odradek.node.cli.parameters import acks_option, compression_option, moment, pair
from odradek.node.cli.record_text import NewRecord, record_from_json

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import KafkaError, Message, Producer

# Records between two polls for delivery reports.
POLL_EVERY = 1000
ANY_PARTITION = -1
_FIXED_SETTINGS: dict[str, str | int | float] = {
    # As in the Java clients, so that a key gets the same partition as with them.
    "partitioner": "murmur2_random",
    # The broker limits the size of records. This is librdkafka's largest value.
    "message.max.bytes": 1_000_000_000,
}


@dataclass(slots=True)
class DeliveryCounts:
    """The records that were sent, delivered by partition, and failed."""

    sent: int = 0
    delivered: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    first_failure: str = ""

    def count(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report for one record."""
        if error is None:
            partition = message.partition()
            assert partition is not None
            self.delivered[partition] = self.delivered.get(partition, 0) + 1
        else:
            self.failed += 1
            self.first_failure = self.first_failure or reason(error)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read records from this file instead of stdin.",
)
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    show_default=True,
    help="One record a line; one JSON object a line (what consume -o json prints); or the whole "
    "input as one record.",
)
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-separator", "-K", metavar="TEXT", help="What stands before this is the key.")
@click.option("--header", "-H", "headers", type=pair, multiple=True, help="May be repeated.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Default: by key.")
@click.option(
    "--keep-partitions", is_flag=True, help="With JSON: to the partition that the record names."
)
@click.option("--timestamp", type=moment, help="Of every record.  [default: now]")
@click.option("--empty-is-null", is_flag=True, help="An empty value is null: a tombstone.")
@compression_option
@acks_option
@click.option(
    "--idempotent/--not-idempotent",
    default=None,
    help="No record twice and none out of order, whatever is sent again.  "
    "[default: idempotent for stdin and files with acks=all]",
)
@click.option("--linger-ms", type=click.FloatRange(min=0), default=5.0, show_default=True)
@with_connection
@with_output
def produce(
    topic: str,
    values: tuple[str, ...],
    file: Path | None,
    input_format: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    keep_partitions: bool,
    timestamp: int | None,
    empty_is_null: bool,
    compression: str,
    acks: str,
    idempotent: bool | None,
    linger_ms: float,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Write records to TOPIC: each VALUE, or what stdin or a file holds.

    \b
    odradek produce greetings hello world
    odradek produce orders -K : < orders.txt          key:value lines
    odradek consume a -o json | odradek produce b --format json
    """
    if values and file is not None:
        raise click.UsageError("Give values or --file, not both.")
    if key is not None and key_separator is not None:
        raise click.UsageError("Give --key or --key-separator, not both.")
    if idempotent and acks != "all":
        raise click.UsageError("--idempotent needs --acks all.")
    # librdkafka takes half a second to get a producer id: not for a few values by hand.
    is_idempotent = acks == "all" and not values if idempotent is None else idempotent
    producer = connection.producer(
        {
            "compression.type": compression,
            "acks": acks,
            "linger.ms": linger_ms,
            "enable.idempotence": "true" if is_idempotent else "false",
            "delivery.timeout.ms": int(connection.timeout_s * 1000),
            **_FIXED_SETTINGS,
        }
    )
    own = Overrides(
        key=None if key is None else key.encode(),
        key_separator=None if key_separator is None else key_separator.encode(),
        headers=tuple((name, value.encode()) for name, value in headers),
        partition=partition,
        keeps_partitions=keep_partitions,
        timestamp_ms=timestamp,
        empty_is_null=empty_is_null,
    )
    deliveries = DeliveryCounts()
    with output.progress(f"to {topic}", len(values) or None) as advance:
        inputs = _inputs(values, file, is_raw=input_format == "raw")
        records = _records(inputs, own, is_json=input_format == "json")
        _send_all(producer, topic, records, deliveries, advance)
        left = producer.flush(connection.timeout_s)
    _print_result(topic, deliveries, left, output)


def _print_result(topic: str, deliveries: DeliveryCounts, left: int, output: Output) -> None:
    """ClickException if `left` records had no answer in time, or some were refused."""
    count = deliveries.sent
    if left or deliveries.failed:
        raise click.ClickException(
            f"{left + deliveries.failed} of {count} records were not delivered to {topic}: "
            f"{deliveries.first_failure or 'no answer in time'}"
        )
    if output.is_json:
        output.document(
            {
                "topic": topic,
                "records": count,
                "partitions": {str(p): n for p, n in sorted(deliveries.delivered.items())},
            }
        )
    elif sys.stderr.isatty():
        where = ", ".join(f"{n} in {p}" for p, n in sorted(deliveries.delivered.items()))
        output.hint(f"{count} record{'' if count == 1 else 's'} to {topic} ({where or 'none'})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options for every record, which override the input."""

    key: bytes | None
    key_separator: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    keeps_partitions: bool
    timestamp_ms: int | None
    empty_is_null: bool

    def of_bytes(self, text: bytes) -> NewRecord:
        """The record of one line, one argument or one whole input."""
        key, value = self.key, text
        if self.key_separator is not None:
            head, separator, tail = text.partition(self.key_separator)
            if separator:
                key, value = head, tail
        return self.of_record(NewRecord(key=key, value=value))

    def of_record(self, record: NewRecord) -> NewRecord:
        """`record` with the options applied."""
        value = None if self.empty_is_null and not record.value else record.value
        # A copy of a topic may have another number of partitions.
        named = record.partition if self.keeps_partitions else ANY_PARTITION
        return NewRecord(
            value=value,
            key=record.key if self.key is None else self.key,
            headers=[*record.headers, *self.headers],
            partition=named if self.partition is None else self.partition,
            timestamp_ms=record.timestamp_ms if self.timestamp_ms is None else self.timestamp_ms,
        )


def _inputs(values: tuple[str, ...], file: Path | None, *, is_raw: bool) -> Iterator[bytes]:
    """The values, or the lines of the file or of stdin; the whole of it as one if it `is_raw`."""
    if values:
        yield from (value.encode() for value in values)
        return
    stream: AbstractContextManager[BinaryIO]
    if file is not None and str(file) != "-":
        stream = file.open("rb")
    else:
        stream = nullcontext(sys.stdin.buffer)
        if sys.stdin.isatty():
            click.echo("Type records, one a line; end with Ctrl-D.", err=True)
    with stream as lines:
        if is_raw:
            yield lines.read()
        else:
            yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)


def _records(inputs: Iterable[bytes], own: Overrides, *, is_json: bool) -> Iterator[NewRecord]:
    for number, text in enumerate(inputs, 1):
        if not is_json:
            yield own.of_bytes(text)
        elif text.strip():
            try:
                record = record_from_json(text)
            except ValueError as error:
                raise click.ClickException(f"line {number} of the input: {error}") from error
            yield own.of_record(record)


def _send_all(
    producer: Producer,
    topic: str,
    records: Iterable[NewRecord],
    deliveries: DeliveryCounts,
    advance: Callable[[int], None],
) -> None:
    poll_every = 1 if sys.stdin.isatty() else POLL_EVERY
    for record in records:
        _send(producer, topic, record, deliveries)
        if deliveries.sent % poll_every == 0:
            producer.poll(0)
            advance(poll_every)


def _send(producer: Producer, topic: str, record: NewRecord, deliveries: DeliveryCounts) -> None:
    while True:
        try:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers) or None,
                timestamp=record.timestamp_ms,
                on_delivery=deliveries.count,
            )
            break
        except BufferError:
            producer.poll(0.1)  # wait until the queue has room
    deliveries.sent += 1
