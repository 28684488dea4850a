"""`odradek group dlq`: list the dead letters of a share group (KIP-1191), and redrive them.

A dead letter names its record; a copy has the record itself. Redriving sends records back to their
partitions, with headers that name the dead letter. Its progress is the committed offsets of another
group, in the same transaction as the records: a repeated or interrupted redrive sends no record
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.config import read_configs
from odradek.node.cli.connection import reason
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Output, Row
from odradek.node.cli.record_text import headers_of, printable, timestamp_text

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

TOPIC_KEY: Final = "errors.deadletterqueue.topic.name"
ENABLE_KEY: Final = "errors.deadletterqueue.group.enable"
PREFIX: Final = "__dlq.errors."
FROM_HEADER: Final = "__dlq.redrive.from"
COUNT_HEADER: Final = "__dlq.redrive.count"
REDRIVE_GROUP: Final = "odradek-redrive."
"""Prefix of the group that holds the progress of redriving a group's dead letters."""
TRANSACTION_RECORDS_MAX: Final = 500
"""Records in one transaction."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter at `letter_partition`, and the record at `source` for which it was written."""

    message: Message
    letter_partition: PartitionId
    offset: int
    source: PartitionId
    source_offset: int
    delivery_count: int
    cause: str
    redrive_count: int
    own_headers: list[tuple[str, bytes | None]]

    @property
    def is_copy(self) -> bool:
        """Whether the letter has the record itself; it cannot be recognised if the record has no
        key, value and headers."""
        has_bytes = self.message.key() is not None or self.message.value() is not None
        return has_bytes or bool(self.own_headers)

    def row(self, *, is_redriven: bool) -> Row:
        return {
            "topic": self.source[0],
            "partition": self.source[1],
            "offset": self.source_offset,
            "deliveries": self.delivery_count,
            "cause": self.cause,
            "time": timestamp_text(self.message),
            "copied": self.is_copy,
            "redriven": is_redriven,
            "value": printable(self.message.value()) if self.is_copy else None,
            "letter": f"{self.letter_partition[0]}-{self.letter_partition[1]}@{self.offset}",
        }


@click.group("dlq", short_help="Show dead letters, and send records back.")
def dead_letters() -> None:
    """Show the dead letters of share groups, and send records back."""


_dlq_topic = click.option(
    "--dlq-topic", metavar="TOPIC", help="The dead-letter topic.  [default: the group's config]"
)


@dead_letters.command("list", short_help="List the dead letters of a group.")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@_dlq_topic
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most this many."
)
@with_client
def list_letters(
    name: str, dlq_topic: str | None, limit: int, client: ClusterClient, output: Output
) -> None:
    """List the dead letters of a group, the oldest of each partition first."""
    with _DeadLetterReader(name, dlq_topic, client) as reader:
        done = reader.redriven()
        rows = [
            letter.row(is_redriven=letter.offset < done.get(letter.letter_partition, 0))
            for letter in islice(reader.letters(reader.starts), limit)
        ]
    # Brokers may not write dead letters to a topic where this is false.
    if _config_of("topic", reader.topic, ENABLE_KEY, client) == "false":
        output.hint(
            f"{reader.topic} accepts no dead letters:"
            f" `odradek config set topic {reader.topic} {ENABLE_KEY}=true`"
        )
    columns = ["topic", "partition", "offset", "deliveries", "cause", "time", "copied", "redriven"]
    output.rows(rows, columns, empty=f"{reader.topic} has no dead letters of {name}.")


@dead_letters.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@_dlq_topic
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Show what would be sent back, change nothing.")
@with_client
def redrive(
    name: str,
    dlq_topic: str | None,
    limit: int | None,
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Send the records of dead letters back to their topics, each once.

    The record of a letter that is no copy is read from its partition. Records that no longer exist
    are skipped and listed.
    """
    with _DeadLetterReader(name, dlq_topic, client) as reader:
        redriving = _Redrive(reader, client, is_dry_run=dry_run)
        starts = {**reader.starts, **reader.redriven()}
        total = sum(max(0, end - starts[partition_id]) for partition_id, end in reader.ends.items())
        with output.progress(f"redrive {name}", min(total, limit) if limit else total) as advance:
            for letter in reader.letters(starts):
                redriving.add(letter)
                advance(1)
                if limit is not None and redriving.count == limit:
                    break
            else:
                redriving.skip_to(reader.ends)
            redriving.commit()
    what = "would be sent" if dry_run else "sent"
    missing = redriving.missing
    text = f"{redriving.sent} of {redriving.count} records {what} back to their topics."
    if missing:
        text += f" {len(missing)} no longer exist: {', '.join(missing[:5])}"
        text += " ..." if len(missing) > 5 else ""
    result: Row = {
        "group": name,
        "dlq_topic": reader.topic,
        "letters": redriving.count,
        "sent": redriving.sent,
        "missing": [*missing],
        "dry_run": dry_run,
    }
    output.done(text, result)


class _DeadLetterReader:
    """The dead letters of one group up to the present end of the topic."""

    def __init__(self, group: str, topic: str | None, client: ClusterClient) -> None:
        self.group = group
        self.topic = topic or _topic_of(group, client)
        self._client = client
        client.time_each_answer()
        partition_ids = offsets.partitions_of(client, [self.topic])
        self.starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
        self.ends = offsets.list_offsets(client, partition_ids, offsets.LATEST, is_committed=True)
        self.consumer = _consumer(group, client)

    def __enter__(self) -> _DeadLetterReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def redriven(self) -> dict[PartitionId, int]:
        """Offsets up to which dead letters have been sent back, by partition."""
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(topic, partition) for topic, partition in self.ends]
        found = self.consumer.committed(asked, timeout=self._client.timeout_s)
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def letters(self, starts: dict[PartitionId, int]) -> Iterator[DeadLetter]:
        """The group's letters from `starts` on, partition by partition."""
        for partition_id, end in self.ends.items():
            start = max(starts[partition_id], self.starts[partition_id])
            for message in _records(self.consumer, partition_id, start, end, self._client):
                letter = _letter(message)
                if letter is not None and _header(message, "group") == self.group:
                    yield letter


class _Redrive:
    """Sends records back in transactions that commit the group's progress too."""

    def __init__(
        self, reader: _DeadLetterReader, client: ClusterClient, *, is_dry_run: bool
    ) -> None:
        self._reader = reader
        self._client = client
        self._reached: dict[PartitionId, int] = {}
        self._uncommitted_count = 0
        self.count = 0
        self.sent = 0
        self.missing: list[str] = []
        self._producer: Producer | None = None
        self._originals = _consumer(reader.group, client)
        if not is_dry_run:
            # A second redrive of the same group fences the first.
            self._producer = client.connection.producer(
                {"transactional.id": REDRIVE_GROUP + reader.group, "linger.ms": 5}
            )
            self._producer.init_transactions(client.timeout_s)

    def add(self, letter: DeadLetter) -> None:
        """Send one record back, if it exists."""
        self.count += 1
        record = letter.message if letter.is_copy else self._original(letter)
        self._reached[letter.letter_partition] = letter.offset + 1
        if record is None:
            topic, partition = letter.source
            self.missing.append(f"{topic}-{partition}@{letter.source_offset}")
            return
        self.sent += 1
        if self._producer is None:
            return
        if self._uncommitted_count == 0:
            self._producer.begin_transaction()
        topic, partition = letter.letter_partition
        marks = {
            FROM_HEADER: f"{topic}-{partition}@{letter.offset}".encode(),
            COUNT_HEADER: str(letter.redrive_count + 1).encode(),
        }
        headers = letter.own_headers if letter.is_copy else headers_of(record)
        self._producer.produce(
            letter.source[0],
            partition=letter.source[1],
            key=record.key(),
            value=record.value(),
            headers=[*(pair for pair in headers if pair[0] not in marks), *marks.items()],
        )
        self._uncommitted_count += 1
        if self._uncommitted_count == TRANSACTION_RECORDS_MAX:
            self.commit()

    def skip_to(self, ends: dict[PartitionId, int]) -> None:
        """Record that the group has no more dead letters below these offsets."""
        self._reached.update(ends)

    def commit(self) -> None:
        """Commit the open transaction: records and progress together."""
        if self._producer is None or not self._reached:
            return
        from confluent_kafka import TopicPartition

        if self._uncommitted_count == 0:
            self._producer.begin_transaction()
        offsets: list[TopicPartition] = [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._reached.items()
        ]
        metadata = self._reader.consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, metadata, self._client.timeout_s)
        self._producer.commit_transaction(self._client.timeout_s)
        self._uncommitted_count = 0
        self._reached.clear()

    def _original(self, letter: DeadLetter) -> Message | None:
        start = letter.source_offset
        found = _records(self._originals, letter.source, start, start + 1, self._client)
        return next((message for message in found if message.offset() == start), None)


def _consumer(group: str, client: ClusterClient) -> Consumer:
    return client.connection.consumer(
        {
            "group.id": REDRIVE_GROUP + group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )


def _topic_of(group: str, client: ClusterClient) -> str:
    topic = _config_of("group", group, TOPIC_KEY, client)
    if not topic:
        raise click.ClickException(
            f"{group} has no dead-letter topic: name one with --dlq-topic, or set one with"
            f" `odradek config set group {group} {TOPIC_KEY}=dlq.NAME`"
        )
    return topic


def _config_of(kind: str, name: str, key: str, client: ClusterClient) -> str | None:
    entries = read_configs(kind, name, client)
    return next((entry.value for entry in entries if entry.name == key), None)


def _records(
    consumer: Consumer,
    partition_id: PartitionId,
    start: int,
    end: int,
    client: ClusterClient,
) -> Iterator[Message]:
    """The records [start, end) of a partition that exist."""
    from confluent_kafka import KafkaError, TopicPartition

    if start >= end:
        return
    low, high = consumer.get_watermark_offsets(
        TopicPartition(*partition_id), timeout=client.timeout_s, cached=False
    )
    start, end = max(start, low), min(end, high)
    if start >= end:
        return
    consumer.assign([TopicPartition(*partition_id, start)])
    try:
        while True:
            message = consumer.poll(client.timeout_s)
            if message is None:
                raise click.ClickException(
                    f"{partition_id[0]}-{partition_id[1]} was not read in time. Raise --timeout."
                )
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return  # the offsets after the last record were compacted, or are markers
            if error is not None:
                raise click.ClickException(f"{partition_id[0]}-{partition_id[1]}: {reason(error)}")
            offset = message.offset()
            assert offset is not None
            if offset < end:
                yield message
            if offset + 1 >= end:
                return
    finally:
        consumer.unassign()


def _header(message: Message, name: str) -> str:
    found = dict(headers_of(message)).get(PREFIX + name)
    return (found or b"").decode(errors="replace")


def _letter(message: Message) -> DeadLetter | None:
    """The dead letter that a record is, or None."""
    headers = headers_of(message)
    partition, offset = _header(message, "partition"), _header(message, "offset")
    if not (partition.isdecimal() and offset.isdecimal()):
        return None
    count, again = _header(message, "delivery.count"), dict(headers).get(COUNT_HEADER) or b"0"
    partition_id = message.topic(), message.partition()
    own_offset = message.offset()
    assert partition_id[0] is not None
    assert partition_id[1] is not None
    assert own_offset is not None
    return DeadLetter(
        message=message,
        letter_partition=(partition_id[0], partition_id[1]),
        offset=own_offset,
        source=(_header(message, "topic"), int(partition)),
        source_offset=int(offset),
        delivery_count=int(count) if count.isdecimal() else 0,
        cause=_header(message, "message"),
        redrive_count=int(again) if again.isdigit() else 0,
        own_headers=[(name, value) for name, value in headers if not name.startswith(PREFIX)],
    )
