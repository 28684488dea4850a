"""`df.write` and `df.writeStream` with format("odradek") through Spark itself.

A driver that fails between commits, a batch that is not what it was, and what people are told.
What is killed is in test_sink_kill.py.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.data_source import OdradekDataSource
from odradek.pipeline.sink.writers import stream_writer
from tests.support.committed_records import CommittedRecord, committed_records


class FailingWriter(DataSourceStreamArrowWriter):
    """Fails on the driver after a batch is in Kafka, before Spark knows it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, fail_at: int) -> None:
        self._inner = inner
        self._fail_at = fail_at

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._inner.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.commit(messages, batchId)
        if batchId == self._fail_at:
            raise OSError(f"the driver fails at batch {batchId}")


class FailingSink(OdradekDataSource):
    """Our data source with an option failAt: the batch at which the driver fails."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = dict(self.options)
        fail_at = int(options.pop("failat"))
        return FailingWriter(stream_writer(schema, options, overwrite), fail_at)


@pytest.fixture
def topic(kafka_broker: EmbeddedBroker) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture(scope="module", autouse=True)
def _data_sources(spark: SparkSession) -> None:
    spark.dataSource.register(OdradekDataSource)
    spark.dataSource.register(FailingSink)


def values_of(records: list[CommittedRecord]) -> list[str]:
    return sorted((record.value or b"").decode() for record in records)


def write(frame: DataFrame, broker: EmbeddedBroker, mode: str = "append", **options: str) -> None:
    (
        frame.write.format("odradek")
        .mode(mode)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .options(**options)
        .save()
    )


def test_a_restarted_batch_with_other_partitions_is_refused_and_its_own_are_taken(
    spark: SparkSession, kafka_broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """The driver fails after Kafka's commits of batch 1 and before Spark's."""

    def run(tasks: int, fail_at: int = -1) -> None:
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 6)
            .option("numPartitions", tasks)
            .load()
            .selectExpr("cast(value as string) as value")
            .writeStream.format("failing")
            .option("kafka.bootstrap.servers", kafka_broker.bootstrap_servers)
            .option("topic", topic)
            .option("failAt", fail_at)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            while not (query.lastProgress and query.lastProgress["batchId"] >= 1):
                query.awaitTermination(0.1)  # type: ignore[arg-type]  # it takes fractions
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="the driver fails at batch 1"):
        run(3, fail_at=1)
    with pytest.raises(StreamingQueryException, match=r"batch 1 of query .* before the restart"):
        run(2)
    run(3)
    counts = Counter(values_of(committed_records(kafka_broker.bootstrap_servers, topic)))
    assert {value: count for value, count in counts.items() if count != 1} == {}
    assert set(map(str, range(12))) <= set(counts)


def test_a_dataframe_is_written_with_keys_headers_and_partitions(
    spark: SparkSession, kafka_broker: EmbeddedBroker
) -> None:
    topic = f"sink-{uuid.uuid4().hex[:8]}"
    # Retention by time would take a record of that day any moment.
    kafka_broker.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    frame = spark.sql(
        """select 'k' as key, binary('v') as value, 1 as partition, 7 as ignored,
        array(named_struct('key', 'h', 'value', binary('1'))) as headers,
        timestamp '2026-01-02 03:04:05.678Z' as timestamp"""
    )
    write(frame, kafka_broker, topic=topic, keepTimestamp="true")
    (record,) = committed_records(kafka_broker.bootstrap_servers, topic)
    assert (record.partition, record.key, record.value) == (1, b"k", b"v")
    assert record.headers == [("h", b"1")]
    assert record.timestamp_ms == 1_767_323_045_678


def test_a_dataframe_of_several_tasks_and_topics_is_written_once_and_leaves_no_groups(
    spark: SparkSession, kafka_broker: EmbeddedBroker, topic: str
) -> None:
    other = f"{topic}-other"
    kafka_broker.create_topic(other)
    frame = spark.range(0, 1000, numPartitions=4).selectExpr(
        "cast(id as string) as value",
        f"if(id % 2 = 0, '{topic}', '{other}') as topic",
    )
    write(frame, kafka_broker, transactionalIdPrefix=f"own-{topic}")
    even = values_of(committed_records(kafka_broker.bootstrap_servers, topic))
    odd = values_of(committed_records(kafka_broker.bootstrap_servers, other))
    assert even == sorted(str(number) for number in range(0, 1000, 2))
    assert odd == sorted(str(number) for number in range(1, 1000, 2))
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    assert not [group for group in groups if group.startswith(f"own-{topic}")]


def test_a_failing_task_leaves_nothing_of_its_rows(
    spark: SparkSession, kafka_broker: EmbeddedBroker, topic: str
) -> None:
    frame = spark.range(0, 100, numPartitions=1).selectExpr(
        "if(id = 99, raise_error('row 99 is broken'), cast(id as string)) as value"
    )
    with pytest.raises(PySparkException, match="row 99 is broken"):
        write(frame, kafka_broker, topic=topic)
    assert committed_records(kafka_broker.bootstrap_servers, topic) == []


@pytest.mark.parametrize(
    ("select", "mode", "options", "said"),
    [
        ("id", "append", {"topic": "t"}, "the DataFrame has no column value"),
        ("id as value", "append", {"topic": "t"}, "column value is bigint and must be string"),
        ("string(id) as value", "append", {}, "no topic to write to: set the option topic"),
        ("string(id) as value", "append", {"topik": "t"}, "option topik is unknown to the sink"),
        ("string(id) as value", "overwrite", {"topic": "t"}, "a topic cannot be overwritten"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    select: str,
    mode: str,
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(PySparkException) as refused:
        write(spark.range(1).selectExpr(select), kafka_broker, mode, **options)
    assert said in str(refused.value)
