"""Batches planned and read from a real broker, without Spark around them."""

import pickle  # noqa: TID251  # as Spark sends it to tasks
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.source.batch_reader import (
    FilteredBatchReader,
    KafkaBatchReader,
    batch_ranges,
)
from odradek.pipeline.source.offsets import SourceOffsets
from odradek.pipeline.source.options import source_options
from odradek.pipeline.source.range_partition import KafkaRangePartition
from tests.support.topic_records import TopicRecords

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000


def reader_of(broker: EmbeddedBroker, topic: str, **options: str) -> FilteredBatchReader:
    needed = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    return FilteredBatchReader(source_options({**needed, **options}, is_stream=False))


def values_of(reader: KafkaBatchReader) -> list[bytes]:
    """Read by a reader that was pickled, as Spark does it: before the partitions are asked for."""
    remote = pickle.loads(pickle.dumps(reader))
    return [
        value
        for partition in reader.partitions()
        for batch in remote.read(partition)
        for value in batch.column("value").to_pylist()
    ]


def ranges_of(reader: KafkaBatchReader) -> list[tuple[int, int, int]]:
    found = []
    for partition in reader.partitions():
        assert isinstance(partition, KafkaRangePartition)
        wanted = partition.wanted
        found.append((wanted.partition, wanted.start, wanted.end))
    return found


def test_all_partitions_are_read_once(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.add_partitions(topic, 3)
    for partition in range(2):
        records.send(topic, [b"%d-%d" % (partition, n) for n in range(20)], partition=partition)
    expected = Counter(b"%d-%d" % (partition, n) for partition in range(2) for n in range(20))
    whole = reader_of(kafka_broker, topic)
    assert ranges_of(whole) == [(0, 0, 20), (1, 0, 20)]
    assert Counter(values_of(whole)) == expected
    split = reader_of(kafka_broker, topic, minPartitions="8")
    assert len(split.partitions()) == 8
    assert Counter(values_of(split)) == expected
    small = reader_of(kafka_broker, topic, maxRecordsPerPartition="6")
    assert len(small.partitions()) == 8
    assert Counter(values_of(small)) == expected


def test_filters_make_the_ranges_narrower(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.add_partitions(topic, 2)
    for partition in range(2):
        times = [NOON_MS + 1000 * n for n in range(10)]
        records.send(topic, [b"x"] * 10, partition=partition, timestamps=times)
    reader = reader_of(kafka_broker, topic)
    exact = [EqualTo(("partition",), 1), GreaterThan(("offset",), 2), LessThan(("offset",), 8)]
    later = GreaterThanOrEqual(("timestamp",), NOON.replace(second=5))
    assert list(reader.pushFilters([*exact, later])) == [later]
    assert ranges_of(reader) == [(1, 5, 8)]
    nothing = reader_of(kafka_broker, topic)
    assert list(nothing.pushFilters([In(("partition",), (7,))])) == []
    assert nothing.partitions() == []


def test_filters_go_with_the_reader_to_the_tasks(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"%d" % n for n in range(10)])
    reader = reader_of(kafka_broker, topic)
    list(reader.pushFilters([GreaterThanOrEqual(("offset",), 7)]))
    assert values_of(reader) == [b"7", b"8", b"9"]


def test_a_range_backwards_is_refused() -> None:
    name = PartitionName("orders", 0)
    with pytest.raises(PipelineError, match="orders-0 would be read from offset 9 to 4, backwards"):
        batch_ranges(SourceOffsets({name: 9}, {}), SourceOffsets({name: 4}, {}))
