"""Positions of copies in a group's offsets."""

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_progress import CopyPosition, read_positions
from odradek.pipeline.kafka_types import PartitionName

POSITION = CopyPosition(source="table a", topic_id="id", next_offset=7, target_end=9)
HERE = PartitionName("positions", 0)


def commit(broker: EmbeddedBroker, group: str, metadata: str) -> dict[str, str]:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    offsets = [TopicPartition(*HERE, 9, metadata)]
    request = ConsumerGroupTopicPartitions(group, offsets)
    admin = AdminClient(dict(properties))  # Freed, it would answer nothing.
    admin.alter_consumer_group_offsets([request])[group].result(30)
    return properties


def test_a_position_is_read_as_it_was_written_and_only_by_its_source(
    kafka_broker: EmbeddedBroker,
) -> None:
    kafka_broker.create_topic("positions", partitions=2)
    properties = commit(kafka_broker, "pipe.a", POSITION.text())
    both = [HERE, PartitionName("positions", 1)]
    found = read_positions(properties, "pipe.a", both, source="table a", timeout_s=30)
    assert found == {HERE: POSITION}
    with pytest.raises(PipelineError, match=r"offset of table a for positions-0.*copy of table b"):
        read_positions(properties, "pipe.a", both, source="table b", timeout_s=30)
    for other in ("", "[]", '{"odradek.copy": 2}', '{"odradek.copy": 1}'):
        properties = commit(kafka_broker, "pipe.b", other)
        with pytest.raises(PipelineError, match="an offset of no copy"):
            read_positions(properties, "pipe.b", both, source="table a", timeout_s=30)
