"""Writes the rows of one task in one transaction, unless Kafka has them already.

The order is what makes it exactly once. First `init_transactions`: it fences a task that still
writes under this transactional id, and completes or aborts what that one has left; whatever it has
committed can be seen from here on. Then the mark is read. Only if it is not of this batch, the rows
are sent, with the new mark in the same transaction. So a task may die at any moment, and run again
or twice at the same time. Called by writers.py on executors.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.librdkafka import PURGED, ClientErrors, cause_of, open_client, reason_of
from odradek.pipeline.missing_rights import missing_right
from odradek.pipeline.sink.batch_marks import BatchMark, differing_batch, last_mark
from odradek.pipeline.sink.sink_columns import RowDigest, SinkRecord, records_of
from odradek.pipeline.sink.sink_options import SinkOptions

_CLEAN_UP_S: Final = 5.0
_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
_POLL_EVERY: Final = 1_000
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskName:
    """Which part of which batch this is."""

    prefix: str
    query: str
    run: str
    batch: int
    task: int

    @property
    def transactional_id(self) -> str:
        """The name of the group of the task's mark, too."""
        return f"{self.prefix}-{self.task}"

    def mark(self, digest: RowDigest) -> BatchMark:
        """The mark for these rows."""
        return BatchMark(
            query=self.query,
            run=self.run,
            batch=self.batch,
            task=self.task,
            rows=digest.rows,
            checksum=digest.checksum,
        )


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What Kafka has of the task, and the mark that it had before."""

    mark: BatchMark
    earlier: BatchMark | None = None


def write_task(
    name: TaskName, options: SinkOptions, batches: Iterator[pa.RecordBatch]
) -> TaskResult:
    """Returns when the rows are committed, by this call or before it. Without rows nothing is sent.

    PipelineError if they cannot be written; then the transaction is aborted.
    """
    digest = RowDigest(options.topic)
    records = (
        record
        for batch in batches
        for record in records_of(
            batch, topic=options.topic, keeps_timestamp=options.keeps_timestamp
        )
    )
    first = next(records, None)
    if first is None:
        return TaskResult(name.mark(digest))
    with _Transaction(name, options) as transaction:
        earlier = transaction.last_mark()
        if earlier is not None and earlier.batch > name.batch:
            raise PipelineError(
                f"Kafka has batch {earlier.batch} of query {name.query} already, and Spark runs"
                f" batch {name.batch} again: the checkpoint was set back. Start with a new"
                " checkpoint location"
            )
        if earlier is not None and earlier.batch == name.batch:
            _count(digest, first, records)
            mark = name.mark(digest)
            if not earlier.has_same_rows(mark):
                raise differing_batch(earlier, str(mark.rows))
            return TaskResult(mark, earlier)
        transaction.begin()
        transaction.send(first, digest)
        for record in records:
            transaction.send(record, digest)
        mark = name.mark(digest)
        transaction.commit(first.topic, mark)
    return TaskResult(mark, earlier)


def _count(digest: RowDigest, first: SinkRecord, others: Iterator[SinkRecord]) -> None:
    digest.add(first)
    for record in others:
        digest.add(record)


class _Transaction:
    """librdkafka's producer for one task. Leaving it early aborts."""

    def __init__(self, name: TaskName, options: SinkOptions) -> None:
        self._name = name
        self._options = options
        self._errors = ClientErrors()
        self._failure = ""
        self._is_open = False
        self._sent = 0
        self._producer: Producer = open_client(
            Producer,
            {
                **options.producer_properties,
                "transactional.id": name.transactional_id,
                "error_cb": self._errors,
                "on_delivery": self._on_delivery,
                "delivery.report.only.error": True,
            },
        )

    def __enter__(self) -> "_Transaction":
        try:
            self._producer.init_transactions(self._options.timeout_s)
        except KafkaException as error:
            raise self._explain("cannot start a transaction", error) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_open:
            try:
                self._producer.abort_transaction(_CLEAN_UP_S)
            except KafkaException:
                # The next one with this transactional id aborts it, or the broker after
                # transaction.timeout.ms; the task fails for the first reason.
                return

    def last_mark(self) -> BatchMark | None:
        return last_mark(
            self._options.properties,
            self._name.transactional_id,
            self._name.query,
            timeout_s=self._options.timeout_s,
        )

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._explain("cannot start a transaction", error) from error
        self._is_open = True

    def send(self, record: SinkRecord, digest: RowDigest) -> None:
        """Queue a record; waits while the queue is full."""
        digest.add(record)
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._poll(0)
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
                return
            except BufferError:
                self._poll(_POLL_S)
            except KafkaException as error:
                raise self._explain(f"cannot write to topic {record.topic}", error) from error

    def commit(self, topic: str, mark: BatchMark) -> None:
        """Commit records and mark together."""
        group = self._name.transactional_id
        # Never subscribed, so it joins nothing: it only says the group's name.
        consumer = open_client(Consumer, {**self._options.properties, "group.id": group})
        try:
            self._producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, mark.batch, mark.text())],
                consumer.consumer_group_metadata(),
                self._options.timeout_s,
            )
            self._producer.commit_transaction(self._options.timeout_s)
        except KafkaException as error:
            raise self._explain("cannot commit the transaction", error) from error
        finally:
            consumer.close()
        self._is_open = False

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:
            raise self._explain("cannot write", error) from error
        if self._failure:
            raise PipelineError(self._failure)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        # A record is purged because the transaction has failed: its calls raise the reason.
        if error is not None and error.code() not in PURGED and not self._failure:
            needed = missing_right(error.code(), topic=f"Write on topic {message.topic()}")
            self._failure = f"cannot write to topic {message.topic()}: {error.str()}{needed}"

    def _explain(self, what: str, refusal: KafkaException) -> PipelineError:
        error = cause_of(refusal, self._producer)
        with suppress(KafkaException):
            self._producer.poll(0)  # For the reasons that are still to be reported.
        code = error.args[0].code()
        task = f"of {self._name.transactional_id}"
        if code in _FENCED:
            return PipelineError(
                f"{what} {task}: fenced by another writer with this transactional id, or aborted by"
                " the cluster after kafka.transaction.timeout.ms; look for a second query with the"
                " same checkpoint or transactionalIdPrefix, or raise the timeout"
            )
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return PipelineError(
                f"{what} {task}: no answer from {self._options.properties['bootstrap.servers']}"
                f"{self._errors.explain()}; check kafka.bootstrap.servers and that the cluster runs"
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return PipelineError(
                f"{what} {task}: the cluster's transaction.max.timeout.ms is below"
                f" {self._options.producer_properties['transaction.timeout.ms']}: lower"
                " kafka.transaction.timeout.ms"
            )
        if self._failure:
            return PipelineError(self._failure)
        name = f"{self._name.prefix}-* (prefixed)"
        needed = missing_right(
            code,
            # Write for the rows, Read for the offset that is the batch's mark.
            topic="Write and Read on the topic",
            group=name,
            transactional_id=name,
        )
        return PipelineError(f"{what} {task}: {reason_of(error)}{needed}")
