"""Triggers of a stream from a real broker, without Spark around them."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.source.options import source_options
from odradek.pipeline.source.stream_reader import KafkaStreamReader
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

ReaderOf = Callable[..., KafkaStreamReader]


@pytest.fixture
def reader_of(kafka_broker: EmbeddedBroker, topic: str) -> Iterator[ReaderOf]:
    """Makes readers of the test's topic from its earliest offsets, and stops them at the end."""
    readers: list[KafkaStreamReader] = []

    def make(**options: str) -> KafkaStreamReader:
        needed = {
            "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "10",
        }
        given = {**needed, **options}
        if "subscribePattern" in options:
            del given["subscribe"]
        readers.append(KafkaStreamReader(source_options(given, is_stream=True)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def next_offset(
    reader: KafkaStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> dict[str, Any]:
    """The end of the next trigger, through JSON as Spark keeps it."""
    found = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    text = json.loads(json.dumps(found))
    assert isinstance(text, dict)
    return text


def values_of(reader: KafkaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        value
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]


def sizes_of_triggers(reader: KafkaStreamReader) -> list[int]:
    """How many records each trigger reads until there are no more."""
    sizes = []
    start = reader.initialOffset()
    while (end := next_offset(reader, start)) != start:
        sizes.append(len(values_of(reader, start, end)))
        start = end
    return sizes


def test_triggers_follow_each_other(reader_of: ReaderOf, records: TopicRecords, topic: str) -> None:
    reader = reader_of()
    start = reader.initialOffset()
    assert next_offset(reader, start) == start
    records.send(topic, [b"a", b"b"])
    middle = next_offset(reader, start)
    assert values_of(reader, start, middle) == [b"a", b"b"]
    records.send(topic, [b"c"])
    end = next_offset(reader, middle)
    assert values_of(reader, middle, end) == [b"c"]
    # A trigger that is played again by another reader, after a restart.
    assert values_of(reader_of(), start, middle) == [b"a", b"b"]
    assert reader.reportLatestOffset() == end
    reader.stop()


def test_a_stream_starts_at_the_end_by_default(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"old"])
    reader = reader_of(startingOffsets="latest")
    start = reader.initialOffset()
    records.send(topic, [b"new"])
    assert values_of(reader, start, next_offset(reader, start)) == [b"new"]


def test_limits_are_kept_and_the_end_is_reached(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.add_partitions(topic, 2)
    records.send(topic, [b"x" * 100] * 90)
    records.send(topic, [b"x" * 100] * 10, partition=1)
    assert sizes_of_triggers(reader_of(maxOffsetsPerTrigger="40")) == [40, 40, 20]
    by_bytes = sizes_of_triggers(reader_of(maxBytesPerTrigger="4k"))
    assert sum(by_bytes) == 100
    assert 30 <= by_bytes[0] <= 42
    both = sizes_of_triggers(reader_of(maxOffsetsPerTrigger="50", maxBytesPerTrigger="2k"))
    assert sum(both) == 100
    assert max(both) <= 22


def test_the_limit_is_told_to_spark_and_sparks_limit_goes_first(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    assert reader_of().getDefaultReadLimit() == ReadAllAvailable()
    assert reader_of(maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert reader_of(minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMinRows(7)
    reader = reader_of(maxOffsetsPerTrigger="3", maxBytesPerTrigger="1k")
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    records.send(topic, [b"x"] * 10)
    start = reader.initialOffset()
    assert len(values_of(reader, start, next_offset(reader, start, ReadMaxRows(5)))) == 5
    assert len(values_of(reader, start, next_offset(reader, start, ReadAllAvailable()))) == 10


def test_a_trigger_waits_for_so_many_offsets_or_so_long(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    reader = reader_of(minOffsetsPerTrigger="5")
    start = reader.initialOffset()
    records.send(topic, [b"x"])
    # As the stock connector, the first trigger has waited since for ever.
    first = next_offset(reader, start)
    assert first != start
    records.send(topic, [b"x"] * 4)
    assert next_offset(reader, first) == first
    records.send(topic, [b"x"])
    assert len(values_of(reader, first, next_offset(reader, first))) == 5
    soon = reader_of(minOffsetsPerTrigger="1000", maxTriggerDelay="1ms")
    next_offset(soon, start)
    wait_until(lambda: next_offset(soon, start) != start)


def test_available_now_ends_where_it_began_to_look(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 10)
    reader = reader_of(maxOffsetsPerTrigger="4", minOffsetsPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    records.send(topic, [b"later"] * 10)
    records.add_partitions(topic, 2)
    records.send(topic, [b"later"] * 10, partition=1)
    sizes = []
    while (end := next_offset(reader, start)) != start:
        sizes.append(len(values_of(reader, start, end)))
        start = end
    assert sizes == [4, 4, 2]


def test_new_partitions_are_read_from_their_start(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    reader = reader_of(startingOffsets="latest")
    start = reader.initialOffset()
    records.add_partitions(topic, 3)
    records.send(topic, [b"first"], partition=2)
    end = next_offset(reader, start)
    assert values_of(reader, start, end) == [b"first"]
    assert end[topic]["partitions"] == {"0": 0, "1": 0, "2": 1}


def test_new_topics_of_a_pattern_are_read_from_their_start(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    reader = reader_of(subscribePattern=f"{topic}(-more)?", startingOffsets="latest")
    start = reader.initialOffset()
    records.create(f"{topic}-more")
    records.send(f"{topic}-more", [b"first"])
    end = next_offset(reader, start)
    assert end.keys() == {topic, f"{topic}-more"}
    assert values_of(reader, start, end) == [b"first"]


def test_a_recreated_topic_stops_the_query_even_if_it_is_longer(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"old"])
    start = next_offset(reader_of(), reader_of().initialOffset())
    records.recreate(topic)
    records.send(topic, [b"new"] * 3)
    with pytest.raises(TopicRecreated, match=f"topic {topic} was deleted and created again"):
        next_offset(reader_of(), start)
    allowed = reader_of(failOnDataLoss="false")
    end = next_offset(allowed, start)
    assert values_of(allowed, start, end) == [b"new"] * 3
    assert next_offset(allowed, end) == end


def test_a_checkpoint_of_another_topic_stops_the_query(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"])
    other = {"payments": {"id": "abc", "partitions": {"0": 5}}}
    with pytest.raises(PipelineError, match="the checkpoint is of topic payments"):
        next_offset(reader_of(), other)
    allowed = reader_of(failOnDataLoss="false")
    end = next_offset(allowed, other)
    assert end.keys() == {topic}
    assert values_of(allowed, other, end) == [b"x"]


def test_a_checkpoint_of_the_stock_connector_is_carried_on(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"a", b"b", b"c"])
    stock = {topic: {"0": 2}}
    reader = reader_of()
    end = next_offset(reader, stock)
    assert values_of(reader, stock, end) == [b"c"]
    assert end[topic]["id"]


def test_deleted_records_are_not_counted_by_limits_if_they_may_be_lost(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 100)
    start = reader_of().initialOffset()
    records.delete_before(topic, 0, 95)
    allowed = reader_of(failOnDataLoss="false", maxOffsetsPerTrigger="3")
    assert len(values_of(allowed, start, next_offset(allowed, start))) == 3


def test_an_open_transaction_is_waited_for(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    transaction = records.open_transaction(topic, topic, [b"open"] * 2)
    reader = reader_of(**{"kafka.isolation.level": "read_committed"})
    start = reader.initialOffset()
    assert next_offset(reader, start) == start
    # A checkpoint of a query that was read_uncommitted is past the last stable offset.
    ahead = next_offset(reader_of(), start)
    assert next_offset(reader, ahead) == ahead
    transaction.commit_transaction()
    wait_until(lambda: next_offset(reader, start) != start)
    assert values_of(reader, start, next_offset(reader, start)) == [b"open"] * 2


def test_a_log_that_ends_before_the_checkpoint_has_lost_records(
    reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"])
    ahead = {topic: {"0": 40}}
    with pytest.raises(PipelineError, match="ends at offset 1, but the checkpoint is at 40"):
        next_offset(reader_of(), ahead)
    allowed = reader_of(failOnDataLoss="false")
    assert next_offset(allowed, ahead)[topic]["partitions"] == {"0": 1}
    assert allowed.partitions(ahead, next_offset(allowed, ahead)) == []


def test_offsets_are_committed_to_a_group_that_is_named(
    kafka_broker: EmbeddedBroker, reader_of: ReaderOf, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"] * 5)
    reader = reader_of(commitToGroup=topic)
    end = next_offset(reader, reader.initialOffset())
    name = PartitionName(topic, 0)

    def committed() -> dict[PartitionName, int]:
        properties = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        return committed_offsets(properties, topic, [name], timeout_s=30)

    assert committed() == {name: 0}
    reader.commit(end)
    assert committed() == {name: 5}
    records.send(topic, [b"x"] * 2)
    # A trigger that finds nothing is enough to show what the last one has read.
    end = next_offset(reader, end)
    assert next_offset(reader, end) == end
    assert committed() == {name: 7}
    reader_of().commit(end)


def test_a_failed_commit_is_told_and_does_not_stop_the_query(
    reader_of: ReaderOf, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(commitToGroup=topic)
    gone = {f"{topic}-gone": {"id": "", "partitions": {"0": 5}}}
    with caplog.at_level(logging.WARNING):
        reader.commit(gone)
    (told,) = caplog.messages
    assert told.startswith(f"commitToGroup: cannot commit offsets of group {topic}")
