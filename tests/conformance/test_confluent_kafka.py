"""confluent-kafka (librdkafka): producing and consuming."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import TypedDict

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from tests.conformance.dialogue import DialogueCluster, now_ms, unique
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0

NewConsumer = Callable[..., Consumer]


class Record(TypedDict, total=False):
    """What a producer can be told of a record."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    timestamp: int
    partition: int


def value_of(message: Message | None) -> bytes:
    """The value of a record that has one."""
    assert message is not None
    value = message.value()
    assert isinstance(value, bytes)
    return value


def error_of(message: Message | None) -> int:
    """The code of an error that a consumer was given in place of a record."""
    assert message is not None
    error = message.error()
    assert error is not None
    code: int = error.code()
    return code


def new_producer(cluster: DialogueCluster, **settings: object) -> Producer:
    """A producer that fails instead of hanging."""
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "message.timeout.ms": int(TIMEOUT_S * 1000),
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )


def send_all(producer: Producer, topic: str, records: Iterable[Record]) -> list[Message]:
    """Produce records and wait for all of them; the delivery reports, of which none is an error."""
    reports: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    count = 0
    for record in records:
        while True:
            try:
                producer.produce(topic, on_delivery=on_delivery, **record)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(TIMEOUT_S) == 0
    assert len(reports) == count
    return reports


@pytest.fixture
def new_consumer(cluster: DialogueCluster) -> Iterator[NewConsumer]:
    """Makes consumers that are closed after the test; keys with `_` for dots."""
    with ExitStack() as stack:

        def make(group: str | None = None, **settings: object) -> Consumer:
            consumer = Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "group.id": group or unique("group"),
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    **{key.replace("_", "."): value for key, value in settings.items()},
                }
            )
            stack.callback(consumer.close)
            return consumer

        yield make


def take(consumer: Consumer, count: int) -> list[Message]:
    """That many records, within the time limit."""
    taken: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records"
        for message in consumer.consume(count - len(taken), timeout=0.5):
            assert message.error() is None, message.error()
            taken.append(message)
    return taken


def assigned(topic: str, *offsets: int) -> list[TopicPartition]:
    """Partitions from 0 on, each to begin at its offset."""
    return [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]


def test_a_record_comes_back_whole(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer
) -> None:
    """Keys, headers with doubles and nulls, timestamps, null and empty values."""
    now = now_ms()
    records: list[Record] = [
        {
            "key": b"k",
            "value": b"v",
            "headers": [("a", b"1"), ("a", b"2"), ("n", None), ("e", b"")],
        },
        {"key": None, "value": b"keyless", "headers": []},
        {"key": b"tombstone", "value": None, "headers": []},
        {"key": b"", "value": b"", "headers": []},
    ]
    stamped = [Record(**record, timestamp=now + index) for index, record in enumerate(records)]
    reports = send_all(new_producer(cluster), topic, stamped)
    assert {report.offset() for report in reports} == {0, 1, 2, 3}
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    for index, message in enumerate(take(consumer, 4)):
        expected = records[index]
        assert message.offset() == index
        assert (message.key(), message.value()) == (expected["key"], expected["value"])
        assert (message.headers() or []) == expected["headers"]
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, now + index)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer, codec: str
) -> None:
    producer = new_producer(cluster, compression_type=codec, linger_ms=50)
    values = [b"%d " % number * 50 for number in range(500)]
    send_all(producer, topic, (Record(value=value) for value in values))
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    assert [message.value() for message in take(consumer, 500)] == values


@pytest.mark.parametrize(
    ("acks", "is_idempotent"), [("0", False), ("1", False), ("all", False), ("all", True)]
)
def test_every_kind_of_acknowledgement(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer, acks: str, is_idempotent: bool
) -> None:
    producer = new_producer(cluster, acks=acks, enable_idempotence=is_idempotent, linger_ms=1)
    values = [b"%d" % number for number in range(1000)]
    reports = send_all(producer, topic, (Record(value=value) for value in values))
    if acks != "0":
        assert [report.offset() for report in reports] == list(range(1000))
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    assert [message.value() for message in take(consumer, 1000)] == values


def test_large_records_pass_up_to_the_limit(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer
) -> None:
    """Kafka's default: max.message.bytes=1048588, a batch header more than librdkafka's limit."""
    size = 1_048_588 - 61 - 30
    producer = new_producer(cluster, message_max_bytes=5_000_000)
    send_all(producer, topic, [Record(value=bytes([index]) * size) for index in range(5)])
    failures: list[KafkaError | None] = []
    producer.produce(topic, b"x" * (size + 100), on_delivery=lambda e, _: failures.append(e))
    assert producer.flush(TIMEOUT_S) == 0
    assert [error and error.code() for error in failures] == [KafkaError.MSG_SIZE_TOO_LARGE]
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    assert [value_of(message)[:1] for message in take(consumer, 5)] == [
        bytes([index]) for index in range(5)
    ]


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random", "fnv1a"])
def test_keys_stay_in_their_partition_over_many_partitions(
    cluster: DialogueCluster, new_consumer: NewConsumer, partitioner: str
) -> None:
    topic = cluster.new_topic(24)
    producer = new_producer(cluster, partitioner=partitioner, linger_ms=5)
    records = [Record(key=b"%d" % (number % 100), value=b"%d" % number) for number in range(2000)]
    send_all(producer, topic, records)
    consumer = new_consumer()
    consumer.assign(assigned(topic, *[OFFSET_BEGINNING] * 24))
    partitions: dict[object, set[object]] = defaultdict(set)
    last: dict[object, int] = defaultdict(lambda: -1)
    for message in take(consumer, 2000):
        partitions[message.key()].add(message.partition())
        number = int(value_of(message))
        assert number > last[message.key()], "records of one key keep their order"
        last[message.key()] = number
    assert {len(found) for found in partitions.values()} == {1}
    assert len(set.union(*partitions.values())) > 12


def test_a_producer_may_choose_partition_and_timestamp(
    cluster: DialogueCluster, new_consumer: NewConsumer
) -> None:
    topic = cluster.new_topic_of_any_age(5)
    records: list[Record] = [
        {"value": b"%d" % index, "partition": index, "timestamp": 1000 * index}
        for index in range(1, 5)
    ]
    reports = send_all(new_producer(cluster), topic, records)
    assert {report.partition(): report.timestamp()[1] for report in reports} == {
        index: 1000 * index for index in range(1, 5)
    }


def test_append_time_reaches_producer_and_consumer(
    cluster: DialogueCluster, new_consumer: NewConsumer
) -> None:
    topic = cluster.new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    (report,) = send_all(new_producer(cluster), topic, [{"value": b"a", "timestamp": 5}])
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    (message,) = take(consumer, 1)
    assert message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
    assert before <= message.timestamp()[1] <= now_ms()
    assert report.timestamp() == message.timestamp()


def test_a_consumer_seeks_and_pauses(cluster: DialogueCluster, new_consumer: NewConsumer) -> None:
    topic = cluster.new_topic(2)
    producer = new_producer(cluster)
    for partition in range(2):
        records: list[Record] = [
            {"value": b"%d" % number, "partition": partition} for number in range(100)
        ]
        send_all(producer, topic, records)
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING, OFFSET_BEGINNING))
    take(consumer, 200)
    consumer.seek(TopicPartition(topic, 0, 90))
    assert [message.offset() for message in take(consumer, 10)] == list(range(90, 100))
    consumer.pause([TopicPartition(topic, 1)])
    send_all(
        producer, topic, [{"value": b"new", "partition": 1}, {"value": b"new", "partition": 0}]
    )
    (message,) = take(consumer, 1)
    assert message.partition() == 0
    assert consumer.poll(0.2) is None
    consumer.resume([TopicPartition(topic, 1)])
    assert take(consumer, 1)[0].partition() == 1


def test_a_consumer_starts_at_the_end_if_it_is_told_to(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer
) -> None:
    producer = new_producer(cluster)
    send_all(producer, topic, [{"value": b"old"}])
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_END))
    # The end is looked up in the background, so the first new records may still be too early.
    wait_until(
        lambda: has_position(consumer, topic, producer),
        timeout_s=TIMEOUT_S,
        what="the consumer reads what is new",
    )


def has_position(consumer: Consumer, topic: str, producer: Producer) -> bool:
    """Whether a fresh record arrives; an old one must never do."""
    send_all(producer, topic, [{"value": b"new"}])
    message = consumer.poll(1)
    assert message is None or message.value() == b"new"
    return message is not None


def test_offsets_are_found_by_time(cluster: DialogueCluster, new_consumer: NewConsumer) -> None:
    topic = cluster.new_topic_of_any_age(2)
    producer = new_producer(cluster, compression_type="lz4", linger_ms=20)
    records: list[Record] = [
        {"value": b"%d" % number, "partition": 0, "timestamp": 10_000 + number * 10}
        for number in range(100)
    ]
    send_all(producer, topic, records)
    consumer = new_consumer()
    for asked, expected in (
        (0, 0),
        (10_000, 0),
        (10_001, 1),
        (10_555, 56),
        (10_990, 99),
        (10_991, -1),
    ):
        found = consumer.offsets_for_times(
            [TopicPartition(topic, partition, asked) for partition in range(2)], timeout=TIMEOUT_S
        )
        assert (
            [each.offset for each in found] == [expected, OFFSET_END]
            if expected >= 0
            else [
                OFFSET_END,
                OFFSET_END,
            ]
        )
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 100)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 1), timeout=TIMEOUT_S) == (0, 0)


def test_producing_creates_a_topic(cluster: DialogueCluster, new_consumer: NewConsumer) -> None:
    """auto.create.topics.enable, which is on by default."""
    topic = unique("created-by-producing")
    send_all(new_producer(cluster), topic, [{"value": b"first"}])
    consumer = new_consumer()
    consumer.assign(assigned(topic, OFFSET_BEGINNING))
    assert take(consumer, 1)[0].value() == b"first"


def test_a_topic_that_may_not_be_created_is_unknown(
    cluster: DialogueCluster, new_consumer: NewConsumer
) -> None:
    consumer = new_consumer(allow_auto_create_topics=False)
    consumer.subscribe([unique("nowhere")])
    message = wait_until(lambda: consumer.poll(0.2), timeout_s=TIMEOUT_S, what="an error")
    assert error_of(message) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_an_offset_out_of_range_is_an_error_if_there_is_no_policy(
    cluster: DialogueCluster, topic: str, new_consumer: NewConsumer
) -> None:
    consumer = new_consumer(auto_offset_reset="error")
    consumer.assign(assigned(topic, 1234))
    message = wait_until(lambda: consumer.poll(0.2), timeout_s=TIMEOUT_S, what="an error")
    assert error_of(message) == KafkaError._AUTO_OFFSET_RESET


def test_the_metadata_names_brokers_and_partitions(cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(7)
    metadata = new_producer(cluster).list_topics(timeout=TIMEOUT_S)
    assert metadata.cluster_id
    assert metadata.controller_id in metadata.brokers
    assert sorted(metadata.topics[topic].partitions) == list(range(7))


def test_ten_producers_at_once_lose_nothing(
    cluster: DialogueCluster, new_consumer: NewConsumer
) -> None:
    topic = cluster.new_topic(3)
    producers = [new_producer(cluster, enable_idempotence=True, linger_ms=1) for _ in range(10)]
    for number in range(3000):
        producers[number % 10].produce(topic, b"%d" % number, b"%d" % (number % 10))
    assert [producer.flush(TIMEOUT_S) for producer in producers] == [0] * 10
    consumer = new_consumer()
    consumer.assign(assigned(topic, *[OFFSET_BEGINNING] * 3))
    taken = take(consumer, 3000)
    assert Counter(int(value_of(message)) for message in taken) == Counter(range(3000))
    by_key = defaultdict(list)
    for message in taken:
        by_key[message.key()].append(int(value_of(message)))
    assert all(one < other for numbers in by_key.values() for one, other in pairwise(numbers))
