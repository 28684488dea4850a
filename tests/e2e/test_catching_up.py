"""Consumers of several libraries read logs from their start, while a leader is killed."""

import asyncio
import gc
import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from time import monotonic
from typing import TypeAlias

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from tests.e2e.cluster import Cluster, running_cluster

RECORDS = 30_000
"""Of a topic."""
TOPICS = {"one": 1, "six": 6}
"""Their partitions. Each node leads two of the six."""
RECORD_BYTES = 1_000
FETCH_BYTES = 128 << 10
"""Many fetches, and few records that a client has when the leader is killed."""
DEADLINE_S = 120

Records: TypeAlias = list[tuple[int | None, int | None, bytes | None]]
"""With their partitions and offsets."""


def value(partition: int, offset: int) -> bytes:
    """Of the record there: no two have the same bytes at the same place."""
    place = partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
    return (hashlib.sha256(place).digest() * 32)[:RECORD_BYTES]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with the topics."""
    with running_cluster(tmp_path_factory.mktemp("nodes")) as nodes:
        for topic, partitions in TOPICS.items():
            replicas = [[at % 3, (at + 1) % 3, (at + 2) % 3] for at in range(partitions)]
            nodes.create_at(topic, replicas, {"min.insync.replicas": "2"})
        producer = Producer(
            {
                "bootstrap.servers": nodes.bootstrap_servers,
                "batch.size": FETCH_BYTES // 2,
                "linger.ms": 20,
                "enable.idempotence": True,
                "queue.buffering.max.messages": RECORDS,
            }
        )
        for topic, partitions in TOPICS.items():
            for number in range(RECORDS):
                offset, partition = divmod(number, partitions)
                producer.produce(topic, value(partition, offset), partition=partition)
            assert producer.flush(DEADLINE_S) == 0
        yield nodes


def with_librdkafka(
    bootstrap: str, topic: str, isolation_level: str
) -> Generator[Records, None, None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.max.messages.kbytes": 1_000,
            "fetch.queue.backoff.ms": 1,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(TOPICS[topic])])
    try:
        while True:
            messages = consumer.consume(500, 1.0)
            assert not any(message.error() for message in messages)
            yield [(each.partition(), each.offset(), each.value()) for each in messages]
    finally:
        consumer.close()


def with_kafka_python(
    bootstrap: str, topic: str, isolation_level: str
) -> Generator[Records, None, None]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation_level,
        max_partition_fetch_bytes=FETCH_BYTES,
        enable_auto_commit=False,
    )
    consumer.assign([PythonPartition(topic, partition) for partition in range(TOPICS[topic])])
    consumer.seek_to_beginning()
    try:
        while True:
            found = consumer.poll(timeout_ms=1_000).values()
            yield [(each.partition, each.offset, each.value) for batch in found for each in batch]
    finally:
        consumer.close()


def with_aiokafka(
    bootstrap: str, topic: str, isolation_level: str
) -> Generator[Records, None, None]:
    async def begin() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation_level,
            max_partition_fetch_bytes=FETCH_BYTES,
            enable_auto_commit=False,
        )
        await consumer.start()
        partitions = [AsyncPartition(topic, partition) for partition in range(TOPICS[topic])]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        return consumer

    with asyncio.Runner() as runner:
        consumer = runner.run(begin())
        try:
            while True:
                found = runner.run(consumer.getmany(timeout_ms=1_000))
                yield [
                    (each.partition, each.offset, each.value)
                    for batch in found.values()
                    for each in batch
                ]
        finally:
            runner.run(consumer.stop())


@pytest.mark.filterwarnings(
    "ignore:unclosed .*socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("read", [with_librdkafka, with_kafka_python, with_aiokafka])
def test_a_log_is_read_in_order_while_its_leader_is_killed(
    nodes: Cluster,
    read: Callable[[str, str, str], Generator[Records, None, None]],
    isolation_level: str,
    topic: str,
) -> None:
    killed = nodes.leader_of(topic, at=nodes.any())
    waiting = [(RECORDS // 3, nodes[killed].kill), (2 * RECORDS // 3, lambda: nodes.start(killed))]
    number, until_s = 0, monotonic() + DEADLINE_S
    ends = [0] * TOPICS[topic]
    with closing(read(nodes.bootstrap_servers, topic, isolation_level)) as reading:
        while number < RECORDS:
            assert monotonic() < until_s, f"{number} records were read"
            for partition, offset, found in next(reading):
                assert partition is not None
                assert offset == ends[partition]
                assert found == value(partition, offset)
                ends[partition] += 1
                number += 1
            if waiting and number >= waiting[0][0]:
                waiting.pop(0)[1]()
    assert not waiting
    assert ends == [RECORDS // len(ends)] * len(ends)
    # kafka-python leaves sockets open when a connection fails: collected while that is ignored.
    del reading
    gc.collect()
    nodes.wait_until_whole(topic)
