"""Copies records into partitions of topics, in their order, with the source's position in the same
transaction.

The order of use makes it exactly once. Entering fences whoever copies under this name and ends what
that one has left; only then are positions read. `begin`, any number of `send`, `flush`, `commit`.
Leaving early aborts. One transactional id, `pipe.<name>`, which is the group's name, too. Called by
replay.py and mirror.py; one process and no Spark: a partition's order needs one producer anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_progress import CopyPosition
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import ClientErrors, cause_of, open_client, reason_of

COPY_DEFAULTS: Final[Mapping[str, str]] = {
    "linger.ms": "20",
    # Records are as large as the source took them; the target's max.message.bytes decides.
    "message.max.bytes": "100000000",
    "queue.buffering.max.kbytes": "131072",
    "transaction.timeout.ms": "60000",
}
_CLEAN_UP_S: Final = 5.0
_POLL_EVERY: Final = 1_000
_POLL_S: Final = 0.1
_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
_NEIGHBOURS: Final = frozenset({KafkaError._INVALID_DIFFERENT_RECORD, KafkaError._PURGE_QUEUE})
_ADVICE: Final[Mapping[int, str]] = {
    KafkaError.INVALID_TIMESTAMP: "let the topic take its time: raise the topic's"
    " message.timestamp.after.max.ms and message.timestamp.before.max.ms",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise the topic's segment.bytes",
    KafkaError.INVALID_RECORD: "the topic does not take such records: a compacted one needs keys",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user needs WRITE on the topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user needs WRITE on it",
}
_NOW: Final = 0
"""To librdkafka."""
_UNREACHABLE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})


_Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class CopyInterrupted(PipelineError):
    """The transaction failed for a reason that passes; a new start goes on where it was."""


class CopyFenced(PipelineError):
    """Another process copies under this name."""


class OffsetRun(NamedTuple):
    """Records with consecutive offsets in the source and in the target."""

    source_offset: int
    target_offset: int
    records: int


class _Failure(NamedTuple):
    """Why a record was not delivered."""

    text: str
    advice: str
    """What to change, if trying again would not help."""
    is_neighbour: bool
    """It failed as another record of its batch did."""
    is_purged: bool


@dataclass(slots=True)
class _Sent:
    """One partition's offsets as they were sent and as they were delivered: in one order."""

    source: list[int]
    target: list[int]


class TransactionalCopy:
    """A context manager around librdkafka's producer."""

    def __init__(self, properties: Mapping[str, str], name: str, *, timeout_s: float) -> None:
        """`properties` are those of `client_properties`."""
        self.group = f"pipe.{name}"
        self.zero_timestamps = 0
        """Records whose time 0 became 1 ms: to librdkafka 0 means now."""
        self._properties = {**COPY_DEFAULTS, **properties}
        self._timeout_s = timeout_s
        self._errors = ClientErrors()
        self._failure: _Failure | None = None
        self._is_open = False
        self._sent: dict[PartitionName, _Sent] = {}
        self._count = 0
        self._producer: Producer = open_client(
            Producer,
            {**self._properties, "transactional.id": self.group, "error_cb": self._errors},
        )
        # Never subscribed, so it joins nothing: it only says the group's name.
        self._consumer: Consumer = open_client(Consumer, {**properties, "group.id": self.group})

    def __enter__(self) -> "TransactionalCopy":
        """PipelineError if the cluster does not answer."""
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            self._consumer.close()
            self._fail("cannot start transactions", error)
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()
        self._abort()

    def begin(self) -> None:
        """A new transaction."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._fail("cannot begin a transaction", error)
        self._is_open = True
        self._sent = {}

    def send(self, target: PartitionName, rows: pa.RecordBatch | pa.Table) -> None:
        """Rows of KAFKA_SCHEMA, in the order of their offsets; waits while the queue is full."""
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()
        offsets = rows.column("offset").to_pylist()
        headers: Sequence[list[dict[str, Any]] | None] = [None] * len(offsets)
        if "headers" in rows.schema.names and rows.column("headers").null_count < len(offsets):
            headers = rows.column("headers").to_pylist()
        sent = self._sent.setdefault(target, _Sent([], []))
        sent.source.extend(offsets)
        delivered = sent.target

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note_failure(target, f"offset {sent.source[len(delivered)]}", error)
            delivered.append(-1 if error is not None else message.offset() or 0)

        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        for key, value, time_us, pairs in zip(keys, values, times, headers, strict=True):
            time_ms = -1 if time_us is None else time_us // 1000
            if time_ms == _NOW:
                time_ms = 1
                self.zero_timestamps += 1
            named = [(pair["key"], pair["value"]) for pair in pairs] if pairs else None
            self._produce(target, key, value, time_ms, named, on_delivery)

    def send_note(self, topic: str, key: bytes, value: bytes) -> None:
        """A record of the copy's own, in the same transaction, in partition 0 of a topic."""
        target = PartitionName(topic, 0)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            del message
            if error is not None:
                self._note_failure(target, "a record of its own", error)

        self._produce(target, key, value, _NOW, None, on_delivery)

    def flush(self) -> dict[PartitionName, list[OffsetRun]]:
        """Waits until all is delivered, and says where the records of this transaction are."""
        left = self._producer.flush(self._timeout_s)
        self._raise_failure()
        if left:
            raise CopyInterrupted(
                f"{left} records are not delivered to {self._address} within {self._timeout_s:g} s"
                f"{self._errors.explain()}; check that the cluster runs, and start again"
            )
        return {name: _runs(sent.source, sent.target) for name, sent in self._sent.items()}

    def commit(self, positions: Mapping[PartitionName, CopyPosition]) -> None:
        """Commit records and positions together."""
        offsets = [
            TopicPartition(*name, each.target_end, each.text()) for name, each in positions.items()
        ]
        try:
            self._producer.send_offsets_to_transaction(
                offsets, self._consumer.consumer_group_metadata(), self._timeout_s
            )
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            self._fail("cannot commit the transaction", error)
        self._raise_failure()
        self._is_open = False

    @property
    def _address(self) -> str:
        return self._properties["bootstrap.servers"]

    def _produce(
        self,
        target: PartitionName,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: _Headers | None,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        self._count += 1
        if self._count % _POLL_EVERY == 0:
            self._poll(0)
        while True:
            try:
                self._producer.produce(
                    target.topic,
                    value,
                    key,
                    target.partition,
                    on_delivery=on_delivery,
                    headers=headers,
                    timestamp=time_ms,
                )
                return
            except BufferError:
                self._poll(_POLL_S)
            except KafkaException as error:
                self._fail(f"cannot write to {target}", error)

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:
            self._fail("cannot go on with the transaction", error)
        self._raise_failure()

    def _note_failure(self, target: PartitionName, what: str, error: KafkaError) -> None:
        """The first one, but rather that of the record at fault than of its neighbours."""
        is_neighbour = error.code() in _NEIGHBOURS
        if self._failure is not None and (is_neighbour or not self._failure.is_neighbour):
            return
        text = f"cannot write {what} to {target} at {self._address}: {error.str()}"
        is_purged = error.code() == KafkaError._PURGE_QUEUE
        self._failure = _Failure(text, _ADVICE.get(error.code(), ""), is_neighbour, is_purged)

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        if self._failure.advice:
            raise PipelineError(f"{self._failure.text}; {self._failure.advice}")
        # librdkafka drops records that it may not send, and does not say why.
        check = (
            "check that the user has WRITE on the topic, and " if self._failure.is_purged else ""
        )
        raise CopyInterrupted(f"{self._failure.text}; {check}start again, it goes on where it was")

    def _abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._producer.purge()
            self._producer.abort_transaction(_CLEAN_UP_S)
        except KafkaException:
            # The next start aborts it, or the broker after transaction.timeout.ms; the copy fails
            # for the first reason.
            return

    def _fail(self, what: str, refusal: KafkaException) -> NoReturn:
        error = cause_of(refusal, self._producer)
        code = error.args[0].code()
        if code in _FENCED:
            raise CopyFenced(
                f"{what} of {self.group}: another process copies under this name, or the cluster"
                " aborted the transaction after kafka.transaction.timeout.ms; let one run"
            ) from error
        if code in _UNREACHABLE:
            self._producer.poll(0)  # Only here it calls error_cb.
            raise CopyInterrupted(
                f"{what} of {self.group}: no answer from {self._address}{self._errors.explain()};"
                " check the bootstrap servers and that the cluster runs"
            ) from error
        self._raise_failure()
        text = f"{what} of {self.group}: {reason_of(error)}"
        if error.args[0].retriable() or error.args[0].txn_requires_abort():
            raise CopyInterrupted(f"{text}; start again, it goes on where it was") from error
        raise PipelineError(text) from error


def _runs(source: Sequence[int], target: Sequence[int]) -> list[OffsetRun]:
    """Runs of records that follow each other on both sides; equally many, in the same order."""
    runs: list[OffsetRun] = []
    first = 0
    for index in range(1, len(source) + 1):
        if (
            index == len(source)
            or source[index] != source[index - 1] + 1
            or target[index] != target[index - 1] + 1
        ):
            runs.append(OffsetRun(source[first], target[first], index - first))
            first = index
    return runs
