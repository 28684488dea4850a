"""What happens to a job's dead letters afterwards: records are sent again, or letters are dropped.

How far that is, is said by the committed offsets of a group of its own, `pipe.<name>.redriven`, in
the same transaction as the records: whatever is interrupted, no record is sent twice. The letters
stay in their topic until its retention, as `verify` needs them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import commit_offsets, committed_offsets
from odradek.pipeline.jobs.dead_letter_reader import (
    KeptLetter,
    LetterRanges,
    letter_ranges,
    read_letters,
)
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import ClientErrors, open_client, reason_of, wait_for_queue
from odradek.pipeline.wire.cluster import KafkaCluster

FROM_HEADER: Final = "__dlq.redrive.from"
"""Of a record that was sent again: where its letter is. As `odradek group dlq` has it."""
TRANSACTION_LETTERS: Final = 500

_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)


@dataclass(frozen=True, slots=True)
class JobLetters:
    """The dead letters of a job in a topic."""

    cluster: KafkaCluster
    properties: Mapping[str, str]
    """librdkafka's."""
    name: str
    topic: str
    timeout_s: float

    @property
    def job_group(self) -> str:
        """The group that the letters name."""
        return f"pipe.{self.name}"

    @property
    def handled_group(self) -> str:
        """The group whose offsets say which letters are handled."""
        return f"pipe.{self.name}.redriven"

    def pending_ranges(self) -> LetterRanges:
        """Where letters that nobody has handled lie; PipelineError if there is no such topic."""
        ranges = letter_ranges(self.cluster, self.topic)
        if not ranges.ranges:
            raise PipelineError(
                f"dead-letter topic {self.topic} does not exist: no record of the job was bad, or"
                " name another topic with --topic"
            )
        names = [each.name for each in ranges.ranges]
        handled = committed_offsets(
            self.properties, self.handled_group, names, timeout_s=self.timeout_s
        )
        return ranges.after(handled)

    def read(self, ranges: LetterRanges) -> Iterator[KeptLetter]:
        """The job's letters in these ranges."""
        return read_letters(self.cluster, ranges, self.job_group)

    def drop(self) -> int:
        """Let all pending letters count as handled; how many they are."""
        ranges = self.pending_ranges()
        count = sum(1 for _ in self.read(ranges))
        ends = {each.name: each.end for each in ranges.ranges if each.end > each.start}
        commit_offsets(self.properties, self.handled_group, ends, timeout_s=self.timeout_s)
        return count


class Redrive:
    """Sends the records of pending letters to their topics again, exactly once.

    A context manager. Entering fences another process that redrives the same letters.
    """

    def __init__(self, letters: JobLetters, to: str = "") -> None:
        """`to` names another topic than the one that the record was in."""
        self._letters = letters
        self._to = to
        self._errors = ClientErrors()
        self._failed = ""
        self._is_open = False
        self._producer: Producer = open_client(
            Producer,
            {
                **letters.properties,
                "transactional.id": f"{letters.job_group}.redrive",
                # The topic's own limit decides, not librdkafka's of 1 MB.
                "message.max.bytes": "1000000000",
                "error_cb": self._errors,
            },
        )

    def __enter__(self) -> Self:
        self._ask("start", lambda: self._producer.init_transactions(self._letters.timeout_s))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_open:
            self._producer.purge()
            with suppress(KafkaException):
                self._producer.abort_transaction(self._letters.timeout_s)

    def run(self) -> int:
        """Send all that is pending now; how many records."""
        ranges = self._letters.pending_ranges()
        self._check_topics()
        pending = self._letters.read(ranges)
        count = 0
        while batch := list(islice(pending, TRANSACTION_LETTERS)):
            self._send(batch)
            count += len(batch)
        return count

    def _check_topics(self) -> None:
        if self._to and not self._letters.cluster.topics([self._to]):
            raise PipelineError(f"topic {self._to} does not exist: create it first")

    def _send(self, batch: list[KeptLetter]) -> None:
        self._ask("begin", self._producer.begin_transaction)
        self._is_open = True
        for kept in batch:
            self._produce(kept)
        ends = {
            PartitionName(self._letters.topic, each.partition): each.offset + 1 for each in batch
        }
        offsets = [TopicPartition(*name, end) for name, end in ends.items()]
        # Never subscribed, so it joins nothing: it only says the group's name.
        consumer: Consumer = open_client(
            Consumer, {**self._letters.properties, "group.id": self._letters.handled_group}
        )
        try:
            self._ask(
                "commit",
                lambda: self._producer.send_offsets_to_transaction(
                    offsets, consumer.consumer_group_metadata(), self._letters.timeout_s
                ),
            )
        finally:
            consumer.close()
        self._ask("commit", lambda: self._producer.commit_transaction(self._letters.timeout_s))
        self._is_open = False

    def _produce(self, kept: KeptLetter) -> None:
        record = kept.letter.record
        place = f"{self._letters.topic}-{kept.partition} offset {kept.offset}"
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value) for name, value in record.headers if name != FROM_HEADER
        ]
        headers.append((FROM_HEADER, place.encode()))

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None and not self._failed:
                self._failed = f"the letter at {place}: {error.str()}"

        def produce() -> None:
            self._producer.produce(
                self._to or record.topic,
                record.value,
                record.key,
                # Where its key has always been; another topic partitions by its own rule.
                -1 if self._to else record.partition,
                on_delivery=delivered,
                # To librdkafka 0 means now, and a record without a time has -1.
                timestamp=max(record.timestamp_ms, 1),
                headers=headers,
            )

        try:
            wait_for_queue(self._producer, produce)
        except KafkaException as error:
            self._check_fenced(error)
            raise PipelineError(
                f"cannot send the letter at {place} again: {reason_of(error)}"
            ) from error

    def _check_fenced(self, error: KafkaException) -> None:
        """PipelineError if a newer process with the same transactional id is the reason. Whichever
        call comes first hears of it."""
        if error.args[0].code() in _FENCED:
            raise PipelineError(
                f"another process redrives the dead letters of {self._letters.name}: let one run"
            ) from error

    def _ask(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaException as error:
            self._check_fenced(error)
            with suppress(KafkaException):  # Fatal errors are raised by each call.
                self._producer.poll(0)  # Only here it calls error_cb.
            reason = self._failed or f"{reason_of(error)}{self._errors.explain()}"
            raise PipelineError(
                f"cannot {what} the transaction that sends records again: {reason}"
            ) from error
