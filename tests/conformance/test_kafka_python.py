"""kafka-python: a client written from the protocol alone, which can pretend to be of any age."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove
from kafka.errors import (
    InvalidReplicationAssignmentError,
    InvalidUpdateVersionError,
    MessageSizeTooLargeError,
    NoReassignmentInProgressError,
    TopicAlreadyExistsError,
)
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from kafka.structs import OffsetAndMetadata

from tests.conformance.dialogue import DialogueCluster, now_ms, unique
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0

not_repeated = pytest.mark.no_restarts(
    "the administration client of kafka-python gives up when a connection ends"
)
Version = tuple[int, ...]
AGES: list[Version] = sorted(BROKER_API_VERSIONS)
OLDEST_FOR_KAFKA_4: Version = (2, 1)  # KIP-896
# The library's own types are not declared; what they give is asserted on.
Client = Any


@pytest.fixture
def client(cluster: DialogueCluster) -> Iterator[Callable[..., Client]]:
    """Makes clients of a class; they are closed after the test."""
    with ExitStack() as stack:

        def make(kind: Client, *arguments: object, **settings: object) -> Client:
            made = kind(*arguments, bootstrap_servers=cluster.bootstrap, **settings)
            stack.callback(made.close)
            return made

        yield make


NewClient = Callable[..., Client]


def take(consumer: Client, count: int) -> list[Client]:
    """That many records, within the time limit."""
    taken: list[Client] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records"
        for records in consumer.poll(timeout_ms=500, max_records=count - len(taken)).values():
            taken += records
    return taken


def test_a_record_comes_back_whole(client: NewClient, topic: str) -> None:
    now = now_ms()
    producer = client(KafkaProducer)
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]] = [
        (b"k", b"v", [("a", b"1"), ("a", b"2"), ("empty", b"")]),
        (None, b"keyless", []),
        (b"tombstone", None, []),
        (b"", b"", []),
    ]
    for index, (key, value, headers) in enumerate(sent):
        future = producer.send(topic, value, key, headers=headers, timestamp_ms=now + index)
        metadata = future.get(TIMEOUT_S)
        assert (metadata.offset, metadata.timestamp) == (index, now + index)
    consumer = client(KafkaConsumer, topic, auto_offset_reset="earliest")
    for index, record in enumerate(take(consumer, 4)):
        assert (record.key, record.value, list(record.headers)) == sent[index]
        assert (record.offset, record.timestamp, record.timestamp_type) == (index, now + index, 0)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_compression_and_acknowledgement(
    client: NewClient, topic: str, codec: str | None, acks: int | str
) -> None:
    producer = client(
        KafkaProducer,
        compression_type=codec,
        acks=acks,
        enable_idempotence=acks == "all",
        linger_ms=20,
    )
    values = [b"%d " % number * 20 for number in range(300)]
    for value in values:
        producer.send(topic, value)
    producer.flush(TIMEOUT_S)
    consumer = client(KafkaConsumer, topic, auto_offset_reset="earliest")
    assert [record.value for record in take(consumer, 300)] == values


@pytest.mark.parametrize("age", AGES, ids=lambda age: ".".join(map(str, age)))
def test_clients_of_every_age_produce_and_consume(
    cluster: DialogueCluster, client: NewClient, topic: str, group: str, age: Version
) -> None:
    """Issue 3: "old client versions: kafka-python's api_version pinned low"."""
    if cluster.is_kafka_4 and age < OLDEST_FOR_KAFKA_4:
        pytest.skip("this broker has dropped the versions of that time")
    producer = client(
        KafkaProducer, api_version=age, enable_idempotence=age >= (0, 11), compression_type="gzip"
    )
    for number in range(20):
        producer.send(topic, b"%d" % number, b"key").get(TIMEOUT_S)
    expected = [b"%d" % number for number in range(20)]
    lone = client(KafkaConsumer, api_version=age, auto_offset_reset="earliest")
    partition = TopicPartition(topic, 0)
    lone.assign([partition])
    assert [record.value for record in take(lone, 20)] == expected
    lone.seek(partition, 15)
    assert [record.offset for record in take(lone, 5)] == list(range(15, 20))
    assert lone.end_offsets([partition]) == {partition: 20}
    assert lone.beginning_offsets([partition]) == {partition: 0}
    if age < (0, 9):
        return  # Groups kept in Kafka came with 0.9.
    member = client(
        KafkaConsumer,
        topic,
        api_version=age,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    assert [record.value for record in take(member, 12)] == expected[:12]
    member.commit({partition: OffsetAndMetadata(12, "twelve", -1)})
    member.close()
    successor = client(KafkaConsumer, topic, api_version=age, group_id=group)
    assert [record.value for record in take(successor, 8)] == expected[12:]
    assert successor.committed(partition) == 12


def test_a_record_that_is_too_large_is_refused(client: NewClient, cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(configs={"max.message.bytes": "1000"})
    producer = client(KafkaProducer, retries=0)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 2000).get(TIMEOUT_S)
    assert producer.send(topic, b"small").get(TIMEOUT_S).offset == 0


def test_producing_creates_a_topic(client: NewClient) -> None:
    topic = unique("created-by-producing")
    assert client(KafkaProducer).send(topic, b"first").get(TIMEOUT_S).offset == 0


def test_a_consumer_looks_around(client: NewClient, cluster: DialogueCluster) -> None:
    """Offsets by time, positions, seeking."""
    topic = cluster.new_topic_of_any_age(2)
    producer = client(KafkaProducer, linger_ms=10, compression_type="lz4")
    for number in range(100):
        producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=1000 + number)
    producer.flush(TIMEOUT_S)
    consumer = client(KafkaConsumer, auto_offset_reset="earliest")
    even, odd = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert consumer.partitions_for_topic(topic) == {0, 1}
    consumer.assign([even, odd])
    found = consumer.offsets_for_times({even: 1041, odd: 5000})
    assert (found[even].offset, found[even].timestamp, found[odd]) == (21, 1042, None)
    consumer.seek(even, 48)
    consumer.seek_to_end(odd)
    assert consumer.position(odd) == 50
    assert [record.value for record in take(consumer, 2)] == [b"96", b"98"]
    consumer.seek_to_beginning(odd)
    assert {record.partition for record in take(consumer, 50)} == {1}
    consumer.assign([even])
    consumer.seek(even, 0)
    assert {record.partition for record in take(consumer, 50)} == {0}


def test_two_members_share_and_hand_over(
    client: NewClient, cluster: DialogueCluster, group: str
) -> None:
    topic = cluster.new_topic(4)

    def member() -> Client:
        return client(
            KafkaConsumer,
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            session_timeout_ms=10_000,
        )

    def owned(*members: Client) -> list[set[int]]:
        for each in members:
            each.poll(timeout_ms=300)
        return [{each.partition for each in one.assignment()} for one in members]

    first = member()
    wait_until(lambda: owned(first) == [{0, 1, 2, 3}], timeout_s=TIMEOUT_S, what="one has all")
    second = member()
    wait_until(
        lambda: (
            [len(part) for part in owned(first, second)] == [2, 2]
            and set.union(*owned(first, second)) == {0, 1, 2, 3}
        ),
        timeout_s=TIMEOUT_S,
        what="two share",
    )
    first.close()
    wait_until(lambda: owned(second) == [{0, 1, 2, 3}], timeout_s=TIMEOUT_S, what="one is left")


@not_repeated
def test_the_admin_client_looks_after_topics(client: NewClient) -> None:
    admin, name = client(KafkaAdminClient), unique("topic")
    admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    assert name in admin.list_topics()
    admin.create_partitions({name: 3})
    wait_until(
        lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3, what="three partitions"
    )
    pages = admin.describe_topic_partitions([name], response_partition_limit=2)
    assert len(pages["topics"][0]["partitions"]) == 2
    assert pages["next_cursor"]["partition_index"] == 2
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics(), what="the topic is gone")


@not_repeated
def test_the_admin_client_looks_after_configs(client: NewClient, topic: str) -> None:
    admin = client(KafkaAdminClient)

    def shown() -> dict[str, object]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found: dict[str, object] = admin.describe_configs([resource])["topic"][topic]
        return found

    change = ConfigResource(
        ConfigResourceType.TOPIC,
        topic,
        {"retention.ms": "4242", "cleanup.policy": ("APPEND", "compact")},
    )
    admin.alter_configs([change])
    wait_until(lambda: {"retention.ms", "cleanup.policy"} <= shown().keys(), what="both are set")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})])
    wait_until(lambda: "retention.ms" not in shown(), what="one is reset")
    assert topic in admin.list_config_resources(["topic"])["topic"]


@not_repeated
def test_the_admin_client_looks_after_the_cluster(
    client: NewClient, cluster: DialogueCluster, topic: str
) -> None:
    admin = client(KafkaAdminClient)
    client(KafkaProducer).send(topic, b"x" * 1000).get(TIMEOUT_S)
    described = admin.describe_cluster()
    assert described["cluster_id"]
    assert described["brokers"]
    sizes = [
        directory["topics"][0]["partitions"][0]["partition_size"]
        for broker in admin.describe_log_dirs([topic])
        for directory in broker["log_dirs"]
        if directory["topics"]
    ]
    assert len(sizes) == cluster.replication_factor
    assert sum(size >= 1000 for size in sizes) >= cluster.min_insync_replicas
    (quorum,) = admin.describe_metadata_quorum()["topics"][0]["partitions"]
    assert quorum["leader_id"] in {voter["replica_id"] for voter in quorum["current_voters"]}
    partition = TopicPartition(topic, 0)
    (state,) = admin.describe_producers([partition])[partition].active_producers
    assert state.last_sequence == 0
    assert admin.delete_records({partition: 1})[partition]["low_watermark"] == 1


@not_repeated
def test_the_admin_client_moves_partitions(client: NewClient, topic: str) -> None:
    admin, partition = client(KafkaAdminClient), TopicPartition(topic, 0)
    brokers = admin.describe_topics([topic])[0]["partitions"][0]["replica_nodes"]
    moved = [
        admin.alter_partition_reassignments({partition: replicas})
        for replicas in (brokers, [*brokers, 9_999], None)
    ]
    assert moved == [
        {partition: None},
        {partition: InvalidReplicationAssignmentError},
        {partition: NoReassignmentInProgressError},
    ]
    assert admin.list_partition_reassignments({topic: [0]}) == {}


@not_repeated
def test_the_admin_client_looks_after_features(client: NewClient) -> None:
    admin = client(KafkaAdminClient)
    lowest, highest = admin.describe_features()["metadata.version"]["supported"]
    assert 0 < lowest < highest
    with pytest.raises(InvalidUpdateVersionError):
        admin.update_features({"metadata.version": highest + 1}, validate_only=True)


@not_repeated
def test_the_admin_client_looks_after_groups(
    client: NewClient, cluster: DialogueCluster, group: str
) -> None:
    admin, topic = client(KafkaAdminClient), cluster.new_topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member = client(KafkaConsumer, topic, group_id=group, group_instance_id="static")
    wait_until(lambda: member.poll(300) or len(member.assignment()) == 2, what="the member joins")
    member.commit({zero: OffsetAndMetadata(5, "five", -1), one: OffsetAndMetadata(6, "", -1)})
    assert group in {each["group_id"] for each in admin.list_groups(states_filter=["Stable"])}
    described = admin.describe_groups([group])[group]
    assert described["group_state"] == "Stable"
    assert [each["group_instance_id"] for each in described["members"]] == ["static"]
    offsets = admin.list_group_offsets({group: None})[group]
    assert {each: offset.offset for each, offset in offsets.items()} == {zero: 5, one: 6}
    assert admin.delete_groups([group])[group] == "NonEmptyGroupError"
    member.close()
    removed = admin.remove_group_members(group, [MemberToRemove(group_instance_id="static")])
    assert [each.errno for each in removed.values()] == [0]
    assert admin.delete_group_offsets(group, [one])[one].errno == 0
    altered = admin.alter_group_offsets(group, {zero: OffsetAndMetadata(3, "", -1)})
    assert altered[zero].errno == 0
    offsets = admin.list_group_offsets({group: None})[group]
    assert {each: offset.offset for each, offset in offsets.items()} == {zero: 3}
    assert admin.delete_groups([group])[group] == "OK"
    assert admin.delete_groups([group])[group] == "GroupIdNotFoundError"
