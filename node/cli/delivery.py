"""Sends records through librdkafka and counts what was delivered.

One deadline bounds every wait: DeliveryStalledError after the timeout without a delivery, however
many records are queued. Called by produce.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from odradek.node.cli import configs
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import reason
from odradek.node.cli.record_text import NewRecord
from odradek.protocol.errors import ErrorCode

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import KafkaError, Message, Producer

TOPIC_LIMIT: Final = "max.message.bytes"
BROKER_LIMIT: Final = "message.max.bytes"
REQUEST_LIMIT: Final = "socket.request.max.bytes"
BATCH_BYTES_MAX: Final = 1_000_000
"""librdkafka's default: batch.size."""
BATCH_OVERHEAD_BYTES: Final = 100
"""Of a batch with one record: 61 bytes of header, and lengths, timestamp and offset of the record;
with a margin."""
CHECKED_BYTES_MIN: Final = 8 << 20
"""Smaller records are below the limit of requests of any broker in use."""
POLL_S: Final = 0.1


class DeliveryStalledError(Exception):
    """Nothing was delivered within the timeout, though records are queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimit:
    """The largest batch that a topic accepts. Its bytes are None if the cluster does not tell."""

    topic: str
    byte_count: int | None = None
    is_own: bool = False
    """Whether it is set on the topic; otherwise it is the brokers' message.max.bytes."""

    @staticmethod
    def of(client: ClusterClient, topic: str) -> TopicLimit:
        """The limit of a topic that exists."""
        for result in configs.describe(client, configs.TOPIC, [topic], [TOPIC_LIMIT]):
            for config in result.configs or ():
                if config.name == TOPIC_LIMIT and config.value is not None:
                    is_own = config.config_source == configs.DYNAMIC_TOPIC
                    return TopicLimit(topic=topic, byte_count=int(config.value), is_own=is_own)
        return TopicLimit(topic=topic)

    @property
    def batch_size(self) -> int:
        """librdkafka's batch.size: a larger batch would be refused as a whole."""
        return min(BATCH_BYTES_MAX, self.byte_count or BATCH_BYTES_MAX)

    def refusal_text(self, size: int) -> str:
        """Why a record of `size` bytes was refused, and what to change."""
        if self.byte_count is None:
            return f"a record of {size} bytes is larger than {TOPIC_LIMIT} of topic {self.topic}"
        origin = "" if self.is_own else f" (from the brokers' {BROKER_LIMIT})"
        return (
            f"a record of {size} bytes is larger than {TOPIC_LIMIT}={self.byte_count} of topic"
            f" {self.topic}{origin}. Raise it with: odradek config set topic {self.topic}"
            f" {TOPIC_LIMIT}={size + BATCH_OVERHEAD_BYTES}. Producers have a limit of their own:"
            f" max.request.size in Java, {BROKER_LIMIT} in librdkafka"
        )


class Interruptions:
    """SIGINT and SIGTERM of a command that sends records: the first ends the input, one more ends
    the wait for what was sent.

    While a record is read, which may take for ever, a signal raises KeyboardInterrupt. Otherwise it
    is only counted: in librdkafka's callbacks, or between sending and counting, it must not raise.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_reading = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals, SIGINT also where a shell had it ignored."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def reading(self, texts: Iterable[bytes]) -> Iterator[bytes]:
        """The texts, up to an interruption."""
        iterator = iter(texts)
        while not self.count:
            try:
                self._is_reading = True
                text = next(iterator, None)
                self._is_reading = False
            except KeyboardInterrupt:
                return
            if text is None:
                return
            yield text

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._is_reading:
            self._is_reading = False
            raise KeyboardInterrupt


@dataclass(slots=True, kw_only=True)
class Delivery:
    """The records of one command: sent, delivered by partition, and failed."""

    client: ClusterClient
    producer: Producer
    limit: TopicLimit
    is_compressed: bool
    interruptions: Interruptions = field(default_factory=Interruptions)
    sent: int = 0
    delivered: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    first_failure: str = ""
    _progress_at: float = field(default_factory=time.monotonic)
    has_timed_out: bool = False
    """Whether librdkafka has given up a record after its timeout."""
    _request_bytes_max: int | None = None

    @property
    def delivered_count(self) -> int:
        """The records that were delivered."""
        return sum(self.delivered.values())

    @property
    def left(self) -> int:
        """The records whose result is not known."""
        return self.sent - self.delivered_count - self.failed

    def send(self, record: NewRecord) -> None:
        """Queue a record; waits while the queue is full. Raises DeliveryStalledError,
        KeyboardInterrupt, and ClickException if no broker would accept it."""
        self._check_request_size(record)
        if not self.left:
            self._progress_at = time.monotonic()
        while True:
            try:
                self._produce(record)
                break
            except BufferError:
                self._wait()
        self.sent += 1

    def poll(self) -> None:
        """Count what was delivered meanwhile. Raises DeliveryStalledError."""
        self.producer.poll(0)
        self._check_progress()

    def flush(self) -> None:
        """Wait until every record is delivered or has failed. Raises DeliveryStalledError, and
        KeyboardInterrupt for an interruption meanwhile."""
        before = self.interruptions.count
        while len(self.producer):
            self.producer.flush(POLL_S)
            self._check_progress()
            if self.interruptions.count > before:
                raise KeyboardInterrupt

    def _wait(self) -> None:
        self.producer.poll(POLL_S)
        self._check_progress()
        if self.interruptions.count:
            raise KeyboardInterrupt

    def _check_progress(self) -> None:
        stalled_s = time.monotonic() - self._progress_at
        if self.has_timed_out or (self.left and stalled_s > self.client.connection.timeout_s):
            raise DeliveryStalledError

    def _produce(self, record: NewRecord) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            self.producer.produce(
                self.limit.topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers) or None,
                timestamp=record.timestamp_ms,
                on_delivery=self._count,
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            properties: Mapping[str, str] = self.client.connection.properties
            raise click.ClickException(
                f"a record of {_size(record)} bytes is larger than the producer's"
                f" {BROKER_LIMIT}={properties.get(BROKER_LIMIT)} (-X). Raise it, or leave it out"
            ) from error

    def _count(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report for one record."""
        if error is None:
            self._progress_at = time.monotonic()
            partition = message.partition()
            assert partition is not None
            self.delivered[partition] = self.delivered.get(partition, 0) + 1
            return
        from confluent_kafka import KafkaError

        self.failed += 1
        self.has_timed_out |= error.code() == KafkaError._MSG_TIMED_OUT
        if not self.first_failure:
            is_too_large = error.code() == ErrorCode.MESSAGE_TOO_LARGE
            size = len(message.key() or b"") + len(message.value() or b"")
            self.first_failure = self.limit.refusal_text(size) if is_too_large else reason(error)

    def _check_request_size(self, record: NewRecord) -> None:
        """A broker closes the connection on a larger request, and librdkafka sends it again until
        its timeout."""
        size = _size(record)
        if size < CHECKED_BYTES_MIN or self.is_compressed:
            return
        if self._request_bytes_max is None:
            self._request_bytes_max = self._described_request_limit()
        if size + BATCH_OVERHEAD_BYTES > self._request_bytes_max:
            raise click.ClickException(
                f"a record of {size} bytes is larger than a request to the brokers may be"
                f" ({REQUEST_LIMIT}={self._request_bytes_max} in their configuration). Split it,"
                " or compress it with --compression"
            )

    def _described_request_limit(self) -> int:
        self.client.metadata()
        for broker_id in self.client.broker_ids[:1]:
            kind, name = configs.BROKER, str(broker_id)
            for result in configs.describe(self.client, kind, [name], [REQUEST_LIMIT]):
                for config in result.configs or ():
                    if config.value is not None:
                        return int(config.value)
        return 1 << 31


def _size(record: NewRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
