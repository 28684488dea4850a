"""`odradek consume`: print records of topics of any Kafka cluster, up to their end or without end.

Without a group it reads by offsets and commits nothing. With a group it is a member of the group
and commits the records that it has printed.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import compress
from types import FrameType
from typing import TYPE_CHECKING

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.connection import reason
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Output, first_names
from odradek.node.cli.parameters import TopicSelection, moment, topic_selection
from odradek.node.cli.record_text import (
    headers_text,
    line_template,
    printable,
    record_to_json,
    timestamp_text,
)
from odradek.node.cli.topic import selected_partitions

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import Consumer, Message, TopicPartition

BATCH_RECORDS_MAX = 500
# The delay with which a signal or a limit is noticed while no record arrives.
POLL_S = 0.2
# In the order of the output: partition, offset, timestamp, key, headers.
_COLUMNS: tuple[Callable[[Message], str], ...] = (
    lambda message: f"{message.topic()}-{message.partition()}",
    lambda message: str(message.offset()),
    timestamp_text,
    lambda message: printable(message.key()),
    headers_text,
)


@dataclass(slots=True)
class ConsumeState:
    """Progress of a consumer: its partitions, and those read to their end."""

    limit: int | None
    is_following: bool
    assigned: set[PartitionId] = field(default_factory=set)
    ended: set[PartitionId] = field(default_factory=set)
    count: int = 0
    is_stopped: bool = False
    progress_at: float = field(default_factory=time.monotonic)
    """When the last record, end of a partition or assignment arrived, in seconds."""

    def is_over(self) -> bool:
        if self.is_stopped or (self.limit is not None and self.count >= self.limit):
            return True
        return not self.is_following and bool(self.assigned) and self.assigned <= self.ended

    def batch_limit(self) -> int:
        """How many records to poll: not more than will be printed and committed."""
        left = BATCH_RECORDS_MAX if self.limit is None else self.limit - self.count
        return min(BATCH_RECORDS_MAX, left)

    def on_assign(self, _consumer: Consumer, partition_ids: Sequence[TopicPartition]) -> None:
        self.progress_at = time.monotonic()
        self.assigned |= {
            (partition_id.topic, partition_id.partition) for partition_id in partition_ids
        }

    def on_revoke(self, _consumer: Consumer, partition_ids: Sequence[TopicPartition]) -> None:
        gone = {(partition_id.topic, partition_id.partition) for partition_id in partition_ids}
        self.assigned -= gone
        self.ended -= gone

    def check_progress(self, timeout_s: float) -> None:
        """ClickException if nothing has arrived for so long; never while following."""
        if self.is_following or time.monotonic() - self.progress_at < timeout_s:
            return
        left = sorted(f"{topic}-{number}" for topic, number in self.assigned - self.ended)
        what = f"from {first_names(left)}" if left else "from the group: no partition is assigned"
        raise click.ClickException(f"nothing arrived {what} within {timeout_s:g} s")

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_stopped = True


def start_position(value: str) -> str | int:
    """`beginning`, `end`, an offset, or -N for the last N of each partition."""
    if value in ("beginning", "end"):
        return value
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not beginning, end, an OFFSET or -N") from error


def template_type(value: str) -> Callable[[Message], bytes]:
    """A template of `--format`; a usage error names what is wrong."""
    try:
        return line_template(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(short_help="Print the records of topics.")
@click.argument(
    "selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:P,P]..."
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--from",
    "start",
    type=start_position,
    metavar="beginning|end|OFFSET|-N",
    help="beginning, end, an offset, or -N for the last N of each partition.  "
    "[default: beginning; with --group: where the group is]",
)
@click.option(
    "--since", type=moment, metavar="TIME", help="Start at this time; 15m is 15 minutes ago."
)
@click.option("--group", "-g", help="Consume as a member of this group.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--keys", "-k", is_flag=True, help="Show keys.")
@click.option("--headers", "-H", is_flag=True, help="Show headers.")
@click.option("--timestamps", "-t", is_flag=True, help="Show timestamps.")
@click.option("--offsets", "show_offsets", is_flag=True, help="Show offsets.")
@click.option("--partitions", is_flag=True, help="Show topics and partitions.")
@click.option("--all", "-a", "show_all", is_flag=True, help="Show all of these.")
@click.option(
    "--format",
    "template",
    type=template_type,
    metavar="TEMPLATE",
    help=r"A line of {topic} {partition} {offset} {timestamp} {key} {value} {headers} \t \n \xHH;"
    r" keys and values are their bytes, and \c at the end leaves out the newline.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@with_client
def consume(
    selections: tuple[TopicSelection, ...],
    follow: bool,
    start: str | int | None,
    since: int | None,
    group: str | None,
    max_messages: int | None,
    keys: bool,
    headers: bool,
    timestamps: bool,
    show_offsets: bool,
    partitions: bool,
    show_all: bool,
    template: Callable[[Message], bytes] | None,
    isolation: str,
    client: ClusterClient,
    output: Output,
) -> None:
    """Print the records of topics, up to where they end now or onwards with --follow.

    \b
    odradek consume orders                     everything there is
    odradek consume orders -f --from end       what comes from now on
    odradek consume orders:0 --from -10 -a     the last ten of partition 0, with everything
    odradek consume orders --since 15m -o json | jq .value
    """
    from confluent_kafka import TopicPartition

    _check_usage(selections, start, since, group, template, output)
    shown = (partitions, show_offsets, timestamps, keys, headers)
    columns = [*_COLUMNS] if show_all else [*compress(_COLUMNS, shown)]
    partition_ids = selected_partitions(client, selections)
    begins, ends = _range(client, partition_ids, start, since) if group is None else ({}, {})
    consumer = client.connection.consumer(
        {
            "group.id": group or "odradek-cli",
            "enable.auto.commit": group is not None,
            "auto.offset.reset": "latest" if start == "end" else "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    state = ConsumeState(limit=max_messages, is_following=follow)
    total = None
    timeout_s = client.connection.timeout_s
    with _stopped_by_signals(state), closing(consumer):
        if group is None:
            state.assigned = set(partition_ids)
            consumer.assign([TopicPartition(*each, begins[each]) for each in partition_ids])
            total = sum(ends[each] - begins[each] for each in partition_ids)
        else:
            topics = [selection.topic for selection in selections]
            consumer.subscribe(topics, on_assign=state.on_assign, on_revoke=state.on_revoke)
        show = _printer(columns, template, output)
        if total is None or follow or output.is_terminal:
            _read_all(consumer, state, show, _ignore, timeout_s)
        else:
            with output.progress("consumed", total) as advance:
                _read_all(consumer, state, show, advance, timeout_s)


@contextmanager
def _stopped_by_signals(state: ConsumeState) -> Iterator[None]:
    """SIGINT and SIGTERM end the reading after the current batch."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, state.stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _check_usage(
    selections: tuple[TopicSelection, ...],
    start: str | int | None,
    since: int | None,
    group: str | None,
    template: Callable[[Message], bytes] | None,
    output: Output,
) -> None:
    if start is not None and since is not None:
        raise click.UsageError("Give --from or --since, not both.")
    if template is not None and output.is_json:
        raise click.UsageError("Give --format or --output json, not both.")
    if group is not None:
        if since is not None or isinstance(start, int):
            raise click.UsageError(
                "A group starts at its committed offsets; change them with"
                " `odradek group reset-offsets`."
            )
        if any(selection.partitions for selection in selections):
            raise click.UsageError(
                "Partitions are assigned to the members of a group: name topics only."
            )


def _range(
    client: ClusterClient,
    partition_ids: list[PartitionId],
    start: str | int | None,
    since: int | None,
) -> tuple[dict[PartitionId, int], dict[PartitionId, int]]:
    """Where to begin in each partition, and where each ends now."""
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    if since is not None:
        found = offsets.list_offsets(client, partition_ids, since)
        return {each: found[each] if found[each] >= 0 else ends[each] for each in found}, ends
    if start == "end":
        return ends, ends
    starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
    if not isinstance(start, int):
        return starts, ends
    wanted = {each: start if start >= 0 else ends[each] + start for each in partition_ids}
    return {each: min(max(wanted[each], starts[each]), ends[each]) for each in wanted}, ends


def _read_all(
    consumer: Consumer,
    state: ConsumeState,
    show: Callable[[Message], None],
    advance: Callable[[int], None],
    timeout_s: float,
) -> None:
    from confluent_kafka import KafkaError

    while not state.is_over():
        messages = consumer.consume(state.batch_limit(), POLL_S)
        for message in messages:
            error = message.error()
            if error is None:
                show(message)
                state.count += 1
                if state.ended:
                    state.ended.discard(_partition_id(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                state.ended.add(_partition_id(message))
            elif error.fatal() or not _is_retriable(error.code()):
                raise click.ClickException(reason(error))
        if messages:
            sys.stdout.flush()
            advance(len(messages))
            state.progress_at = time.monotonic()
        else:
            state.check_progress(timeout_s)


def _is_retriable(code: int) -> bool:
    """Whether librdkafka retries by itself after this error."""
    from confluent_kafka import KafkaError

    return code in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
    )


def _partition_id(message: Message) -> PartitionId:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def _printer(
    columns: list[Callable[[Message], str]],
    template: Callable[[Message], bytes] | None,
    output: Output,
) -> Callable[[Message], None]:
    """The function that prints one record."""
    stdout = sys.stdout.buffer

    def show_json(message: Message) -> None:
        output.json_line(record_to_json(message))

    def show_template(message: Message) -> None:
        assert template is not None
        stdout.write(template(message))

    def show_coloured(message: Message) -> None:
        cells = (click.style(text_of(message), dim=True) + "  " for text_of in columns)
        stdout.write(("".join(cells) + printable(message.value())).encode() + b"\n")

    def show_plain(message: Message) -> None:
        # The value as it is: a pipe may need bytes that are not text.
        for text_of in columns:
            stdout.write(text_of(message).encode() + b"\t")
        value = message.value()
        stdout.write((b"null" if value is None else value) + b"\n")

    if output.is_json:
        return show_json
    if template is not None:
        return show_template
    return show_coloured if output.is_terminal else show_plain


def _ignore(_count: int) -> None:
    return None
