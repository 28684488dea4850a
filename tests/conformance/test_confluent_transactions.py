"""confluent-kafka (librdkafka): transactions, and offsets in them."""

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0


def producer_of(cluster: DialogueCluster, transactional_id: str, **settings: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, *values: str) -> None:
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def read(
    cluster: DialogueCluster, topic: str, count: int, *, isolation: str = "read_committed"
) -> list[str]:
    """The first values of the topic's partition, up to its end for this isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    try:
        while len(values) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, values
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                values.append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF and len(values) >= count:
                break
    finally:
        consumer.close()
    return values


def test_committed_records_are_read_and_aborted_ones_are_not(
    cluster: DialogueCluster, topic: str
) -> None:
    producer = producer_of(cluster, unique("tx"))
    for round_, is_commit in enumerate((True, False, True)):
        producer.begin_transaction()
        write(producer, topic, f"{round_}a", f"{round_}b")
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    assert read(cluster, topic, 4) == ["0a", "0b", "2a", "2b"]
    everything = read(cluster, topic, 6, isolation="read_uncommitted")
    assert everything == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_an_open_transaction_holds_back_those_who_read_what_is_committed(
    cluster: DialogueCluster, topic: str
) -> None:
    first, second = producer_of(cluster, unique("tx")), producer_of(cluster, unique("tx"))
    first.begin_transaction()
    write(first, topic, "held")
    second.begin_transaction()
    write(second, topic, "behind")
    second.commit_transaction(TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition(topic, 0)

    def end(isolation: IsolationLevel) -> int:
        asked = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=isolation)
        return int(asked[partition].result(TIMEOUT_S).offset)

    # A commit is decided when it is answered; its marker is under way.
    wait_until(lambda: end(IsolationLevel.READ_UNCOMMITTED) == 3, what="the marker is there")
    assert end(IsolationLevel.READ_COMMITTED) == 0
    first.abort_transaction(TIMEOUT_S)
    wait_until(lambda: end(IsolationLevel.READ_COMMITTED) == 4)
    assert read(cluster, topic, 1) == ["behind"]


def test_a_successor_fences_a_producer_and_aborts_what_it_left(
    cluster: DialogueCluster, topic: str
) -> None:
    transactional_id = unique("tx")
    zombie = producer_of(cluster, transactional_id)
    zombie.begin_transaction()
    write(zombie, topic, "lost")
    successor = producer_of(cluster, transactional_id)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    successor.begin_transaction()
    write(successor, topic, "kept")
    successor.commit_transaction(TIMEOUT_S)
    assert read(cluster, topic, 1) == ["kept"]


@pytest.fixture
def source(cluster: DialogueCluster) -> str:
    """A topic with four records."""
    topic = cluster.new_topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    write(producer, topic, *"abcd")
    return topic


def test_offsets_are_committed_with_the_records_that_were_made_of_them(
    cluster: DialogueCluster, topic: str, source: str, group: str
) -> None:
    """Read, transform, write: once aborted and once committed."""
    producer = producer_of(cluster, unique("tx"))
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    partition = TopicPartition(source, 0)

    def committed() -> int:
        [found] = consumer.committed([partition], TIMEOUT_S)
        return int(found.offset)

    try:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        before = committed()
        for is_commit in (False, True):
            producer.begin_transaction()
            write(producer, topic, "made")
            producer.send_offsets_to_transaction(
                [TopicPartition(source, 0, 3)], consumer.consumer_group_metadata(), TIMEOUT_S
            )
            if is_commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
                assert committed() == before
        assert committed() == 3
        assert read(cluster, topic, 1) == ["made"]
    finally:
        consumer.close()


def test_a_transaction_whose_time_is_over_is_aborted(cluster: DialogueCluster, topic: str) -> None:
    slow = producer_of(cluster, unique("tx"), transaction_timeout_ms=1_000)
    slow.begin_transaction()
    write(slow, topic, "late")
    quick = producer_of(cluster, unique("tx"))
    quick.begin_transaction()
    write(quick, topic, "in time")
    quick.commit_transaction(TIMEOUT_S)
    # Readable as soon as the one before it has been aborted.
    assert read(cluster, topic, 1) == ["in time"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(TIMEOUT_S)
