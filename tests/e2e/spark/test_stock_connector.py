"""Spark's own Kafka connector against our processes: a job that knows only Kafka works here.

It needs the connector's jars (connector/pom.xml) in the folder that SPARK_KAFKA_JARS names. A
stream runs with Trigger.AvailableNow unless it has to see a change while it runs.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.cluster import running_cluster
from tests.support.committed_records import committed_records
from tests.support.waiting import wait_until

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
TIMEOUT_S = 60
LOST = r"DATA_LOSS|data may have been lost"

pytestmark = pytest.mark.skipif(
    not any(Path(JARS).glob("spark-sql-kafka-*.jar")) if JARS else True,
    reason="needs the stock connector: fetch it with connector/pom.xml, and set SPARK_KAFKA_JARS",
)


class Topic(NamedTuple):
    """A topic of the test, and the cluster that has it."""

    servers: str
    name: str
    admin: AdminClient

    def send(self, values: Sequence[str], *, partition: int = 0, timestamp_ms: int = 0) -> None:
        """Append records; they are acknowledged when this returns."""
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(self.name, value, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(TIMEOUT_S) == 0

    def create(self, partitions: int = 1) -> None:
        """Create it, on as many nodes as there are."""
        replicas = len(self.admin.list_topics(timeout=TIMEOUT_S).brokers)
        # Some records are from 2023.
        topic = NewTopic(self.name, partitions, replicas, config={"retention.ms": "-1"})
        self.admin.create_topics([topic])[self.name].result(TIMEOUT_S)
        wait_until(
            lambda: all(
                each.leader >= 0
                for each in self.admin.list_topics(self.name).topics[self.name].partitions.values()
            )
        )

    def delete(self) -> None:
        """Delete it, and wait until it is gone."""
        self.admin.delete_topics([self.name])[self.name].result(TIMEOUT_S)
        wait_until(lambda: self.name not in self.admin.list_topics().topics)

    def delete_records(self, before: int) -> None:
        """Move the log start of partition 0."""
        name = TopicPartition(self.name, 0, before)
        (deleted,) = self.admin.delete_records([name]).values()
        deleted.result(TIMEOUT_S)


@pytest.fixture(scope="module")
def one_node(kafka_broker: EmbeddedBroker) -> str:
    return kafka_broker.bootstrap_servers


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes.bootstrap_servers


@pytest.fixture(params=["one_node", "three_nodes"])
def any_topic(request: pytest.FixtureRequest) -> Topic:
    """A topic with two partitions, of one node and of three."""
    return made(request.getfixturevalue(request.param), partitions=2)


@pytest.fixture
def topic(one_node: str) -> Topic:
    """A topic with one partition."""
    return made(one_node)


def made(servers: str, partitions: int = 1) -> Topic:
    admin = AdminClient({"bootstrap.servers": servers})
    found = Topic(servers, f"stock-{uuid.uuid4().hex[:8]}", admin)
    found.create(partitions)
    return found


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", topic.servers)
        .options(**with_subscription(topic, options))
        .load()
    )


def with_subscription(topic: Topic, options: Mapping[str, str]) -> dict[str, str]:
    own = {} if "subscribePattern" in options else {"subscribe": topic.name}
    return {"startingOffsets": "earliest", **own, **options}


Stream = Callable[..., list[str]]
"""Reads what is new since the last call, with the options of its arguments."""


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """Restarts a query from its checkpoint."""

    def run(topic: Topic, **options: str) -> list[str]:
        found: list[str] = []
        query = start(spark, topic, tmp_path / "checkpoint", found, options, available_now=True)
        try:
            assert query.awaitTermination(TIMEOUT_S)
        finally:
            query.stop()
        return found

    return run


def start(
    spark: SparkSession,
    topic: Topic,
    checkpoint: Path,
    found: list[str],
    options: Mapping[str, str],
    *,
    available_now: bool = False,
) -> StreamingQuery:
    """A query that appends values to `found`."""

    def note(frame: DataFrame, _batch: int) -> None:
        found.extend(values_of(frame.collect()))

    writer = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", topic.servers)
        .options(**with_subscription(topic, options))
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(checkpoint))
    )
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def values_of(rows: Sequence[Row]) -> list[str]:
    return [bytes(row.value).decode() for row in rows]


def test_a_batch_has_all_columns_of_the_records(spark: SparkSession, any_topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": any_topic.servers})
    headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", None)]
    producer.produce(any_topic.name, b"v", b"k", 1, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(any_topic.name, None, None, 1, timestamp=1_700_000_000_124)
    producer.flush(TIMEOUT_S)
    first, tombstone = (
        read(spark, any_topic, includeHeaders="true")
        .selectExpr("*", "unix_millis(timestamp) as ms")
        .orderBy("offset")
        .collect()
    )
    assert (bytes(first.key), bytes(first.value)) == (b"k", b"v")
    assert (first.topic, first.partition, first.offset) == (any_topic.name, 1, 0)
    assert (first.ms, first.timestampType) == (1_700_000_000_123, 0)
    assert [(h.key, h.value and bytes(h.value)) for h in first.headers] == headers
    assert (tombstone.key, tombstone.value, tombstone.offset) == (None, None, 1)


def test_a_dataframe_is_written_to_the_topic(spark: SparkSession, any_topic: Topic) -> None:
    frame = spark.sql(
        f"""select binary('k') as key, 'v' as value, '{any_topic.name}' as topic, 1 as partition,
        array(named_struct('key', 'h', 'value', binary('1'))) as headers"""
    )
    options = {"kafka.bootstrap.servers": any_topic.servers, "includeHeaders": "true"}
    frame.write.format("kafka").options(**options).save()
    (record,) = committed_records(any_topic.servers, any_topic.name)
    assert (record.partition, record.key, record.value) == (1, b"k", b"v")
    assert record.headers == [("h", b"1")]


def test_a_stream_goes_through_the_sink_and_on_from_its_checkpoint(
    spark: SparkSession, any_topic: Topic, tmp_path: Path
) -> None:
    copy = made(any_topic.servers)
    for values in (["a", "b"], ["c"]):
        any_topic.send(values, partition=1)
        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", any_topic.servers)
            .options(**with_subscription(any_topic, {}))
            .load()
            .selectExpr("key", "upper(string(value)) as value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", copy.servers)
            .option("topic", copy.name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
    written = [record.value for record in committed_records(copy.servers, copy.name)]
    assert written == [b"A", b"B", b"C"]


def test_only_committed_records_are_read_under_read_committed(
    spark: SparkSession, any_topic: Topic, stream: Stream
) -> None:
    producers = []
    for end in ("commit", "abort", "commit", "leave open"):
        producer = Producer(
            {"bootstrap.servers": any_topic.servers, "transactional.id": f"{any_topic.name}-{end}"}
        )
        producers.append(producer)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for number in range(3):
            producer.produce(any_topic.name, f"{end} {number}", partition=0)
        producer.flush(TIMEOUT_S)
        if end == "commit":
            producer.commit_transaction(TIMEOUT_S)
        elif end == "abort":
            producer.abort_transaction(TIMEOUT_S)
    committed = [f"commit {number}" for number in range(3)] * 2
    options = {"kafka.isolation.level": "read_committed"}
    assert values_of(read(spark, any_topic, **options).collect()) == committed
    assert read(spark, any_topic).count() == 12
    assert stream(any_topic, **options) == committed
    producers[-1].commit_transaction(TIMEOUT_S)
    assert stream(any_topic, **options) == [f"leave open {number}" for number in range(3)]


def test_a_batch_is_of_a_range_of_offsets_or_of_time(spark: SparkSession, topic: Topic) -> None:
    for second in range(5):
        topic.send([f"{second}"], timestamp_ms=1_700_000_000_000 + second * 1000)
    by_offset = read(
        spark,
        topic,
        startingOffsets=f'{{"{topic.name}": {{"0": 1}}}}',
        endingOffsets=f'{{"{topic.name}": {{"0": 3}}}}',
    )
    assert values_of(by_offset.collect()) == ["1", "2"]
    by_time = {
        "startingTimestamp": "1700000000500",
        "endingTimestamp": "1700000003000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert values_of(read(spark, topic, **by_time).collect()) == ["1", "2"]
    each = read(
        spark, topic, startingOffsetsByTimestamp=f'{{"{topic.name}": {{"0": 1700000003500}}}}'
    )
    assert values_of(each.collect()) == ["4"]


def test_a_stream_begins_at_a_time_and_takes_so_many_records_a_batch(
    topic: Topic, stream: Stream
) -> None:
    for second in range(5):
        topic.send([f"{second}"], timestamp_ms=1_700_000_000_000 + second * 1000)
    options = {"startingTimestamp": "1700000001000", "maxOffsetsPerTrigger": "2"}
    assert stream(topic, **options) == ["1", "2", "3", "4"]
    topic.send(["5"])
    assert stream(topic, **options) == ["5"]


def test_min_partitions_split_a_partition(spark: SparkSession, topic: Topic) -> None:
    values = [f"{number:04}" for number in range(1000)]
    topic.send(values)
    frame = read(spark, topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    assert sorted(values_of(frame.collect())) == values


def test_a_pattern_takes_topics_that_are_created_meanwhile(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.send(["a"])
    found: list[str] = []
    later = topic._replace(name=f"{topic.name}-later")
    pattern = {"subscribePattern": f"{topic.name}.*", "kafka.metadata.max.age.ms": "100"}
    assert values_of(read(spark, topic, **pattern).collect()) == ["a"]
    query = start(spark, topic, tmp_path / "checkpoint", found, pattern)
    try:
        wait_until(lambda: found == ["a"], timeout_s=TIMEOUT_S, what="the first record")
        later.create()
        later.send(["b"])
        wait_until(lambda: found == ["a", "b"], timeout_s=TIMEOUT_S, what="the later topic's")
    finally:
        query.stop()


def test_records_of_new_partitions_are_read(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.send(["a"])
    found: list[str] = []
    query = start(spark, topic, tmp_path / "checkpoint", found, {})
    try:
        wait_until(lambda: found == ["a"], timeout_s=TIMEOUT_S, what="the first record")
        topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(TIMEOUT_S)
        topic.send(["b"], partition=1)
        wait_until(lambda: found == ["a", "b"], timeout_s=TIMEOUT_S, what="partition 1's")
    finally:
        query.stop()


def test_deleted_records_are_data_loss_unless_that_is_allowed(topic: Topic, stream: Stream) -> None:
    topic.send(["a"])
    assert stream(topic) == ["a"]
    topic.send(["b", "c", "d"])
    topic.delete_records(before=3)
    with pytest.raises(StreamingQueryException, match=LOST):
        stream(topic)
    assert stream(topic, failOnDataLoss="false") == ["d"]


def test_a_topic_that_is_created_again_with_less_records_is_data_loss(
    topic: Topic, stream: Stream
) -> None:
    topic.send(["a", "b", "c"])
    assert stream(topic) == ["a", "b", "c"]
    topic.delete()
    topic.create()
    topic.send(["x"])
    with pytest.raises(StreamingQueryException, match=LOST):
        stream(topic)


def test_a_topic_that_is_created_again_with_more_records_is_not_noticed_by_the_connector(
    topic: Topic, stream: Stream
) -> None:
    """It knows topics by name: two records are lost without a word. The topic ids in the offsets
    of our own source are there for this."""
    topic.send(["a", "b"])
    assert stream(topic) == ["a", "b"]
    topic.delete()
    topic.create()
    topic.send(["x", "y", "z"])
    assert stream(topic) == ["z"]
