"""Consumers of several libraries read a log from its start, while its leader is killed."""

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

TOPIC = "events"
RECORDS = 30_000
RECORD_BYTES = 1_000
FETCH_BYTES = 128 << 10
"""Many fetches, and few records that a client has when the leader is killed."""
DEADLINE_S = 120

Records: TypeAlias = list[tuple[int | None, bytes | None]]
"""With their offsets."""


def value(number: int) -> bytes:
    """Of the record at this offset: no two have the same bytes at the same place."""
    return (hashlib.sha256(number.to_bytes(8, "big")).digest() * 32)[:RECORD_BYTES]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with a log of one partition."""
    with running_cluster(tmp_path_factory.mktemp("nodes")) as nodes:
        nodes.create_at(TOPIC, [[0, 1, 2]], {"min.insync.replicas": "2"})
        producer = Producer(
            {
                "bootstrap.servers": nodes.bootstrap_servers,
                "batch.size": FETCH_BYTES // 2,
                "linger.ms": 20,
                "enable.idempotence": True,
                "queue.buffering.max.messages": RECORDS,
            }
        )
        for number in range(RECORDS):
            producer.produce(TOPIC, value(number), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        yield nodes


def with_librdkafka(bootstrap: str, isolation_level: str) -> Generator[Records, None, None]:
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
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        while True:
            messages = consumer.consume(500, 1.0)
            assert not any(message.error() for message in messages)
            yield [(message.offset(), message.value()) for message in messages]
    finally:
        consumer.close()


def with_kafka_python(bootstrap: str, isolation_level: str) -> Generator[Records, None, None]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation_level,
        max_partition_fetch_bytes=FETCH_BYTES,
        enable_auto_commit=False,
    )
    partition = PythonPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    try:
        while True:
            found = consumer.poll(timeout_ms=1_000).get(partition, [])
            yield [(record.offset, record.value) for record in found]
    finally:
        consumer.close()


def with_aiokafka(bootstrap: str, isolation_level: str) -> Generator[Records, None, None]:
    async def begin() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation_level,
            max_partition_fetch_bytes=FETCH_BYTES,
            enable_auto_commit=False,
        )
        await consumer.start()
        partition = AsyncPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return consumer

    with asyncio.Runner() as runner:
        consumer = runner.run(begin())
        try:
            while True:
                found = runner.run(consumer.getmany(timeout_ms=1_000))
                yield [(each.offset, each.value) for batch in found.values() for each in batch]
        finally:
            runner.run(consumer.stop())


@pytest.mark.filterwarnings(
    "ignore:unclosed .*socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("read", [with_librdkafka, with_kafka_python, with_aiokafka])
def test_a_log_is_read_in_order_while_its_leader_is_killed(
    nodes: Cluster,
    read: Callable[[str, str], Generator[Records, None, None]],
    isolation_level: str,
) -> None:
    killed = nodes.leader_of(TOPIC, at=nodes.any())
    waiting = [(RECORDS // 3, nodes[killed].kill), (2 * RECORDS // 3, lambda: nodes.start(killed))]
    number, until_s = 0, monotonic() + DEADLINE_S
    with closing(read(nodes.bootstrap_servers, isolation_level)) as reading:
        while number < RECORDS:
            assert monotonic() < until_s, f"{number} records were read"
            for offset, found in next(reading):
                assert offset == number
                assert found == value(number)
                number += 1
            if waiting and number >= waiting[0][0]:
                waiting.pop(0)[1]()
    assert not waiting
    # kafka-python leaves sockets open when a connection fails: collected while that is ignored.
    del reading
    gc.collect()
    nodes.wait_until_whole(TOPIC)
