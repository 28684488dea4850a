"""Real clients that write or read one record at a time, on three nodes: the worker of their
partition serves them. Each record is where its acknowledgement says, and whoever follows the
partition gets each once, also when that worker is killed.
"""

import asyncio
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.request import urlopen

import kafka
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from odradek.node.supervisor import STATE_NAME, NodeState
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.support.waiting import wait_until

RECORDS: Final = 200
BULK_RECORDS_MAX: Final = 30_000
"""Of 10 KB."""
_SAMPLE: Final = re.compile(r"^odradek_connections_handed_over\S* ([0-9.]+)$", re.MULTILINE)


class Writer(ABC):
    """A client that writes to partition 0 of one topic."""

    def __init__(self, nodes: Cluster, topic: str) -> None:
        self.bootstrap = nodes.bootstrap_servers
        self.topic = topic

    @abstractmethod
    def write(self, number: int) -> int:
        """Write a record, wait for its acknowledgement, and return its offset."""

    def close(self) -> None:  # noqa: B027  # librdkafka needs none
        """End."""


class LibrdkafkaWriter(Writer):
    def __init__(self, nodes: Cluster, topic: str, *, idempotent: bool = True) -> None:
        super().__init__(nodes, topic)
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def write(self, number: int) -> int:
        offsets: list[int] = []

        def on_delivery(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[attr-defined]  # a Message

        value = b"%d" % number
        self._producer.produce(self.topic, value, partition=0, on_delivery=on_delivery)
        self._producer.flush(WAIT_S)
        (offset,) = offsets
        return offset


class PlainLibrdkafkaWriter(LibrdkafkaWriter):
    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic, idempotent=False)


class KafkaPythonWriter(Writer):
    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic)
        self._producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")

    def write(self, number: int) -> int:
        sent = self._producer.send(self.topic, b"%d" % number, partition=0)
        return int(sent.get(WAIT_S).offset)

    def close(self) -> None:
        self._producer.close()


class AiokafkaWriter(Writer):
    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic)
        self._loop = asyncio.new_event_loop()
        self._producer = self._loop.run_until_complete(self._start())

    async def _start(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        await producer.start()
        return producer

    def write(self, number: int) -> int:
        sent = self._producer.send_and_wait(self.topic, b"%d" % number, partition=0)
        return int(self._loop.run_until_complete(asyncio.wait_for(sent, WAIT_S)).offset)

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


class Follower(ABC):
    """A client that follows partition 0 of one topic, which is empty."""

    may_lose_brokers = True

    def __init__(self, nodes: Cluster, topic: str) -> None:
        self.bootstrap = nodes.bootstrap_servers
        self.topic = topic

    @abstractmethod
    def take(self) -> dict[int, int]:
        """Numbers that are there now, by offset; waits a moment if there are none."""

    @abstractmethod
    def close(self) -> None:
        """End."""


class LibrdkafkaFollower(Follower):
    isolation_level = "read_committed"

    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic)
        configs = {"group.id": "unused", "isolation.level": self.isolation_level, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": self.bootstrap, **configs})
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def take(self) -> dict[int, int]:
        polled = self._consumer.poll(0.2)
        if polled is None or polled.error() is not None:
            return {}
        return {polled.offset() or 0: int(polled.value() or b"")}

    def close(self) -> None:
        self._consumer.close()


class UncommittedLibrdkafkaFollower(LibrdkafkaFollower):
    isolation_level = "read_uncommitted"


class KafkaPythonFollower(Follower):
    """With a fetch session. It leaves sockets open when it cannot connect."""

    may_lose_brokers = False

    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic)
        self._consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        partition = kafka.TopicPartition(topic, 0)
        self._consumer.assign([partition])
        self._consumer.seek(partition, 0)

    def take(self) -> dict[int, int]:
        polled = self._consumer.poll(200)
        return {each.offset: int(each.value) for batch in polled.values() for each in batch}

    def close(self) -> None:
        self._consumer.close()


class AiokafkaFollower(Follower):
    def __init__(self, nodes: Cluster, topic: str) -> None:
        super().__init__(nodes, topic)
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._start())

    async def _start(self) -> AIOKafkaConsumer:
        options = {"auto_offset_reset": "earliest", "request_timeout_ms": 5_000}
        consumer = AIOKafkaConsumer(self.topic, bootstrap_servers=self.bootstrap, **options)
        await consumer.start()
        return consumer

    def take(self) -> dict[int, int]:
        polled = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=200))
        return {each.offset: int(each.value) for batch in polled.values() for each in batch}

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"http.listen": "127.0.0.1:0"}
    with running_cluster(tmp_path_factory.mktemp("handover"), settings=settings) as nodes:
        yield nodes


def handed_over(nodes: Cluster, node_id: int) -> float:
    """The connections that the worker of a node has, by its /metrics."""
    state = msgspec.json.decode((nodes[node_id].data / STATE_NAME).read_bytes(), type=NodeState)
    with urlopen(f"http://{state.http}/metrics") as answer:
        (value,) = _SAMPLE.findall(answer.read().decode())
    return float(value)


def read(nodes: Cluster, topic: str, last_offset: int) -> dict[int, int]:
    """The numbers in a topic up to this offset, by offset."""
    configs = {"bootstrap.servers": nodes.bootstrap_servers, "group.id": "unused", "log_level": 0}
    consumer = Consumer(configs)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, int] = {}

    def has_all() -> bool:
        for message in consumer.consume(1_000, timeout=0.5):
            assert message.error() is None, message.error()
            found[message.offset() or 0] = int(message.value() or b"")
        return last_offset in found

    wait_until(has_all, timeout_s=WAIT_S, what="the log is read")
    consumer.close()
    return found


def committed(nodes: Cluster, topic: str, count: int) -> list[int]:
    """The numbers in a topic that transactions have committed: at least so many."""
    configs = {
        "bootstrap.servers": nodes.bootstrap_servers,
        "group.id": "unused",
        "isolation.level": "read_committed",
        "log_level": 0,
    }
    consumer = Consumer(configs)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def has_all() -> bool:
        for message in consumer.consume(1_000, timeout=0.5):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
        return len(found) >= count

    wait_until(has_all, timeout_s=WAIT_S, what="what was committed is read")
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [LibrdkafkaWriter, PlainLibrdkafkaWriter, KafkaPythonWriter, AiokafkaWriter]
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_records_are_where_their_acknowledgements_say(
    nodes: Cluster, make: Callable[[Cluster, str], Writer], replicas: int
) -> None:
    topic = f"{make.__name__}-{replicas}"
    nodes.create_at(topic, [[0, 1, 2][:replicas]])
    if replicas == 3:
        nodes.wait_until_whole(topic)
    leader = nodes[nodes.leader_of(topic)]
    writer = make(nodes, topic)
    try:
        positions = {writer.write(number): number for number in range(RECORDS)}
        assert handed_over(nodes, nodes.leader_of(topic)) == 1
        leader.kill_worker()
        for number in range(RECORDS, 2 * RECORDS):
            positions[writer.write(number)] = number
    finally:
        writer.close()
    assert len(positions) == 2 * RECORDS
    assert list(positions) == sorted(positions)

    log = read(nodes, topic, max(positions))
    assert {offset: log[offset] for offset in positions} == positions


class BulkWriter(ABC):
    """A client that sends batches of half a megabyte, one behind the other, to partition 0."""

    batch_bytes = 500_000
    acked: dict[int, int]
    """Numbers by offset."""

    @abstractmethod
    def send(self, number: int) -> None:
        """Send a record, later if too many are under way."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until all are acknowledged."""


class LibrdkafkaBulkWriter(BulkWriter):
    is_idempotent = True

    def __init__(self, nodes: Cluster, topic: str) -> None:
        self.topic = topic
        self.acked = {}
        self._producer = Producer(
            {
                "bootstrap.servers": nodes.bootstrap_servers,
                "enable.idempotence": self.is_idempotent,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": self.batch_bytes,
                "queue.buffering.max.messages": 1_000,
                "log_level": 0,
            }
        )

    def send(self, number: int) -> None:
        def on_delivery(error: object, message: object) -> None:
            assert error is None, error
            self.acked[message.offset()] = number  # type: ignore[attr-defined]  # a Message

        while True:
            try:
                self._producer.produce(
                    self.topic, padded(number), partition=0, on_delivery=on_delivery
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0


class PlainLibrdkafkaBulkWriter(LibrdkafkaBulkWriter):
    """It has no limit of requests in flight."""

    is_idempotent = False


class KafkaPythonBulkWriter(BulkWriter):
    def __init__(self, nodes: Cluster, topic: str) -> None:
        self.topic = topic
        self.acked = {}
        self._sent: list[tuple[int, Any]] = []
        self._producer = KafkaProducer(
            bootstrap_servers=nodes.bootstrap_servers,
            acks="all",
            linger_ms=5,
            batch_size=self.batch_bytes,
            max_request_size=2 * self.batch_bytes,
        )

    def send(self, number: int) -> None:
        self._sent.append((number, self._producer.send(self.topic, padded(number), partition=0)))

    def flush(self) -> None:
        self._producer.flush(WAIT_S)
        self.acked |= {sent.get(WAIT_S).offset: number for number, sent in self._sent}
        self._producer.close()


def padded(number: int) -> bytes:
    """A value that `int` reads."""
    return b"%d" % number + b" " * 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [LibrdkafkaBulkWriter, PlainLibrdkafkaBulkWriter, KafkaPythonBulkWriter]
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_large_batches_are_where_their_acknowledgements_say(
    nodes: Cluster, make: Callable[[Cluster, str], BulkWriter], replicas: int
) -> None:
    """While they come, the worker of the partition is killed."""
    topic = f"{make.__name__}-{replicas}"
    nodes.create_at(topic, [[0, 1, 2][:replicas]])
    if replicas == 3:
        nodes.wait_until_whole(topic)
    leader = nodes.leader_of(topic)
    writer = make(nodes, topic)
    numbers = iter(range(BULK_RECORDS_MAX))

    def is_handed_over() -> bool:
        for number in itertools.islice(numbers, 100):
            writer.send(number)
        return handed_over(nodes, leader) == 1

    try:
        wait_until(is_handed_over, timeout_s=WAIT_S, what="the worker has the connection")
        nodes[leader].kill_worker()
        for number in itertools.islice(numbers, 3_000):
            writer.send(number)
    finally:
        writer.flush()
    assert sorted(writer.acked.values()) == list(range(next(numbers)))
    assert read(nodes, topic, max(writer.acked)).items() >= writer.acked.items()


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
def test_transactions_are_whole_also_when_the_worker_is_killed_in_one(
    nodes: Cluster, replicas: int
) -> None:
    """The worker serves the middle of each transaction, the router its first batch and its end."""
    topic = f"transactions-{replicas}"
    nodes.create_at(topic, [[1, 2, 0][:replicas]])
    if replicas == 3:
        nodes.wait_until_whole(topic)
    leader = nodes.leader_of(topic)
    configs = {"transactional.id": topic, "linger.ms": 0, "log_level": 0}
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, **configs})
    producer.init_transactions(WAIT_S)
    expected: list[int] = []
    served_by_worker = 0.0
    for transaction in range(9):
        producer.begin_transaction()
        numbers = range(RECORDS * transaction, RECORDS * (transaction + 1))
        for number in numbers:
            if transaction == 5 and number == numbers[RECORDS // 2]:
                nodes[leader].kill_worker()
            producer.produce(topic, b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0
        served_by_worker += handed_over(nodes, leader)
        if transaction in (4, 8):
            # A worker that is busy for a moment hands the connection back until the next one.
            assert served_by_worker >= 1
            served_by_worker = 0.0
        if transaction % 3 == 1:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            expected += numbers
    assert committed(nodes, topic, len(expected)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [LibrdkafkaFollower, UncommittedLibrdkafkaFollower, KafkaPythonFollower, AiokafkaFollower],
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_who_follows_a_partition_gets_each_record_once(
    nodes: Cluster, make: Callable[[Cluster, str], Follower], replicas: int
) -> None:
    """Record by record, so that each fetch finds one; then the worker of the partition is killed;
    then it is moved to another leader."""
    topic = f"{make.__name__}-{replicas}"
    nodes.create_at(topic, [[2, 0, 1][:replicas]])
    if replicas == 3:
        nodes.wait_until_whole(topic)
    writer = LibrdkafkaWriter(nodes, topic)
    follower = make(nodes, topic)
    written: dict[int, int] = {}
    read_here: dict[int, int] = {}

    def takes_all() -> bool:
        taken = follower.take()
        assert not taken.keys() & read_here.keys(), "a record came twice"
        read_here.update(taken)
        return read_here.keys() >= written.keys()

    def follow(first: int) -> None:
        for number in range(first, first + RECORDS):
            written[writer.write(number)] = number
            wait_until(takes_all, timeout_s=WAIT_S, what="the record")

    try:
        leader = nodes.leader_of(topic)
        follow(0)
        # The writer's connection, and the follower's.
        assert handed_over(nodes, leader) >= 2
        nodes[leader].kill_worker()
        follow(RECORDS)
        assert handed_over(nodes, leader) >= 2
        if replicas == 3 and follower.may_lose_brokers:
            nodes[leader].kill()
            follow(2 * RECORDS)
            nodes.start(leader)
            nodes.wait_until_whole(topic)
            follow(3 * RECORDS)
    finally:
        writer.close()
        follower.close()
    assert read_here == written
    assert list(read_here) == sorted(read_here)
