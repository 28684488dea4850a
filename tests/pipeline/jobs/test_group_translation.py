"""Groups of a source, written to a target: who is skipped, and why. What is written is tested with
the mirror (test_mirror.py)."""

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.group_translation import TranslatedGroups, translate_groups
from odradek.pipeline.jobs.mirrored_offsets import map_topic, run_record
from odradek.pipeline.jobs.transactional_copy import OffsetRun
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.waiting import wait_until
from tests.support.written_records import WrittenRecord, write_records, write_values

SOURCE = PartitionName("t-source", 0)
TARGET = PartitionName("t-target", 0)
MAP = map_topic("translated")


def commit(broker: EmbeddedBroker, group: str, name: PartitionName, offset: int) -> None:
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(*name, offset)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.alter_consumer_group_offsets([request])[group].result(30)


def translated(broker: EmbeddedBroker) -> TranslatedGroups:
    """One broker is both sides, and its groups have offsets of both topics."""
    properties = {"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"}
    with KafkaCluster(broker.bootstrap_servers) as cluster:
        return translate_groups(
            properties,
            properties,
            cluster,
            {SOURCE: TARGET},
            map_topic=MAP,
            pattern="t-.*",
            timeout_s=30,
        )


def test_a_group_with_members_is_skipped_and_told(kafka_broker: EmbeddedBroker) -> None:
    for topic in (SOURCE.topic, TARGET.topic, MAP):
        kafka_broker.create_topic(topic)
    address = kafka_broker.bootstrap_servers
    write_values(address, SOURCE.topic, [b"x"] * 9)
    commit(kafka_broker, "t-idle", SOURCE, 7)
    commit(kafka_broker, "other", SOURCE, 7)
    assert translated(kafka_broker) == TranslatedGroups()
    key, value = run_record(SOURCE, OffsetRun(5, 100, 10))
    write_records(address, MAP, [WrittenRecord(0, value, key)])
    commit(kafka_broker, "t-busy", SOURCE, 8)
    member = Consumer({"bootstrap.servers": address, "group.id": "t-busy", "log_level": 0})
    try:
        member.subscribe([SOURCE.topic])
        wait_until(lambda: member.poll(0.1) is None and member.assignment(), what="an assignment")
        done = translated(kafka_broker)
    finally:
        member.close()
    assert done.written == {"t-idle": {TARGET: 102}}
    assert [*done.skipped] == ["t-busy"]
    assert "the group has members" in done.skipped["t-busy"]
    properties = {"bootstrap.servers": address}
    found = committed_offsets(properties, "t-idle", [SOURCE, TARGET], timeout_s=30)
    assert found == {SOURCE: 7, TARGET: 102}
