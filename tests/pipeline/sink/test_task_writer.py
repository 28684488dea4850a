"""One task's transaction, against a real node: committed once, skipped, fenced, refused."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_with_metadata
from odradek.pipeline.kafka_types import HEADER_TYPE, PartitionName
from odradek.pipeline.sink.batch_marks import mark_of
from odradek.pipeline.sink.sink_options import SinkOptions, sink_options
from odradek.pipeline.sink.task_writer import TaskName, TaskResult, write_task
from tests.support.committed_records import committed_records
from tests.support.ports import free_port
from tests.support.waiting import wait_until


def name_of(topic: str, batch: int = 0, *, run: str = "first") -> TaskName:
    return TaskName(prefix=f"sink-{topic}", query="q", run=run, batch=batch, task=1)


def rows_of(*values: str) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.record_batch({"value": pa.array([value])})


@pytest.fixture
def topic(kafka_broker: EmbeddedBroker) -> str:
    name = f"task-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def options(kafka_broker: EmbeddedBroker, topic: str) -> SinkOptions:
    return options_of(kafka_broker, topic=topic)


def options_of(broker: EmbeddedBroker, **options: str) -> SinkOptions:
    return sink_options({"kafka.bootstrap.servers": broker.bootstrap_servers, **options})


def values_in(broker: EmbeddedBroker, topic: str) -> list[str]:
    records = committed_records(broker.bootstrap_servers, topic)
    return sorted((record.value or b"").decode() for record in records)


def test_rows_and_mark_are_committed_together(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    result = write_task(name_of(topic), options, rows_of("a", "b"))
    assert values_in(kafka_broker, topic) == ["a", "b"]
    group = committed_with_metadata(options.properties, f"sink-{topic}-1", None, timeout_s=30)
    assert list(group) == [PartitionName(topic, 0)]
    assert mark_of(group[PartitionName(topic, 0)].metadata) == result.mark
    assert (result.mark.rows, result.mark.batch, result.earlier) == (2, 0, None)


def test_a_committed_batch_is_skipped_and_the_next_one_is_not(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    first = write_task(name_of(topic), options, rows_of("a", "b"))
    again = write_task(name_of(topic, run="second"), options, rows_of("b", "a"))
    assert again == TaskResult(replace(first.mark, run="second"), earlier=first.mark)
    following = write_task(name_of(topic, 1, run="second"), options, rows_of("c"))
    assert following.earlier == first.mark
    assert values_in(kafka_broker, topic) == ["a", "b", "c"]


@pytest.mark.parametrize("values", [("a",), ("a", "c"), ("a", "b", "b")])
def test_a_committed_batch_with_other_rows_is_refused(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str, values: tuple[str, ...]
) -> None:
    write_task(name_of(topic), options, rows_of("a", "b"))
    with pytest.raises(PipelineError, match="task 1 has committed 2 rows to Kafka and now has"):
        write_task(name_of(topic, run="second"), options, rows_of(*values))
    assert values_in(kafka_broker, topic) == ["a", "b"]


def test_a_batch_before_the_committed_one_is_refused(options: SinkOptions, topic: str) -> None:
    write_task(name_of(topic, 5), options, rows_of("a"))
    with pytest.raises(PipelineError, match=r"Kafka has batch 5 .* the checkpoint was set back"):
        write_task(name_of(topic, 4), options, rows_of("a"))


def test_another_query_under_the_prefix_does_not_skip(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    write_task(name_of(topic, 5), options, rows_of("a"))
    other = TaskName(prefix=f"sink-{topic}", query="other", run="r", batch=0, task=1)
    write_task(other, options, rows_of("b"))
    assert values_in(kafka_broker, topic) == ["a", "b"]


def test_a_task_without_rows_sends_nothing(options: SinkOptions, topic: str) -> None:
    result = write_task(name_of(topic), options, iter(()))
    assert result.mark.rows == 0
    assert not committed_with_metadata(options.properties, f"sink-{topic}-1", None, timeout_s=30)


def test_a_failing_task_leaves_nothing_visible_and_holds_nobody_up(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows_of("a", "b")
        wait_until(lambda: end_of(kafka_broker, topic) > 0, what="a row has been sent")
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        write_task(name_of(topic), options, failing())
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for partition in range(2):
        producer.produce(topic, f"later {partition}", partition=partition)
    producer.flush(30)
    assert values_in(kafka_broker, topic) == ["later 0", "later 1"]
    write_task(name_of(topic), options, rows_of("a", "b"))
    assert values_in(kafka_broker, topic) == ["a", "b", "later 0", "later 1"]


def end_of(broker: EmbeddedBroker, topic: str) -> int:
    """The sum of the high watermarks."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "ends",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        names = [TopicPartition(topic, partition) for partition in range(2)]
        return sum(consumer.get_watermark_offsets(name, 30)[1] for name in names)
    finally:
        consumer.close()


def test_a_task_that_runs_twice_at_once_is_fenced(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from rows_of("a")
        write_task(name_of(topic, run="second"), options, rows_of("a", "b"))
        yield from rows_of("b")

    with pytest.raises(PipelineError, match="fenced by another writer with this transactional id"):
        write_task(name_of(topic), options, overtaken())
    assert values_in(kafka_broker, topic) == ["a", "b"]


def test_a_transaction_that_a_killed_task_left_open_is_aborted(
    kafka_broker: EmbeddedBroker, options: SinkOptions, topic: str
) -> None:
    killed = Producer(
        {**options.producer_properties, "transactional.id": name_of(topic).transactional_id}
    )
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(topic, b"left")
    killed.flush(30)
    write_task(name_of(topic), options, rows_of("a"))
    assert values_in(kafka_broker, topic) == ["a"]


def test_rows_go_to_the_topics_that_they_name(kafka_broker: EmbeddedBroker, topic: str) -> None:
    other = f"{topic}-other"
    kafka_broker.create_topic(other)
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b", None]),
            "key": pa.array(["k", None, "gone"]),
            "topic": pa.array([other, topic, topic]),
            "partition": pa.array([None, 1, 0], pa.int32()),
            "headers": pa.array([None, [{"key": "h", "value": b"1"}], []], pa.list_(HEADER_TYPE)),
        }
    )
    options = options_of(kafka_broker)
    write_task(name_of(topic), options, iter([batch]))
    write_task(name_of(topic), options, iter([batch]))
    (in_other,) = committed_records(kafka_broker.bootstrap_servers, other)
    assert (in_other.key, in_other.value) == (b"k", b"a")
    tombstone, with_header = committed_records(kafka_broker.bootstrap_servers, topic)
    assert (tombstone.partition, tombstone.key, tombstone.value) == (0, b"gone", None)
    assert (with_header.partition, with_header.headers) == (1, [("h", b"1")])


def test_more_rows_than_the_producers_queue_holds_are_written(
    kafka_broker: EmbeddedBroker, topic: str
) -> None:
    options = options_of(
        kafka_broker, topic=topic, **{"kafka.queue.buffering.max.messages": "1000"}
    )
    batch = pa.record_batch({"value": pa.array([f"{each:05}" for each in range(20_000)])})
    write_task(name_of(topic), options, iter([batch]))
    assert values_in(kafka_broker, topic) == batch.column("value").to_pylist()


def test_a_partition_that_is_not_there_is_told(kafka_broker: EmbeddedBroker, topic: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"a"]), "partition": pa.array([9], pa.int32())})
    with pytest.raises(PipelineError, match=f"cannot write to topic {topic}: .*[Uu]nknown part"):
        write_task(name_of(topic), options_of(kafka_broker, topic=topic), iter([batch]))


def test_a_record_that_is_too_large_is_told(kafka_broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(PipelineError, match=f"cannot write to topic {topic} .*too large"):
        write_task(name_of(topic), options_of(kafka_broker, topic=topic), rows_of("a" * 2_000_000))


def test_a_transaction_timeout_above_the_clusters_is_told(
    kafka_broker: EmbeddedBroker, topic: str
) -> None:
    options = options_of(
        kafka_broker, topic=topic, **{"kafka.transaction.timeout.ms": "2000000000"}
    )
    with pytest.raises(PipelineError, match=r"transaction\.max\.timeout\.ms is below 2000000000"):
        write_task(name_of(topic), options, rows_of("a"))


def test_a_cluster_that_does_not_answer_is_told(kafka_broker: EmbeddedBroker) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = sink_options(
        {"kafka.bootstrap.servers": address, "topic": "t", "kafka.max.block.ms": "1000"}
    )
    with pytest.raises(PipelineError, match=f"no answer from {address} .*refused.*check kafka"):
        write_task(name_of("t"), options, rows_of("a"))


def test_the_offset_of_a_mark_is_the_number_of_the_batch(options: SinkOptions, topic: str) -> None:
    """Kafka's tools show it as the group's current offset."""
    write_task(name_of(topic, 41), options, rows_of("a"))
    write_task(name_of(topic, 42), options, rows_of("b"))
    consumer = Consumer({**options.properties, "group.id": name_of(topic).transactional_id})
    (committed,) = consumer.committed([TopicPartition(topic, 0)], 30)
    consumer.close()
    assert committed.offset == 42
