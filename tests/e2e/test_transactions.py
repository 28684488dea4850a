"""Processes and nodes are killed in the middle of transactions: nothing is torn, nothing is stuck.

Each bank moves from one account to another: two records to two partitions and its position in a
group, in one transaction, now and then aborted on purpose. Afterwards those who read what is
committed see both records of a transaction or none: both of every one that was acknowledged, none
of those that were aborted; the position is that of the last one; and nothing is held back for ever.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.e2e.cluster import WAIT_S, running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until

TOPIC = "accounts"
SOURCE = "orders"
PARTITIONS = 4
BANKS = 3
KILLS = 3
CALL_S = 10.0
BETWEEN_KILLS = 15
"""Transactions of each bank from one kill to the next."""


class Bank(threading.Thread):
    """Transactions one after the other, until it is told to stop."""

    def __init__(self, bootstrap: str, number: int, *, commits_offsets: bool) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.commits_offsets = commits_offsets
        self.group = f"bank-{number}"
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.fault: BaseException | None = None
        self._servers = bootstrap
        self._random = random.Random(number)
        self._is_stopping = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": self.group, "log_level": 0}
        )

    def run(self) -> None:
        try:
            producer = self._new_producer()
            number = 0
            while not self._is_stopping.is_set():
                if not self._move(producer, number):
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
                "transaction.timeout.ms": 20_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._retry(partial(producer.init_transactions, CALL_S))
        return producer

    def _move(self, producer: Producer, number: int) -> bool:
        """One transaction; False if the producer cannot go on."""
        value = f"{self.number}:{number}"
        is_decided = False
        try:
            producer.begin_transaction()
            source, target = self._random.sample(range(PARTITIONS), 2)
            for partition in (source, target):
                producer.produce(TOPIC, value, partition=partition)
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

    def _retry(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except KafkaException as caught:
                if not caught.args[0].retriable():
                    raise
            else:
                return


def read_committed(bootstrap: str) -> Counter[str]:
    """How often each transaction's record is read by who reads what is committed, up to where
    those who read everything would get."""
    ends = {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
            "enable.auto.commit": False,
        }
    )
    seen: Counter[str] = Counter()
    try:
        partitions = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
        ends = {
            partition.partition: consumer.get_watermark_offsets(partition, CALL_S)[1]
            for partition in partitions
        }
        consumer.assign(partitions)
        left = set(ends)
        while left:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"partitions {left} are held back"
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                seen[value.decode()] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                at = message.partition()
                assert at is not None
                [position] = consumer.position([TopicPartition(TOPIC, at)])
                # The end of what is stable: it must come to be the end of everything.
                if position.offset >= ends[at] or message.offset() == ends[at]:
                    left.discard(at)
    finally:
        consumer.close()
    return seen


def position_of(bootstrap: str, group: str) -> int:
    """The group's committed position, once no transaction may change it any more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        [found] = consumer.committed([TopicPartition(SOURCE, 0)], WAIT_S)
        return int(found.offset)
    finally:
        consumer.close()


def audit(bootstrap: str, banks: list[Bank]) -> None:
    seen = read_committed(bootstrap)
    for bank in banks:
        assert bank.committed, f"bank {bank.number} has done nothing"
        for number in bank.committed:
            assert seen.pop(f"{bank.number}:{number}", 0) == 2, (bank.number, number)
        for number in bank.aborted:
            assert seen.pop(f"{bank.number}:{number}", 0) == 0, (bank.number, number)
        decided = [*bank.committed]
        for number in bank.unknown:
            count = seen.pop(f"{bank.number}:{number}", 0)
            assert count in (0, 2), (bank.number, number, count)
            if count:
                decided.append(number)
        if bank.commits_offsets:
            assert position_of(bootstrap, bank.group) == max(decided) + 1, bank.number
    assert not seen


def work_through(
    bootstrap: str, kills: list[Callable[[], None]], *, commits_offsets: bool = False
) -> list[Bank]:
    """Banks at work while something is killed, again and again."""
    banks = [Bank(bootstrap, number, commits_offsets=commits_offsets) for number in range(BANKS)]
    for bank in banks:
        bank.start()

    def wait_for_progress() -> None:
        marks = [len(bank.committed) + BETWEEN_KILLS for bank in banks]

        def is_there() -> bool:
            assert all(bank.is_alive() for bank in banks), [bank.fault for bank in banks]
            return all(len(bank.committed) >= mark for bank, mark in zip(banks, marks, strict=True))

        wait_until(is_there, timeout_s=WAIT_S, what="all banks go on")

    for kill in kills:
        wait_for_progress()
        kill()
    wait_for_progress()
    for bank in banks:
        bank.stop()
    audit(bootstrap, banks)
    return banks


def in_words(banks: list[Bank]) -> str:
    return (
        f"{sum(len(bank.committed) for bank in banks)} committed,"
        f" {sum(len(bank.aborted) for bank in banks)} aborted,"
        f" {sum(len(bank.unknown) for bank in banks)} unknown"
    )


@pytest.mark.slow
@pytest.mark.parametrize("process", ["router-0", "worker-0"])
def test_nothing_is_torn_or_stuck_when_a_process_is_killed(
    process: str, start_node: StartNode, report: Report
) -> None:
    node = start_node({"workers": "2"})
    node.create_topic(TOPIC, partitions=PARTITIONS)
    node.create_topic(SOURCE)

    def kill() -> None:
        node.kill_process(process)
        node.wait_until_ready()

    # When a router dies, librdkafka may wait for ever to send offsets: it misses that it is
    # connected to the group's coordinator again until the state of another connection changes.
    banks = work_through(
        node.bootstrap_servers, [kill] * KILLS, commits_offsets=process != "router-0"
    )
    report(in_words(banks))


@pytest.mark.slow
def test_nothing_is_torn_or_stuck_when_nodes_are_killed(tmp_path: Path, report: Report) -> None:
    with running_cluster(tmp_path) as nodes:
        for topic, partitions in ((TOPIC, PARTITIONS), (SOURCE, 1)):
            nodes[0].create_topic(
                topic, partitions=partitions, configs={"min.insync.replicas": "2"}
            )
            nodes.wait_until_whole(topic)

        def kill(node_id: int) -> None:
            nodes[node_id].kill()
            nodes[node_id].start()
            nodes.wait_until_whole(TOPIC)

        kills: list[Callable[[], None]] = [partial(kill, node_id) for node_id in range(KILLS)]
        report(in_words(work_through(nodes.bootstrap_servers, kills)))
