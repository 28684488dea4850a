"""Transactions that move money, auditors that read them, and the lag of the last stable offset.

Each bank moves an amount from one account to another in one transaction: a debit record and a
credit record in two partitions, and sometimes the bank's position in a group. Some transactions are
aborted on purpose. A read_committed consumer must see both records of a transaction or none: both
of every acknowledged one, none of an aborted one. So the sum of all amounts is always zero. The
committed position is that of the last transaction, and no transaction holds back the last stable
offset for ever.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.e2e.cluster import WAIT_S
from tests.e2e.load import watermarks
from tests.support.waiting import wait_until

TOPIC: Final = "accounts"
SOURCE: Final = "orders"
PARTITIONS: Final = 4
CALL_S: Final = 10.0
TIMEOUT_S: Final = 20.0
"""Timeout of transactions."""
_POLL_S: Final = 0.2
_CLIENT: Final[dict[str, str | int | float | bool]] = {
    # librdkafka's messages about broken connections are expected here.
    "log_level": 0,
    # If its only known broker dies, librdkafka forgets it and waits for the group coordinator
    # without a time limit, whatever timeout was given (confluentinc/librdkafka#5511).
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 500,
}


class Bank(threading.Thread):
    """Runs transactions one after another until `stop`.

    It can only commit positions where no broker is fenced for long: librdkafka forgets such a
    broker, see _CLIENT.
    """

    def __init__(self, bootstrap: str, number: int, *, commits_offsets: bool = False) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.commits_offsets = commits_offsets
        self.group = f"bank-{number}"
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.replaced_count = 0
        """Producers that were replaced after a fatal error."""
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        """The acknowledged end offsets."""
        self.fault: BaseException | None = None
        self._servers = bootstrap
        self._random = random.Random(number)
        self._is_stopping = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": self.group, **_CLIENT}
        )

    def run(self) -> None:
        try:
            producer = self._new_producer()
            number = 0
            while not self._is_stopping.is_set():
                if not self._move(producer, number):
                    self.replaced_count += 1
                    # No delivery may be left when it is freed: confluent-kafka would report it from
                    # there, perhaps while an exception is raised.
                    producer.purge()
                    producer.flush(CALL_S)
                    producer = self._new_producer()
                number += 1
        except BaseException as error:
            self.fault = error

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(2 * WAIT_S)
        assert not self.is_alive(), f"bank {self.number} is stuck"
        self._consumer.close()
        if self.fault is not None:
            raise self.fault

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"bank-{self.number}",
                "transaction.timeout.ms": int(TIMEOUT_S * 1000),
                "linger.ms": 0,
                **_CLIENT,
            }
        )
        self._retry(partial(producer.init_transactions, CALL_S))
        return producer

    def _move(self, producer: Producer, number: int) -> bool:
        """One transaction; False if the producer must be replaced."""
        amount = self._random.randint(1, 1_000)
        is_decided = False
        try:
            producer.begin_transaction()
            for partition, change in zip(
                self._random.sample(range(PARTITIONS), 2), (-amount, amount), strict=True
            ):
                value = f"{self.number}:{number}:{change}"
                producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            if self.commits_offsets:
                position = TopicPartition(SOURCE, 0, number + 1)
                group = self._consumer.consumer_group_metadata()
                send = producer.send_offsets_to_transaction
                self._retry(partial(send, [position], group, CALL_S))
            if self._random.random() < 0.2:
                producer.flush(CALL_S)
                self._retry(partial(producer.abort_transaction, CALL_S))
                self.aborted.append(number)
                return True
            is_decided = True
            self._retry(partial(producer.commit_transaction, CALL_S))
        except KafkaException as caught:
            error = caught.args[0]
            if error.txn_requires_abort():
                with suppress(KafkaException):
                    self._retry(partial(producer.abort_transaction, CALL_S))
                    self.aborted.append(number)
                    return True
            (self.unknown if is_decided else self.aborted).append(number)
            return False
        self.committed.append(number)
        return True

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.ends[partition] = max(self.ends[partition], offset + 1)

    def _retry(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except KafkaException as caught:
                if not caught.args[0].retriable():
                    raise
            else:
                return


class BankAuditor(threading.Thread):
    """A read_committed consumer beside the banks; `seen` counts its records."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[str] = Counter()
        self.fault: BaseException | None = None
        self._ends: dict[int, int] | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"auditor-{number}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **_CLIENT,
            }
        )

    def run(self) -> None:
        try:
            partitions = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
            self._consumer.assign(partitions)
            while not self._has_everything(partitions):
                message = self._consumer.poll(_POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    assert error.retriable() or error.code() in (
                        KafkaError._ALL_BROKERS_DOWN,
                        KafkaError._TRANSPORT,
                        KafkaError._TIMED_OUT,
                    ), error
                    continue
                value = message.value()
                assert value is not None
                self.seen[value.decode()] += 1
        except BaseException as error:
            self.fault = error

    def finish(self, ends: dict[int, int]) -> Counter[str]:
        """Read up to these end offsets."""
        self._ends = ends
        self.join(WAIT_S)
        assert not self.is_alive(), f"held back: {self._consumer.position(self._partitions())}"
        self._consumer.close()
        if self.fault is not None:
            raise self.fault
        return self.seen

    def _has_everything(self, partitions: Sequence[TopicPartition]) -> bool:
        """A position may be behind a marker as well, once all stable records are read."""
        ends = self._ends
        if ends is None:
            return False
        return all(
            found.offset >= ends[found.partition]
            for found in self._consumer.position(list(partitions))
        )

    @staticmethod
    def _partitions() -> list[TopicPartition]:
        return [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]


class StableWatch(threading.Thread):
    """Measures how long the last stable offset stays still below the log's end."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._readers = [
            Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": "watch",
                    "isolation.level": f"read_{level}",
                    **_CLIENT,
                }
            )
            for level in ("committed", "uncommitted")
        ]
        self._since: dict[int, tuple[int, float]] = {}
        self._is_stopping = threading.Event()

    def run(self) -> None:
        while not self._is_stopping.wait(_POLL_S):
            for index in range(PARTITIONS):
                with suppress(KafkaException):
                    self._look(index)

    def stop(self) -> float:
        """Returns the longest time, in seconds."""
        self._is_stopping.set()
        self.join(WAIT_S)
        for reader in self._readers:
            reader.close()
        return self.longest_s

    def _look(self, index: int) -> None:
        stable, end = (
            reader.get_watermark_offsets(TopicPartition(TOPIC, index), 1.0)[1]
            for reader in self._readers
        )
        now = time.monotonic()
        known, since = self._since.get(index, (-1, now))
        if stable >= end or stable != known:
            self._since[index] = stable, now
        else:
            self.longest_s = max(self.longest_s, now - since)


def ends_of(bootstrap: str, banks: Sequence[Bank] = ()) -> dict[int, int]:
    """The end offsets for read_uncommitted, once they cover the acknowledged records: a worker that
    has just started learns the high watermark only later."""

    def ends() -> dict[int, int] | None:
        looked = watermarks(bootstrap, TOPIC, range(PARTITIONS))
        found = {index: end for index, (_, end) in looked.items()}
        is_there = all(found[index] >= bank.ends[index] for bank in banks for index in found)
        return found if is_there else None

    found = wait_until(ends, timeout_s=WAIT_S, what="the logs end behind what was acknowledged")
    assert found is not None
    return found


def read_committed(bootstrap: str, banks: Sequence[Bank] = ()) -> Counter[str]:
    """All records for read_committed, up to the end offsets for read_uncommitted."""
    auditor = BankAuditor(bootstrap, -1)
    auditor.start()
    return auditor.finish(ends_of(bootstrap, banks))


def position_of(bootstrap: str, group: str) -> int:
    """The group's committed position, once no open transaction can change it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            **_CLIENT,
        }
    )
    try:
        [found] = consumer.committed([TopicPartition(SOURCE, 0)], WAIT_S)
        return int(found.offset)
    finally:
        consumer.close()


def audit(bootstrap: str, banks: Sequence[Bank], read: Counter[str]) -> None:
    """Compare the records with the outcomes that the banks recorded."""
    assert set(read.values()) <= {1}, "something was read twice"
    seen: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    for text in read:
        bank_number, number, change = map(int, text.split(":"))
        seen[bank_number, number] += 1
        sums[bank_number, number] += change
    assert not any(sums.values()), "a sum does not hold"
    for bank in banks:
        assert bank.committed, f"bank {bank.number} has done nothing"
        for number in bank.committed:
            assert seen.pop((bank.number, number), 0) == 2, (bank.number, number)
        for number in bank.aborted:
            assert seen.pop((bank.number, number), 0) == 0, (bank.number, number)
        decided = [*bank.committed]
        for number in bank.unknown:
            count = seen.pop((bank.number, number), 0)
            assert count in (0, 2), (bank.number, number, count)
            if count:
                decided.append(number)
        if bank.commits_offsets:
            assert position_of(bootstrap, bank.group) == max(decided) + 1, bank.number
    assert not seen


def progress(banks: Sequence[Bank], count: int) -> None:
    """Wait until every bank has completed `count` more transactions."""
    marks = [len(bank.committed) + count for bank in banks]

    def is_there() -> bool:
        if not all(bank.is_alive() for bank in banks):
            pytest.fail(f"a bank has ended: {[bank.fault for bank in banks]}")
        return all(len(bank.committed) >= mark for bank, mark in zip(banks, marks, strict=True))

    wait_until(is_there, timeout_s=2 * WAIT_S, what="all banks go on")


def as_text(banks: Sequence[Bank]) -> str:
    return (
        f"{sum(len(bank.committed) for bank in banks)} committed,"
        f" {sum(len(bank.aborted) for bank in banks)} aborted,"
        f" {sum(len(bank.unknown) for bank in banks)} unknown,"
        f" {sum(bank.replaced_count for bank in banks)} producers replaced"
    )
