"""`spark.read` and `spark.readStream` with format("odradek") through Spark itself.

What the stock Kafka connector reads is read the same with one word changed; its tests are skipped
without its jars. Streams go into Parquet files, which pyarrow reads back.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.query import StreamingQuery

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.kafka_types import PartitionName
from tests.e2e.cluster import SMALL, running_cluster
from tests.e2e.sasl_node import SaslNode, password
from tests.e2e.spark.conftest import JARS
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

OURS, STOCK = "odradek", "kafka"
TIMEOUT_S = 120
NOON_MS = 1_767_268_800_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

needs_connector = pytest.mark.skipif(
    not os.environ.get(JARS), reason=f"{JARS} names no folder with the stock connector's jars"
)
Run = Callable[..., StreamingQuery]


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    """Sends to the broker of the session."""
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(request: pytest.FixtureRequest, records: TopicRecords) -> str:
    """A topic of the test's own, with two partitions."""
    name = re.sub(r"[^\w.-]", "-", request.node.name)
    records.create(name, 2)
    return str(name)


@pytest.fixture
def read(spark: SparkSession, kafka_broker: EmbeddedBroker) -> Callable[..., DataFrame]:
    """A batch of the topic from the broker of the session."""

    def load(word: str, topic: str, **options: str) -> DataFrame:
        servers = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}
        if not {"assign", "subscribePattern"} & options.keys():
            servers["subscribe"] = topic
        return spark.read.format(word).options(**servers, **options).load()

    return load


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where a test's stream is written to."""
    return tmp_path / "table"


@pytest.fixture
def run(
    spark: SparkSession, kafka_broker: EmbeddedBroker, topic: str, table: Path
) -> Callable[..., StreamingQuery]:
    """Runs the test's query on its checkpoint until it has read what was there when it began."""

    def run_available(word: str = OURS, **options: str) -> StreamingQuery:
        given = {
            "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **options,
        }
        query = start(spark.readStream.format(word).options(**given).load(), table)
        assert query.awaitTermination(TIMEOUT_S)
        return query

    return run_available


def start(frame: DataFrame, table: Path, **trigger: str) -> StreamingQuery:
    """Write a stream into Parquet files, its checkpoint beside them."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{table}-checkpoint")
    if trigger:
        return writer.trigger(**trigger).start(str(table))
    return writer.trigger(availableNow=True).start(str(table))


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def values_in(table: Path) -> list[bytes]:
    """The values that a stream wrote, in the order of partitions and offsets."""
    found = ds.dataset(table, format="parquet").to_table(["value", "partition", "offset"])
    ordered = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
    values: list[bytes] = ordered.column("value").to_pylist()
    return values


def failure_of(run_query: Callable[[], object]) -> str:
    """The line of PipelineError that a query ends with."""
    with pytest.raises(PySparkException) as failed:
        run_query()
    lines = [
        line for line in str(failed.value).splitlines() if line.startswith("odradek.pipeline.")
    ]
    assert lines, str(failed.value)
    return lines[-1].partition(": ")[2]


def rows_per_trigger(query: StreamingQuery) -> list[int]:
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


@pytest.fixture(scope="module")
def mixed(kafka_broker: EmbeddedBroker) -> str:
    """A topic with all that records can be: nulls, headers, codecs, transactions, one of them
    open."""
    records = TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})
    records.create("mixed", 3)
    records.send(
        "mixed",
        [b"value", None, b"", b"last"],
        keys=[None, b"tombstone", b"", b"\xff\x00"],
        headers=[None, [("trace", b"1"), ("trace", None)], [("", b"")], [("käse", b"\x00")]],
        timestamps=[NOON_MS + 3, NOON_MS + 1, NOON_MS + 7, NOON_MS + 5],
    )
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [b"%s %d " % (codec.encode(), n) * 20 for n in range(200)]
        times = [NOON_MS + 10 * n for n in range(200)]
        properties: dict[str, str | int] = {"compression.type": codec}
        records.send("mixed", values, partition=1, timestamps=times, properties=properties)
    records.commit("mixed", "mixed", [b"committed"] * 10)
    records.abort("mixed", "mixed", [b"aborted"] * 10)
    records.commit("mixed", "mixed", [b"committed later"] * 3)
    records.open_transaction("mixed-open", "mixed", [b"open"] * 5, partition=2)
    return "mixed"


@needs_connector
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"includeHeaders": "true"}, id="headers"),
        pytest.param({"kafka.isolation.level": "read_committed"}, id="read_committed"),
        pytest.param(
            {
                "startingOffsets": '{"mixed":{"0":1,"1":-2,"2":0}}',
                "endingOffsets": '{"mixed":{"0":3,"1":700,"2":-1}}',
            },
            id="offsets",
        ),
        pytest.param(
            {
                "startingTimestamp": str(NOON_MS + 4),
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsetsByTimestamp": (
                    f'{{"mixed":{{"0":{NOON_MS + 7},"1":{NOON_MS + 1500},"2":{NOON_MS}}}}}'
                ),
            },
            id="times",
        ),
        pytest.param({"assign": '{"mixed":[1,2]}', "minPartitions": "7"}, id="minPartitions"),
        # The stock connector splits by this option in streams only.
        pytest.param(
            {"subscribePattern": "mix.*", "maxRecordsPerPartition": "90"}, id="maxRecords"
        ),
    ],
)
def test_a_batch_has_the_stock_connectors_rows_with_one_word_changed(
    read: Callable[..., DataFrame], mixed: str, options: dict[str, str]
) -> None:
    stock, ours = read(STOCK, mixed, **options), read(OURS, mixed, **options)
    assert ours.schema == stock.schema
    expected = rows_of(stock)
    assert len(expected) > 3
    assert rows_of(ours) == expected
    if "minPartitions" in options:
        assert ours.rdd.getNumPartitions() == stock.rdd.getNumPartitions()


def test_filters_are_pushed_if_spark_and_the_query_say_so(
    spark: SparkSession, read: Callable[..., DataFrame], records: TopicRecords, topic: str
) -> None:
    for partition in range(2):
        times = [NOON_MS + 1000 * (n ^ 1) for n in range(100)]  # Not in the order of offsets.
        values = [b"%d" % n for n in range(100)]
        records.send(topic, values, partition=partition, timestamps=times)

    def filtered(**options: str) -> DataFrame:
        wanted = (col("partition") == 1) & (col("offset") >= 10) & (col("offset") < 90)
        wanted &= col("timestamp").between("2026-01-01 12:00:21", "2026-01-01 12:00:40")
        return read(OURS, topic, maxRecordsPerPartition="10", **options).where(wanted)

    expected = rows_of(filtered())
    assert len(expected) == 20
    with pytest.raises(AnalysisException, match=PUSHDOWN):
        filtered(pushFilters="true").collect()
    spark.conf.set(PUSHDOWN, "true")
    try:
        pushed = filtered(pushFilters="true")
        assert rows_of(pushed) == expected
        # Offsets 20 to 89 of one partition: the first record of that second is at 20.
        assert pushed.rdd.getNumPartitions() == 7
    finally:
        spark.conf.set(PUSHDOWN, "false")


def test_a_stream_reads_each_record_once_over_restarts_and_keeps_its_limits(
    run: Run, records: TopicRecords, topic: str, table: Path
) -> None:
    sent = []
    for rounds, limit in enumerate(({"maxOffsetsPerTrigger": "30"}, {"maxBytesPerTrigger": "4k"})):
        for partition in range(2):
            values = [b"%d-%d-%d".ljust(100) % (rounds, partition, n) for n in range(40)]
            records.send(topic, values, partition=partition)
            sent += values
        rows = rows_per_trigger(run(**limit))
        assert sum(rows) == 80
        assert len(rows) >= 2
        assert max(rows) <= 45
    assert Counter(values_in(table)) == Counter(sent)
    assert rows_per_trigger(run()) == []


@needs_connector
def test_a_query_of_the_stock_connector_goes_on_with_one_word_changed(
    run: Run, records: TopicRecords, topic: str, table: Path
) -> None:
    records.send(topic, [b"a", b"b"])
    run(STOCK)
    records.send(topic, [b"c"])
    assert rows_per_trigger(run(OURS)) == [1]
    assert values_in(table) == [b"a", b"b", b"c"]


def test_a_running_stream_sees_new_partitions_and_shows_its_offsets_to_a_group(
    spark: SparkSession,
    kafka_broker: EmbeddedBroker,
    records: TopicRecords,
    topic: str,
    table: Path,
) -> None:
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "subscribe": topic,
        "commitToGroup": topic,
    }
    frame = spark.readStream.format(OURS).options(**options).load()
    query = start(frame, table, processingTime="0 seconds")
    try:
        query.processAllAvailable()  # It starts at the latest offsets, and these are known now.
        records.send(topic, [b"a"])
        query.processAllAvailable()
        records.add_partitions(topic, 3)
        records.send(topic, [b"b"], partition=2)
        query.processAllAvailable()
        records.send(topic, [b"c"], partition=1)
        query.processAllAvailable()
        names = [PartitionName(topic, partition) for partition in range(3)]
        properties = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        wait_until(
            lambda: (
                committed_offsets(properties, topic, names, timeout_s=30) == dict.fromkeys(names, 1)
            ),
            what="the group has lag 0",
        )
    finally:
        query.stop()
    assert values_in(table) == [b"a", b"c", b"b"]


def test_only_committed_records_arrive_and_an_open_transaction_is_waited_for(
    run: Run, records: TopicRecords, topic: str, table: Path
) -> None:
    committed = {"kafka.isolation.level": "read_committed"}
    for number in range(10):
        send = records.abort if number % 3 == 0 else records.commit
        send(topic, topic, [b"%d" % number] * 3)
    transaction = records.open_transaction(f"{topic}-open", topic, [b"open"] * 2)
    records.send(topic, [b"behind it"])
    run(**committed, maxOffsetsPerTrigger="9")
    expected = [b"%d" % number for number in range(10) if number % 3 for _ in range(3)]
    assert values_in(table) == expected
    transaction.commit_transaction()
    run(**committed)
    assert values_in(table) == [*expected, b"open", b"open", b"behind it"]


def test_deleted_records_stop_a_stream_unless_they_may_be_lost(
    run: Run, records: TopicRecords, topic: str, table: Path
) -> None:
    records.send(topic, [b"a"])
    run()
    records.send(topic, [b"lost", b"lost", b"b"])
    records.delete_before(topic, 0, 3)
    assert "failOnDataLoss=false reads on without them" in failure_of(run)
    run(failOnDataLoss="false")
    assert values_in(table) == [b"a", b"b"]


def test_a_recreated_topic_stops_a_stream_even_if_it_is_longer(
    run: Run, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"old"])
    run()
    records.recreate(topic, 2)
    records.send(topic, [b"new"] * 5)
    told = failure_of(run)
    assert told.startswith(f"topic {topic} was deleted and created again")
    assert "start with a new checkpoint location" in told


def test_a_checkpoint_of_another_topic_stops_a_stream(
    run: Run, records: TopicRecords, topic: str
) -> None:
    records.send(topic, [b"x"])
    run()
    records.create(f"{topic}-other")
    told = failure_of(lambda: run(subscribe=f"{topic}-other"))
    assert told.startswith(f"the checkpoint is of topic {topic}, which this query with subscribe=")


def test_what_is_wrong_is_told_in_one_line(
    read: Callable[..., DataFrame], kafka_broker: EmbeddedBroker, topic: str
) -> None:
    def told(topic: str = topic, **options: str) -> str:
        return failure_of(lambda: read(OURS, topic, **options).collect())

    assert told(maxOffsetPerTrigger="5").endswith("did you mean maxOffsetsPerTrigger?")
    assert "does not exist at" in told(f"{topic}-missing")
    pattern = {"subscribePattern": topic, "kafka.sasl.mechanism": "PLAIN"}
    security = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "KERBEROS"}
    assert "KERBEROS" in told(**{**pattern, **security})


def test_an_unreachable_cluster_is_named(spark: SparkSession) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "orders",
        "kafka.default.api.timeout.ms": "1000",
    }
    frame = spark.read.format(OURS).options(**options).load()
    assert "127.0.0.1:1" in failure_of(frame.collect)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    """A broker with a listener with SASL_SSL, and a topic with ten records."""
    node = SaslNode(tmp_path_factory.mktemp("secured"))
    with node.broker:
        node.add_user("carol", password("carol"))
        records = TopicRecords(node.librdkafka("SCRAM-SHA-512", listener="SECURE"))
        records.create("orders")
        records.send("orders", [b"%d" % n for n in range(10)])
        yield node


@pytest.mark.parametrize("word", [pytest.param(OURS), pytest.param(STOCK, marks=needs_connector)])
def test_tls_and_sasl_are_said_in_kafkas_words(
    spark: SparkSession, secured: SaslNode, tmp_path: Path, word: str
) -> None:
    lines = secured.java("SCRAM-SHA-512", tmp_path / "none", listener="SECURE").splitlines()
    options = {f"kafka.{name}": value for name, _, value in (line.partition("=") for line in lines)}
    frame = spark.read.format(word).options(subscribe="orders", **options).load()
    assert [row.value for row in rows_of(frame)] == [b"%d" % n for n in range(10)]


def test_a_wrong_password_is_told(spark: SparkSession, secured: SaslNode) -> None:
    options = {
        "kafka.bootstrap.servers": secured.address("SECURE"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "carol",
        "kafka.sasl.password": "wrong",
        "kafka.ssl.ca.location": str(secured.authority.certificate),
        "kafka.default.api.timeout.ms": "1000",
    }
    frame = spark.read.format(OURS).options(subscribe="orders", **options).load()
    told = failure_of(frame.collect)
    assert "uthentic" in told
    assert "wrong" not in told


def test_a_stream_from_three_nodes_goes_on_while_each_of_them_restarts(
    spark: SparkSession, tmp_path: Path, table: Path
) -> None:
    with running_cluster(tmp_path, settings=SMALL) as cluster:
        cluster.create_at("orders", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        records = TopicRecords({"bootstrap.servers": cluster.bootstrap_servers})
        sent = []
        for partition in range(3):
            values = [b"%d-%d" % (partition, n) for n in range(600)]
            records.send("orders", values, partition=partition)
            sent += values
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "200",
        }
        with ThreadPoolExecutor(1) as pool:
            query = start(spark.readStream.format(OURS).options(**options).load(), table)
            restarts = [pool.submit(cluster[node].restart) for node in (1, 2)]
            assert query.awaitTermination(TIMEOUT_S)
            for each in restarts:
                each.result(TIMEOUT_S)
        assert query.exception() is None
        assert len(rows_per_trigger(query)) >= 9
    assert Counter(values_in(table)) == Counter(sent)
