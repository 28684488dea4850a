"""Dead letters of a job: records whose value does not fit the schema, with where they were.

A letter has the record's key, value and headers, and behind these the headers of KIP-1191 (Kafka's
dead-letter queues of share groups), so tools for those read ours, too. Those of a plan are sent in
one transaction, whose committed offset names the plan: a plan that runs again sends none twice.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_with_metadata
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import PURGED, ClientErrors, open_client, reason_of, wait_for_queue
from odradek.pipeline.missing_rights import missing_right
from odradek.pipeline.tables.rows import BadRecord

PREFIX: Final = "__dlq.errors."
_TOPIC: Final = f"{PREFIX}topic"
_PARTITION: Final = f"{PREFIX}partition"
_OFFSET: Final = f"{PREFIX}offset"
_GROUP: Final = f"{PREFIX}group"
_COUNT: Final = f"{PREFIX}delivery.count"
_MESSAGE: Final = f"{PREFIX}message"
# Not in the KIP: letters have the time of their sending, or retention would delete old ones soon.
_TIMESTAMP: Final = f"{PREFIX}timestamp"
_PLAN: Final = f"{PREFIX}plan"
_NAMES: Final = (_TOPIC, _PARTITION, _OFFSET, _GROUP, _COUNT, _MESSAGE, _TIMESTAMP, _PLAN)

LETTER_BYTES_MAX: Final = 100_000_000
"""`max.message.bytes` of a dead-letter topic that is created here: letters are larger than their
records, which may be as large as their own topic takes."""


@dataclass(frozen=True, slots=True)
class JobLetter:
    """A dead letter: the record, the group of the job, and the plan that sent it."""

    record: BadRecord
    group: str
    plan: int


def letter_headers(letter: JobLetter) -> list[tuple[str, bytes | None]]:
    """The headers that a letter is sent with: the record's own, then where it was and why."""
    record = letter.record
    values = (
        record.topic,
        record.partition,
        record.offset,
        letter.group,
        1,
        record.reason,
        record.timestamp_ms,
        letter.plan,
    )
    named = zip(_NAMES, values, strict=True)
    return [*record.headers, *((name, str(value).encode()) for name, value in named)]


def read_letter(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> JobLetter | None:
    """The letter in a message of a dead-letter topic; None if a job of ours did not send it."""
    own, ours = headers[: -len(_NAMES)], headers[-len(_NAMES) :]
    if tuple(name for name, _ in ours) != _NAMES:
        return None
    texts = {name: (text or b"").decode(errors="replace") for name, text in ours}
    try:
        record = BadRecord(
            topic=texts[_TOPIC],
            partition=int(texts[_PARTITION]),
            offset=int(texts[_OFFSET]),
            timestamp_ms=int(texts[_TIMESTAMP]),
            reason=texts[_MESSAGE],
            key=key,
            value=value,
            headers=tuple(own),
        )
        return JobLetter(record, texts[_GROUP], int(texts[_PLAN]))
    except ValueError:
        return None


class DeadLetterSender:
    """Sends the letters of a job, a transaction for each plan. One at a time: a newer one fences
    the older, also on another machine."""

    def __init__(
        self, properties: Mapping[str, str], group: str, topic: str, *, timeout_s: float
    ) -> None:
        """Creates the topic if there is none. `properties` are librdkafka's."""
        self._group = group
        self._topic = topic
        self._timeout_s = timeout_s
        self._marks = f"{group}.dlq"
        self._properties = dict(properties)
        self._errors = ClientErrors()
        self._failed: str = ""
        self._is_purged = False
        self._create_topic()
        self._producer = open_client(
            Producer,
            {
                **properties,
                "transactional.id": self._marks,
                # The topic's own limit decides, not librdkafka's of 1 MB.
                "message.max.bytes": "1000000000",
                "error_cb": self._errors,
            },
        )
        self._ask("init", lambda: self._producer.init_transactions(timeout_s))
        # Only now: what an earlier process left open is aborted, and what it committed is complete.
        self._sent_plan = self._last_plan()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer.purge()

    def send(self, plan: int, records: Iterable[BadRecord]) -> None:
        """All letters of a plan, or none of them; nothing if they were sent before."""
        if self._sent_plan >= plan:
            return
        self._ask("begin", self._producer.begin_transaction)
        count = 0
        for record in records:
            self._produce(JobLetter(record, self._group, plan))
            count += 1
        self._commit(plan, count)

    def _produce(self, letter: JobLetter) -> None:
        record = letter.record
        place = f"{record.topic}-{record.partition} offset {record.offset}"

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is None:
                return
            if error.code() in PURGED:
                # It failed as something else did, which the transaction tells, or nobody.
                self._is_purged = True
            elif not self._failed:
                self._failed = f"{place}: {error.str()}"

        def produce() -> None:
            self._producer.produce(
                self._topic,
                key=record.key,
                value=record.value,
                headers=[*letter_headers(letter)],
                on_delivery=delivered,
            )

        try:
            wait_for_queue(self._producer, produce)
        except KafkaException as error:
            self._check_fenced(error)
            raise self._failure(f"{place}: {reason_of(error)}") from error

    def _check_fenced(self, error: KafkaException) -> None:
        """PipelineError if a newer process with the same transactional id is the reason."""
        if error.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            raise PipelineError(
                f"another process of the job {self._group} has started: this one stops"
            ) from error

    def _commit(self, plan: int, count: int) -> None:
        mark = json.dumps({"odradek.plan": plan, "records": count})
        # Never subscribed, so it joins nothing: it only says the group's name.
        consumer = open_client(Consumer, {**self._properties, "group.id": self._marks})
        try:
            self._ask(
                "commit",
                lambda: self._producer.send_offsets_to_transaction(
                    [TopicPartition(self._topic, 0, plan, mark)],
                    consumer.consumer_group_metadata(),
                    self._timeout_s,
                ),
            )
        finally:
            consumer.close()
        self._ask("commit", lambda: self._producer.commit_transaction(self._timeout_s))
        self._sent_plan = plan

    def _last_plan(self) -> int:
        found = committed_with_metadata(
            self._properties,
            self._marks,
            {PartitionName(self._topic, 0)},
            timeout_s=self._timeout_s,
        )
        return max((each.offset for each in found.values()), default=0)

    def _create_topic(self) -> None:
        admin = open_client(AdminClient, {**self._properties, "error_cb": self._errors})
        try:
            known = admin.list_topics(timeout=self._timeout_s).topics
            if self._topic in known:
                return
            topic = NewTopic(
                self._topic, -1, -1, config={"max.message.bytes": str(LETTER_BYTES_MAX)}
            )
            admin.create_topics([topic])[self._topic].result(self._timeout_s)
        except KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            needed = missing_right(
                error.args[0].code(), topic=f"Describe and Create on topic {self._topic}"
            )
            raise self._failure(
                f"cannot be created: {reason_of(error)}{self._errors.explain()}{needed}"
            ) from error

    def _ask(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaException as error:
            self._check_fenced(error)
            inner = error.args[0]
            if inner.txn_requires_abort():
                with suppress(KafkaException):
                    self._producer.abort_transaction(self._timeout_s)
            failed = self._failed or f"{reason_of(error)}{self._errors.explain()}"
            needed = missing_right(
                inner.code(),
                # Write for the letters, Read for the offset that names the plan.
                topic=f"Write and Read on topic {self._topic}",
                group=self._marks,
                transactional_id=self._marks,
            )
            if self._is_purged and not needed:
                needed = f"; check that this user has Write on topic {self._topic}"
            raise self._failure(
                f"cannot {what} the transaction {self._marks}: {failed}{needed}"
            ) from error

    def _failure(self, text: str) -> PipelineError:
        return PipelineError(f"dead-letter topic {self._topic}: {text}")
