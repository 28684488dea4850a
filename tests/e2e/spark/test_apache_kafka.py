"""The pipeline against Apache Kafka itself: it uses nothing but the Kafka wire.

Kafka's jars are those of its command line tools (tests/support/java.py).
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from bench.brokers import Broker, kafka
from odradek.pipeline.data_source import OdradekDataSource
from tests.e2e.spark.offload_job import (
    OffloadJob,
    environment,
    job_settings,
    pipe_command,
    read_by_others,
    verify,
)
from tests.support.committed_records import committed_records
from tests.support.java import kafka_jars, why_no_java_tools
from tests.support.topic_records import TopicRecords

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools()),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*"),
]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One node of Kafka."""
    jars = kafka_jars()
    assert jars is not None
    with kafka(jars, tmp_path_factory.mktemp("apache") / "kafka") as broker:
        yield broker


@pytest.fixture
def records(apache: Broker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": apache.bootstrap})


def pipe(apache: Broker, *arguments: str) -> str:
    """What a command prints; fails unless it ends with 0."""
    ran = subprocess.run(
        pipe_command(*arguments, "-b", apache.bootstrap),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_topic_is_a_table_and_a_topic_again(
    kind: str, apache: Broker, records: TopicRecords, tmp_path: Path
) -> None:
    topic = f"orders-{kind}"
    records.create(topic, 2)
    for partition in range(2):
        records.send(
            topic,
            [b"%d" % number for number in range(50)],
            partition=partition,
            keys=[b"key-%d" % number for number in range(50)],
            headers=[[("trace", b"%d" % number)] for number in range(50)],
        )
    records.abort(f"of-{topic}", topic, [b"aborted"] * 5)
    records.commit(f"of-{topic}", topic, [b"committed"])
    named = {"name": topic, "topics": topic, "format": kind}
    job = OffloadJob(job_settings(apache.bootstrap, tmp_path / "lake", **named))
    ran = job.once()
    assert ran.exit_code == 0, ran.errors
    assert read_by_others(kind, job).num_rows == 101
    proof = verify(job)
    assert proof["is_proven"]
    assert sum(each["gaps"].get("aborted", 0) for each in proof["partitions"]) == 5

    (lag,) = {
        each["records"] for each in json.loads(pipe(apache, "lag", topic, "--output", "json"))
    }
    assert lag == 0
    pipe(apache, "replay", "--table", str(job.table), "--to", f"{topic}-again")
    again, first = (
        [
            (each.partition, each.key, each.value, each.timestamp_ms, each.headers)
            for each in committed_records(apache.bootstrap, name)
        ]
        for name in (f"{topic}-again", topic)
    )
    assert again == first


def test_bad_records_are_redriven(apache: Broker, records: TopicRecords, tmp_path: Path) -> None:
    records.create("readings", 1)
    records.send("readings", [b'{"id": 1}', b"{"])
    named = {"name": "readings", "topics": "readings", "value_format": "json"}
    settings = job_settings(apache.bootstrap, tmp_path / "lake", value_schema="id BIGINT", **named)
    job = OffloadJob(settings)
    ran = job.once()
    assert ran.exit_code == 0, ran.errors
    assert verify(job)["is_proven"]
    (letter,) = json.loads(pipe(apache, "dlq", "list", "readings", "--output", "json"))
    assert (letter["partition"], letter["offset"]) == (0, 1)
    pipe(apache, "dlq", "redrive", "readings")
    assert json.loads(pipe(apache, "dlq", "list", "readings", "--output", "json")) == []
    values = [each.value for each in committed_records(apache.bootstrap, "readings")]
    assert values == [b'{"id": 1}', b"{", b"{"]


def test_spark_reads_and_writes(
    spark: SparkSession, apache: Broker, records: TopicRecords, tmp_path: Path
) -> None:
    spark.dataSource.register(OdradekDataSource)
    records.create("numbers", 2)
    records.create("copies", 2)
    for partition in range(2):
        records.send("numbers", [b"%d" % each for each in range(100)], partition=partition)
    records.abort("of-numbers", "numbers", [b"aborted"] * 5)
    servers = {"kafka.bootstrap.servers": apache.bootstrap}
    for _ in range(2):  # The second time there is nothing new.
        (
            spark.readStream.format("odradek")
            .options(**servers, subscribe="numbers", startingOffsets="earliest")
            .option("kafka.isolation.level", "read_committed")
            .option("commitToGroup", "pipe.copies")
            .load()
            .select("key", "value", col("partition"))
            .writeStream.format("odradek")
            .options(**servers, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(120)
        )
    frame = spark.read.format("odradek").options(**servers, subscribe="copies").load()
    assert frame.count() == 200
    copied = Counter(each.value for each in committed_records(apache.bootstrap, "copies"))
    assert copied == {b"%d" % each: 2 for each in range(100)}
