"""Source, sink and offload behind SASL_SSL with SCRAM and ACLs: the least rights, one by one.

Each right is given only when the job has said that it is missing, so the list is complete and has
nothing too much. docs/pipeline.md states it.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.kafka_types import PartitionName
from tests.e2e.sasl_node import SaslNode, odradek, password
from tests.e2e.spark.offload_job import OffloadJob, environment, job_settings, pipe_command, verify
from tests.support.committed_records import committed_records
from tests.support.topic_records import TopicRecords

MECHANISM = "SCRAM-SHA-512"
USER = "carol"
ALLOWED = "ACLs have to allow this user "


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    """The listener without a login is for what the test itself does."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
    node = SaslNode(tmp_path_factory.mktemp("secured"), **settings)
    with node.broker:
        node.add_user(USER, password(USER))
        yield node


@pytest.fixture
def records(node: SaslNode) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": node.broker.bootstrap_servers})


@pytest.fixture
def kafka(node: SaslNode) -> dict[str, str]:
    """Kafka's options of a login."""
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": MECHANISM,
        "kafka.sasl.username": USER,
        "kafka.sasl.password": password(USER),
        "kafka.ssl.ca.location": str(node.authority.certificate),
    }


def allow(node: SaslNode, resource: str, name: str, *operations: str, pattern: str = "") -> None:
    words = ["acl", "add", "--principal", USER, f"--{resource}", name]
    words += [word for each in operations for word in ("--operation", each)]
    words += ["--pattern", pattern] if pattern else []
    odradek(*words, bootstrap=node.broker.bootstrap_servers)


def refused(run: Callable[[], object]) -> str:
    """What a query says that it may not do."""
    with pytest.raises(PySparkException) as failed:
        run()
    found = re.findall(rf"{ALLOWED}(.*)", str(failed.value))
    assert found, str(failed.value)[-3000:]
    return str(found[-1])


def test_the_source_needs_read_on_its_topic_and_on_the_group_it_shows_its_offsets_to(
    spark: SparkSession,
    node: SaslNode,
    kafka: dict[str, str],
    records: TopicRecords,
    tmp_path: Path,
) -> None:
    records.create("read")
    records.send("read", [b"%d" % number for number in range(10)])
    records.create("hidden")
    options = {**kafka, "kafka.bootstrap.servers": node.address("SECURE"), "subscribe": "read"}
    batch = spark.read.format("odradek").options(**options)
    assert refused(lambda: batch.load().count()) == "Read on topic read"
    allow(node, "topic", "read", "read")
    assert batch.load().count() == 10

    def stream() -> None:
        query = (
            spark.readStream.format("odradek")
            .options(**options, commitToGroup="shown", startingOffsets="earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def shown() -> dict[PartitionName, int]:
        own = {"bootstrap.servers": node.broker.bootstrap_servers}
        return committed_offsets(own, "shown", [PartitionName("read", 0)], timeout_s=30)

    stream()  # The checkpoint counts; the group is only for people, and its refusal is logged.
    assert shown() == {}
    allow(node, "group", "shown", "read")
    stream()
    assert shown() == {PartitionName("read", 0): 10}


def test_the_sink_needs_its_topic_its_transactional_ids_and_its_groups(
    spark: SparkSession, node: SaslNode, kafka: dict[str, str], records: TopicRecords
) -> None:
    records.create("written")
    options = {**kafka, "kafka.bootstrap.servers": node.address("SECURE"), "topic": "written"}
    options |= {"transactionalIdPrefix": "own", "kafka.max.block.ms": "5000"}
    rows = spark.range(0, 20, numPartitions=2).selectExpr("string(id) as value")

    def write() -> None:
        rows.write.format("odradek").mode("append").options(**options).save()

    for needed, resource, name, operation, pattern in (
        ("Write on transactional id own-batch-", "transactional-id", "own-", "write", "prefixed"),
        ("Read on group own-batch-", "group", "own-", "read", "prefixed"),
        ("Write", "topic", "written", "write", "literal"),
        ("Write and Read on the topic", "topic", "written", "read", "literal"),
    ):
        assert refused(write).startswith(needed)
        assert committed_records(node.broker.bootstrap_servers, "written") == []
        allow(node, resource, name, operation, pattern=pattern)
    write()
    found = committed_records(node.broker.bootstrap_servers, "written")
    assert sorted(int(each.value or b"") for each in found) == [*range(20)]


@pytest.mark.slow
def test_offload_needs_its_topics_its_group_and_its_dead_letters(
    node: SaslNode, kafka: dict[str, str], records: TopicRecords, tmp_path: Path
) -> None:
    records.create("orders")
    records.send("orders", [b'{"id": 1}'] * 10 + [b"{"])
    named = {"value_format": "json", "value_schema": "id BIGINT", **kafka}
    job = OffloadJob(job_settings(node.address("SECURE"), tmp_path / "lake", **named))

    def needed() -> str:
        ran = job.once(kafka_default_api_timeout_ms="5000")
        assert ran.exit_code == 1
        assert [*job.table.glob("kafka_date=*")] == []
        return ran.errors.splitlines()[-1].partition(ALLOWED)[2]

    assert needed() == "Read on topic orders"
    allow(node, "topic", "orders", "read")
    assert needed() == "Describe and Create on topic archive.dlq"
    allow(node, "topic", "archive.dlq", "describe", "create")
    assert needed() == "Write on transactional id pipe.archive.dlq"
    allow(node, "transactional-id", "pipe.archive.dlq", "write")
    assert needed() == "Read on group pipe.archive.dlq"
    allow(node, "group", "pipe.archive.dlq", "read")
    assert needed() == "Write and Read on topic archive.dlq"
    allow(node, "topic", "archive.dlq", "write", "read")
    # Of the group only those who look need to know: the table has the rows when it is refused.
    ran = job.once()
    assert ran.exit_code == 1
    assert ran.errors.splitlines()[-1].endswith(f"{ALLOWED}Read on group pipe.archive")
    allow(node, "group", "pipe.archive", "read")
    assert job.once().exit_code == 0
    (partition,) = verify(job)["partitions"]
    assert (partition["rows"], partition["bad"]) == (10, 1)


@pytest.mark.slow
def test_workers_with_other_working_directories_find_the_certificates(
    node: SaslNode, kafka: dict[str, str], records: TopicRecords, tmp_path: Path
) -> None:
    records.create("relative")
    records.send("relative", [b"v"] * 10)
    allow(node, "topic", "relative", "read")
    allow(node, "group", "pipe.relative", "read")
    more = {**kafka, "kafka.ssl.ca.location": os.path.relpath(node.authority.certificate)}
    more |= {"name": "relative", "topics": "relative", "master": "local-cluster[1,1,1024]"}
    job = OffloadJob(job_settings(node.address("SECURE"), tmp_path / "lake", **more))
    ran = job.once(spark_executor_memory="512m")
    assert ran.exit_code == 0, ran.errors
    assert [plan["records"] for plan in ran.plans] == [10]


def test_a_wrong_password_is_told_by_a_job_and_not_shown(
    node: SaslNode, kafka: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--name", "n", "--topics", "orders", "--table", str(tmp_path / "lake"), "--once"]
    login = {**kafka, "kafka.sasl.password": "not-the-secret"}
    login["kafka.default.api.timeout.ms"] = "1000"
    properties = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
    ran = subprocess.run(
        pipe_command("offload", "-b", node.address("SECURE"), *flags, *properties),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "uthentication" in line
    assert "not-the-secret" not in line
    assert not (tmp_path / "lake").exists()
