"""What tasks read of a real broker."""

import pickle  # noqa: TID251  # as Spark sends them to tasks

import pytest
from pyspark.sql.datasource import InputPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import OffsetsLost, PipelineError, TopicRecreated
from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionRange
from odradek.pipeline.source.cluster_offsets import open_cluster
from odradek.pipeline.source.options import SourceOptions, source_options
from odradek.pipeline.source.range_partition import KafkaRangePartition, read_range_partition
from tests.support.topic_records import TopicRecords


def options_of(broker: EmbeddedBroker, topic: str, **options: str) -> SourceOptions:
    needed = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    return source_options({**needed, **options}, is_stream=False)


def values_of(options: SourceOptions, start: int, end: int, topic_id: str = "") -> list[bytes]:
    (topic,) = options.subscription.topics
    sent = pickle.dumps(KafkaRangePartition(PartitionRange(topic, topic_id, 0, start, end)))
    batches = read_range_partition(options, pickle.loads(sent))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_range_is_read_with_sparks_columns(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"%d" % n for n in range(10)], headers=[[("trace", b"7")]] * 10)
    options = options_of(kafka_broker, topic)
    assert values_of(options, 2, 5) == [b"2", b"3", b"4"]
    partition = KafkaRangePartition(PartitionRange(topic, "", 0, 0, 1))
    (batch,) = read_range_partition(options, partition)
    assert batch.schema.names == KAFKA_SCHEMA.names[:-1]
    with_headers = options_of(kafka_broker, topic, includeHeaders="true")
    (batch,) = read_range_partition(with_headers, partition)
    assert batch.schema == KAFKA_SCHEMA
    assert batch.column("headers").to_pylist() == [[{"key": "trace", "value": b"7"}]]


def test_a_batch_without_ranges_reads_nothing(kafka_broker: EmbeddedBroker, topic: str) -> None:
    options = options_of(kafka_broker, topic)
    assert list(read_range_partition(options, InputPartition(None))) == []


def test_aborted_records_are_read_unless_read_committed(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.commit(topic, topic, [b"committed"])
    records.abort(topic, topic, [b"aborted"])
    assert values_of(options_of(kafka_broker, topic), 0, 4) == [b"committed", b"aborted"]
    committed = options_of(kafka_broker, topic, **{"kafka.isolation.level": "read_committed"})
    assert values_of(committed, 0, 4) == [b"committed"]


def test_deleted_records_are_an_error_or_passed_over(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"%d" % n for n in range(10)])
    records.delete_before(topic, 0, 4)
    with pytest.raises(OffsetsLost, match="failOnDataLoss=false reads on without them"):
        values_of(options_of(kafka_broker, topic), 2, 6)
    allowed = options_of(kafka_broker, topic, failOnDataLoss="false")
    assert values_of(allowed, 2, 6) == [b"4", b"5"]
    assert values_of(allowed, 0, 3) == []


def test_a_recreated_topic_is_an_error_or_not_read(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"old"])
    with open_cluster(options_of(kafka_broker, topic)) as cluster:
        topic_id = cluster.topics([topic])[topic].topic_id
    records.recreate(topic)
    records.send(topic, [b"new", b"new"])
    with pytest.raises(TopicRecreated):
        values_of(options_of(kafka_broker, topic), 0, 1, topic_id)
    allowed = options_of(kafka_broker, topic, failOnDataLoss="false")
    assert values_of(allowed, 0, 1, topic_id) == []


def test_a_task_that_cannot_reach_the_cluster_says_where_it_tried() -> None:
    options = source_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "orders",
            "kafka.default.api.timeout.ms": "300",
        },
        is_stream=False,
    )
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:1"):
        values_of(options, 0, 5)
