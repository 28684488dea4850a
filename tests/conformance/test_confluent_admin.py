"""confluent-kafka (librdkafka): the admin client."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.test_confluent_groups import Member, run_until
from tests.conformance.test_confluent_kafka import TIMEOUT_S, Record, new_producer, send_all
from tests.support.waiting import wait_until

K = TypeVar("K")
T = TypeVar("T")


@pytest.fixture
def admin(cluster: DialogueCluster) -> AdminClient:
    """An admin client of the broker under test."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def only(futures: Mapping[K, Future[T]]) -> T:
    """The result of the only future."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def code_of(futures: Mapping[K, Future[T]]) -> int:
    """The error code of the only future, which must fail."""
    with pytest.raises(KafkaException) as failed:
        only(futures)
    code: int = failed.value.args[0].code()
    return code


def test_topics_are_created_described_and_deleted(admin: AdminClient) -> None:
    name = unique("topic")
    assert (
        only(admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "1000"})])) is None
    )
    wait_until(
        lambda: name in admin.list_topics(timeout=TIMEOUT_S).topics, what="the topic is shown"
    )
    assert code_of(admin.create_topics([NewTopic(name, 3, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    described = only(admin.describe_topics(TopicCollection([name])))
    assert (described.name, len(described.partitions), described.is_internal) == (name, 3, False)
    for partition in described.partitions:
        assert [node.id for node in partition.replicas] == [partition.leader.id]
    assert only(admin.delete_topics([name], operation_timeout=10)) is None
    wait_until(
        lambda: name not in admin.list_topics(timeout=TIMEOUT_S).topics, what="the topic is gone"
    )
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert code_of(admin.delete_topics([name], operation_timeout=10)) == unknown


def test_validating_creates_no_topic(admin: AdminClient) -> None:
    name = unique("topic")
    assert only(admin.create_topics([NewTopic(name, 3, 1)], validate_only=True)) is None
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics
    too_many = [NewTopic(name, 1, 77)]
    assert code_of(admin.create_topics(too_many)) == KafkaError.INVALID_REPLICATION_FACTOR


def test_partitions_are_added(admin: AdminClient, cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(2)
    only(admin.create_partitions([NewPartitions(topic, 5)]))
    with cluster.connect() as wire:
        cluster.wait_for_topic(wire, topic, 5)
    assert code_of(admin.create_partitions([NewPartitions(topic, 4)])) == (
        KafkaError.INVALID_PARTITIONS
    )


def configs_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    """All configs of one resource."""
    configs: dict[str, ConfigEntry] = only(admin.describe_configs([ConfigResource(kind, name)]))
    return configs


def test_configs_are_altered_incrementally(admin: AdminClient, topic: str) -> None:
    def alter(key: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        only(admin.incremental_alter_configs([resource]))

    def shows(key: str, value: str) -> bool:
        return bool(configs_of(admin, ResourceType.TOPIC, topic)[key].value == value)

    alter("retention.ms", "77777", AlterConfigOpType.SET)
    wait_until(lambda: shows("retention.ms", "77777"), what="the value is set")
    entry = configs_of(admin, ResourceType.TOPIC, topic)["retention.ms"]
    assert ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert not entry.is_default
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    wait_until(lambda: shows("cleanup.policy", "delete,compact"), what="the value is appended")
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    wait_until(lambda: shows("cleanup.policy", "compact"), what="the value is subtracted")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    wait_until(lambda: shows("retention.ms", "604800000"), what="the value is the default again")


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
def test_configs_are_replaced_by_old_tools(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "1234"})
    only(admin.alter_configs([resource]))
    wait_until(
        lambda: configs_of(admin, ResourceType.TOPIC, topic)["max.message.bytes"].value == "1234",
        what="the value is set",
    )
    bad = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "many"})
    assert code_of(admin.alter_configs([bad])) == KafkaError.INVALID_CONFIG


def test_brokers_have_configs(admin: AdminClient) -> None:
    broker = admin.list_topics(timeout=TIMEOUT_S).controller_id
    configs = configs_of(admin, ResourceType.BROKER, str(broker))
    assert configs["num.partitions"].value
    assert configs["log.dirs"].is_read_only


def test_records_are_deleted(admin: AdminClient, cluster: DialogueCluster, topic: str) -> None:
    send_all(new_producer(cluster), topic, [{"value": b"%d" % number} for number in range(10)])
    deleted = only(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert code_of(admin.delete_records([TopicPartition(topic, 0, 40)])) == (
        KafkaError.OFFSET_OUT_OF_RANGE
    )


def test_offsets_are_listed_by_every_specification(
    admin: AdminClient, cluster: DialogueCluster
) -> None:
    topic = cluster.new_topic_of_any_age()
    stamps = [1000, 5000, 3000]
    records: list[Record] = [{"value": b"x", "timestamp": stamp} for stamp in stamps]
    send_all(new_producer(cluster), topic, records)
    only(admin.delete_records([TopicPartition(topic, 0, 1)]))
    for specification, offset, timestamp in (
        (OffsetSpec.earliest(), 1, -1),
        (OffsetSpec.latest(), 3, -1),
        (OffsetSpec.max_timestamp(), 1, 5000),
        (OffsetSpec.for_timestamp(2000), 1, 5000),
        (OffsetSpec.for_timestamp(9000), -1, -1),
    ):
        for isolation in IsolationLevel:
            found = only(
                admin.list_offsets(
                    {TopicPartition(topic, 0): specification}, isolation_level=isolation
                )
            )
            assert (found.offset, found.timestamp) == (offset, timestamp)


def test_the_cluster_is_described(admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert described.cluster_id
    assert described.controller.id in {node.id for node in described.nodes}
    assert described.authorized_operations


@pytest.mark.parametrize("election_type", list(ElectionType))
def test_leaders_are_elected_where_it_is_needed(
    admin: AdminClient, topic: str, election_type: ElectionType
) -> None:
    named, nowhere = TopicPartition(topic, 0), TopicPartition(unique("nowhere"), 0)
    elected = admin.elect_leaders(election_type, [named, nowhere]).result(TIMEOUT_S)
    assert {partition: error.code() for partition, error in elected.items()} == {
        named: KafkaError.ELECTION_NOT_NEEDED,
        nowhere: KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    assert named not in admin.elect_leaders(election_type, None).result(TIMEOUT_S)


def test_groups_are_listed_described_and_deleted(
    admin: AdminClient, cluster: DialogueCluster
) -> None:
    topic, group = cluster.new_topic(2), unique("group")
    member = Member(cluster, group, topic, group_instance_id="one")
    run_until(lambda: len(member.owned) == 2, member, what="the member has all")
    listing = admin.list_consumer_groups(
        states={ConsumerGroupState.STABLE}, types={ConsumerGroupType.CLASSIC}
    ).result(TIMEOUT_S)
    assert group in {each.group_id for each in listing.valid}
    assert listing.errors == []
    described = only(admin.describe_consumer_groups([group]))
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    assert described.coordinator.port
    (shown,) = described.members
    assert shown.group_instance_id == "one"
    assert {each.partition for each in shown.assignment.topic_partitions} == {0, 1}
    assert code_of(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    (refused,) = only(admin.alter_consumer_group_offsets([wanted])).topic_partitions
    assert refused.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    member.consumer.close()
    # A static member stays until its session ends or somebody removes it.
    other = unique("group")
    lone = Member(cluster, other, topic)
    run_until(lambda: len(lone.owned) == 2, lone, what="the member has all")
    lone.consumer.close()
    assert only(admin.delete_consumer_groups([other])) is None
    assert code_of(admin.delete_consumer_groups([other])) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_of_groups_are_altered_and_listed(
    admin: AdminClient, cluster: DialogueCluster
) -> None:
    topic, group = cluster.new_topic(3), unique("group")
    wanted = [TopicPartition(topic, index, 10 + index) for index in range(2)]
    only(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))
    for asked in (None, [TopicPartition(topic, index) for index in range(3)]):
        found = only(
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)])
        )
        offsets = {each.partition: each.offset for each in found.topic_partitions}
        assert {key: offset for key, offset in offsets.items() if offset >= 0} == {0: 10, 1: 11}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    committed = consumer.committed([TopicPartition(topic, 1)], timeout=TIMEOUT_S)
    assert committed[0].offset == 11
    consumer.close()
