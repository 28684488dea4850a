"""Clients under load during faults: a writer and a consumer group.

All of them are confluent-kafka with default retries and timeouts, because the tests check what an
application sees. They record everything in an `ObservedHistory`. Errors that the library passes to
the application are complaints. "All brokers down" is not counted as an error: the library retries.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from odradek.protocol.errors import ErrorCode
from tests.e2e.checker import UNKNOWN_OFFSET, Log, ObservedHistory, ObservedRead, Position, Value
from tests.support.waiting import wait_until

IN_FLIGHT_MAX = 200
"""Unacknowledged records of one partition at most. A partition without leader must not block the
others."""
BURST = 8
PACE_S = 0.004
"""Pause between two bursts of a writer."""
COMMIT_EVERY = 200
KEYS = 64
LEAVE_S = 10.0
LOOK_S = 5.0
WAIT_S = 60.0
_NEWS = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_PAUSES = (*_NEWS, KafkaError._TIMED_OUT, KafkaError._WAIT_COORD)


class Stream(NamedTuple):
    """The records of one producer to one partition, in sequence order."""

    producer: int
    partition: int


class Writer(threading.Thread):
    """One idempotent producer. It numbers its records and writes to all partitions: the next burst
    `pace_s` after one, or when the first acknowledgement arrives, unless it is steady."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        history: ObservedHistory,
        number: int = 0,
        *,
        pace_s: float = PACE_S,
        is_steady: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._pace_s = pace_s
        self._is_steady = is_steady
        self._topic = topic
        self._history = history
        self._producer_number = number
        self._in_flight = [0] * partitions
        self._stopping = threading.Event()
        self.answered_at: list[list[float]] = [[] for _ in range(partitions)]
        """Monotonic times of the acknowledgements, by partition."""
        self.newest: list[int] = [-1] * partitions
        """The highest acknowledged sequence number, by partition."""
        self.next_number = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                # With several in flight, librdkafka bumps its epoch if a later one is out of order,
                # and repeats what other partitions may have (confluentinc/librdkafka#4953):
                # rare, but a long run meets it.
                "max.in.flight": 1 if is_steady else 5,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Produce until `stop`, then flush."""
        while not self._stopping.is_set():
            for _ in range(BURST):
                self._produce()
            due = time.monotonic() + self._pace_s
            self._producer.poll(self._pace_s)
            while self._is_steady and (rest_s := due - time.monotonic()) > 0:
                self._producer.poll(rest_s)
        left = self._producer.flush(120)
        if left:
            self._history.complaints.append(f"{left} records were never answered")

    def stop(self) -> None:
        """Stop producing and wait for all acknowledgements."""
        self._stopping.set()
        self.join(150)
        assert not self.is_alive(), "the producer hangs"

    def longest_gap_s(self, begin: float, end: float) -> float:
        """The longest time without an acknowledgement in a partition, among those that overlap
        [begin, end]."""
        longest = 0.0
        for times in self.answered_at:
            first = max(bisect_left(times, begin) - 1, 0)
            for before, after in pairwise(times[first : bisect_right(times, end) + 1]):
                longest = max(longest, after - before)
        return longest

    def _produce(self) -> None:
        number = self.next_number
        partition = number % len(self._in_flight)
        if self._in_flight[partition] >= IN_FLIGHT_MAX:
            partition = min(range(len(self._in_flight)), key=self._in_flight.__getitem__)
            if self._in_flight[partition] >= IN_FLIGHT_MAX:
                return
        value = Value(self._producer_number, number)
        self.next_number += 1
        self._history.sent[value] = partition
        self._in_flight[partition] += 1

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._in_flight[partition] -= 1
            if error is not None:
                self._history.complaints.append(f"{value} was not delivered: {error}")
                return
            offset = message.offset()
            self._history.acknowledged[value] = Position(
                partition, UNKNOWN_OFFSET if offset is None or offset < 0 else offset
            )
            self.answered_at[partition].append(time.monotonic())
            self.newest[partition] = number

        self._producer.produce(
            self._topic,
            key=b"key-%d" % (number % KEYS),
            value=encode(value),
            partition=partition,
            on_delivery=on_delivery,
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() not in _NEWS:
            self._history.complaints.append(f"the producer was told {error}")


class Reader(threading.Thread):
    """One member of a group. It reads its assignment and commits from time to time."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        name: str,
        history: ObservedHistory,
        *,
        rack: str = "",
        is_patient: bool = False,
        on_expired: Callable[[], None] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """`on_expired` is called when the coordinator does not know the member any more; without it
        that is a complaint."""
        super().__init__(daemon=True, name=name)
        self._topic = topic
        self._history = history
        self._stopping = threading.Event()
        self._readings: dict[int, ObservedRead] = {}
        self._uncommitted = 0
        self._is_patient = is_patient
        self._on_expired = on_expired
        self.assignments = 0
        """The number of assignments."""
        self.newest: dict[Stream, int] = {}
        """The highest sequence number read, by producer and partition."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.rack": rack,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "error_cb": self._on_error,
                "log_level": 0,
                **(properties or {}),
            }
        )

    @property
    def partitions(self) -> set[int]:
        """The assigned partitions."""
        return set(self._readings)

    def run(self) -> None:
        """Read until `stop`, then leave the group."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke
        )
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None:
                self._take(message)
        self._commit()
        # confluent-kafka can block for ever in close() while it holds the interpreter's lock, if it
        # has to call back from there. So the partitions are unassigned before.
        self._consumer.unsubscribe()
        deadline = time.monotonic() + LEAVE_S
        while self._readings and time.monotonic() < deadline:
            self._consumer.poll(0.1)
        self._consumer.close()

    def stop(self) -> None:
        """Commit, leave the group and end."""
        self._stopping.set()
        self.join(60)
        assert not self.is_alive(), f"{self.name} hangs"

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._history.complaints.append(f"{self.name} was told {error}")
            return
        partition, offset = position_of(message)
        value = decode(message.value())
        self._readings[partition].records.append((offset, value))
        self.newest[Stream(value.producer, partition)] = value.number
        self._uncommitted += 1
        if self._uncommitted >= COMMIT_EVERY:
            self._commit()

    def _commit(self) -> None:
        positions = [
            TopicPartition(self._topic, reading.partition, reading.records[-1][0] + 1)
            for reading in self._readings.values()
            if reading.records
        ]
        self._uncommitted = 0
        if not positions:
            return
        try:
            committed = self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            self._on_commit_failed(error.args[0])
            return
        for position in committed or ():
            if position.error is None:
                self._readings[position.partition].committed = position.offset
            else:
                self._on_commit_failed(position.error)

    def _on_commit_failed(self, error: KafkaError) -> None:
        """The library retries for a limited time. A reader that tolerates outages commits again
        later."""
        code = error.code()
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self._on_expired is not None:
            self._on_expired()
            return
        may_be_tried_again = code in _PAUSES if code < 0 else ErrorCode(code).is_retriable
        if not (self._is_patient and may_be_tried_again):
            self._history.complaints.append(f"{self.name} could not commit: {error}")

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        for partition in partitions:
            number = partition.partition
            promised = [r.committed for r in list(self._history.readings) if r.partition == number]
            reading = ObservedRead(self.name, number, resumed_from=max(promised, default=-1))
            self._readings[number] = reading
            self._history.readings.append(reading)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        for partition in partitions:
            del self._readings[partition.partition]

    def _on_error(self, error: KafkaError) -> None:
        if error.code() not in _NEWS:
            self._history.complaints.append(f"{self.name} was told {error}")


def watermarks(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The log start and end offsets of partitions, from their present leaders. Every call uses a
    new client: librdkafka keeps asking a leader that it knows until the timeout, even if that one
    is dead and another one is elected."""

    def look() -> dict[int, tuple[int, int]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), LOOK_S)
                for partition in partitions
            }
        finally:
            consumer.close()

    return wait_until(look, timeout_s=WAIT_S, what=f"the leaders of {topic} say where it ends")


def read_log(bootstrap: str, topic: str, partitions: Iterable[int]) -> Log:
    """All records of the topic, read by a consumer without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    log: Log = {partition: [] for partition in partitions}
    ends: dict[int, int] = {}
    for partition, (start, end) in watermarks(bootstrap, topic, log).items():
        assert start == 0
        ends[partition] = end
    missing = {partition for partition, end in ends.items() if end > 0}
    consumer.assign([TopicPartition(topic, partition, 0) for partition in missing])
    deadline = time.monotonic() + WAIT_S
    while missing:
        assert time.monotonic() < deadline, f"partitions {missing} cannot be read to their ends"
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None, message.error()
            position = position_of(message)
            log[position.partition].append((position.offset, decode(message.value())))
            if position.offset + 1 >= ends[position.partition]:
                missing.discard(position.partition)
    consumer.close()
    return log


def position_of(message: Message) -> Position:
    """The position of a message."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Position(partition, offset)


def encode(value: Value) -> bytes:
    """Encode a record's value."""
    return b"%d %d" % value


def decode(octets: bytes | None) -> Value:
    """The inverse of `encode`."""
    assert octets is not None
    producer, number = octets.split()
    return Value(int(producer), int(number))
