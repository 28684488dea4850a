"""`odradek produce`: records from arguments, a file or stdin into a topic of any Kafka cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from odradek.node.cli import configs
from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.delivery import Delivery, DeliveryStalledError, TopicLimit
from odradek.node.cli.not_found import TOPIC, no_such_partition, not_found, raise_refusal
from odradek.node.cli.output import Output
from odradek.node.cli.parameters import acks_option, compression_option, moment, pair
from odradek.node.cli.record_input import RecordInput
from odradek.node.cli.record_text import NewRecord, record_from_json
from odradek.node.cli.storage_problems import storage_findings, storage_problems
from odradek.protocol.errors import ErrorCode

# Records between two polls for delivery reports.
POLL_EVERY = 1000
BAR_STEP_BYTES = 1 << 20
ANY_PARTITION = -1
NO_ANSWER = "no answer in time"
INTERRUPTED = 130
"""The exit code of an interrupted command, as shells have it: 128 + SIGINT."""
_FIXED_SETTINGS: dict[str, str | int | float] = {
    # As in the Java clients, so that a key gets the same partition as with them.
    "partitioner": "murmur2_random",
    # The broker limits the size of records. This is librdkafka's largest value.
    "message.max.bytes": 1_000_000_000,
}


@click.command(short_help="Write records to a topic.")
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
@click.option(
    "--header",
    "-H",
    "headers",
    type=pair,
    multiple=True,
    metavar="NAME=VALUE",
    help="May be repeated.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Default: by key.")
@click.option(
    "--keep-partitions", is_flag=True, help="With JSON: to the partition that the record names."
)
@click.option("--timestamp", type=moment, metavar="TIME", help="Of every record.  [default: now]")
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
@with_client
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
    client: ClusterClient,
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
    source = RecordInput(values=values, file=file, is_raw=input_format == "raw")
    # librdkafka takes half a second to get a producer id: not for a few values by hand.
    is_idempotent = acks == "all" and not values if idempotent is None else idempotent
    limit = _topic_limit(client, topic, partition)
    timeout_ms = int(client.timeout_s * 1000)
    producer = client.connection.producer(
        {
            "compression.type": compression,
            "acks": acks,
            "linger.ms": 0 if source.is_typed else linger_ms,
            "enable.idempotence": "true" if is_idempotent else "false",
            "delivery.timeout.ms": max(timeout_ms, int(linger_ms) + 1),
            "batch.size": limit.batch_size,
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
    client.time_each_answer()
    delivery = Delivery(
        client=client, producer=producer, limit=limit, is_compressed=compression != "none"
    )
    end = _send_all(source, own, delivery, output, is_json=input_format == "json")
    _print_result(topic, delivery, end, output)


def _topic_limit(client: ClusterClient, topic: str, partition: int | None) -> TopicLimit:
    """The limit of the topic's batches. ClickException if the topic does not exist and will not be
    created, or if it has no such partition."""
    [described] = client.metadata([topic]).topics
    if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if not _creates_topics(client):
            raise not_found(client, TOPIC, topic)
        return TopicLimit(topic=topic)
    raise_refusal(client, TOPIC, topic, described)
    count = len(described.partitions)
    if partition is not None and partition >= count:
        raise no_such_partition(topic, [partition], count)
    return TopicLimit.of(client, topic)


def _creates_topics(client: ClusterClient) -> bool:
    """auto.create.topics.enable; true if the cluster does not tell."""
    key = "auto.create.topics.enable"
    values = [
        config.value
        for broker_id in client.broker_ids[:1]
        for result in configs.describe(client, configs.BROKER, [str(broker_id)], [key])
        for config in result.configs or ()
    ]
    return values != ["false"]


@dataclass(frozen=True, slots=True)
class _End:
    """How the sending has ended: with the input if nothing is set."""

    is_cut_short: bool = False
    """It was interrupted before the end of the input."""
    is_interrupted: bool = False
    error: str = ""


def _send_all(
    source: RecordInput, own: Overrides, delivery: Delivery, output: Output, *, is_json: bool
) -> _End:
    """Send every record and wait for the results; an interruption ends the input."""
    end = _End()
    is_complete = False
    interruptions = delivery.interruptions
    with interruptions.handled():
        try:
            with _progress(source, delivery.limit.topic, output) as count:
                texts = _counted(interruptions.reading(source.texts()), count)
                for record in _records(texts, own, is_json=is_json):
                    delivery.send(record)
                    if delivery.sent % POLL_EVERY == 0:
                        delivery.poll()
                    if source.is_typed:
                        delivery.flush()
                        if delivery.failed:
                            break
            is_complete = not interruptions.count
            delivery.flush()
        except click.ClickException as error:
            end = _End(error=error.message)
        except DeliveryStalledError:
            return _End(error=NO_ANSWER)
        except KeyboardInterrupt:
            pass
        if interruptions.count:
            end = _End(is_interrupted=True, is_cut_short=not (is_complete or source.is_endless))
        try:
            delivery.flush()
        except (KeyboardInterrupt, DeliveryStalledError) as error:
            stalled = "" if isinstance(error, KeyboardInterrupt) else NO_ANSWER
            return _End(is_interrupted=True, is_cut_short=True, error=end.error or stalled)
    return end


def _print_result(topic: str, delivery: Delivery, end: _End, output: Output) -> None:
    """ClickException if the input is wrong, records had no answer in time, or some were refused;
    exit code 130 if the input was cut short."""
    count = delivery.delivered_count
    missing = delivery.sent - count
    error = delivery.first_failure or end.error
    if missing and (delivery.has_timed_out or error == NO_ANSWER):
        error = f"{error or NO_ANSWER}{_storage_reason(delivery)}"
    if error or missing:
        counts = f"{missing} of {delivery.sent} records were not delivered to {topic}: "
        rest = f" ({count} records before it were delivered to {topic})" if count else ""
        raise click.ClickException(
            f"{counts}{error or 'interrupted'}" if missing else f"{error}{rest}"
        )
    partitions = sorted(delivery.delivered.items())
    if output.is_json:
        document = {str(partition): number for partition, number in partitions}
        output.document({"topic": topic, "records": count, "partitions": document})
    elif sys.stderr.isatty() or end.is_interrupted:
        where = ", ".join(f"{number} in {partition}" for partition, number in partitions)
        # The terminal shows ^C.
        start = "\n" if end.is_interrupted and sys.stderr.isatty() else ""
        noun = "record" if count == 1 else "records"
        output.hint(f"{start}{count} {noun} to {topic} ({where or 'none'})")
    if end.is_cut_short:
        click.get_current_context().exit(INTERRUPTED)


def _storage_reason(delivery: Delivery) -> str:
    """Which brokers refuse records because they cannot write: librdkafka sends these again until
    its timeout, and reports nothing but that."""
    client = delivery.client
    with suppress(click.ClickException):
        found = storage_findings(storage_problems(client, client.broker_ids))
        return "".join(f"\n{each.what} {each.advice}" for each in found)
    return ""


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


@contextmanager
def _progress(source: RecordInput, topic: str, output: Output) -> Iterator[Callable[[bytes], None]]:
    """Yield a function to call with each text of the input. It moves a bar: over the bytes of a
    file, or over records. There is none while somebody types."""
    if source.is_typed:
        yield lambda _text: None
        return
    byte_count = source.byte_count
    with output.progress(
        f"to {topic}", byte_count or len(source.values) or None, is_bytes=byte_count is not None
    ) as advance:
        waiting = 0
        done = 0

        def count(text: bytes) -> None:
            nonlocal waiting, done
            waiting += 1
            done += 1 if byte_count is None else len(text) + 1
            if waiting == POLL_EVERY or len(text) > BAR_STEP_BYTES:
                advance(done)
                waiting = done = 0

        yield count
        advance(done)


def _counted(texts: Iterable[bytes], count: Callable[[bytes], None]) -> Iterator[bytes]:
    for text in texts:
        yield text
        count(text)


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
