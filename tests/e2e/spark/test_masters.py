"""The same job and the same query on each of Spark's masters, which run tasks in other processes,
with other working directories; and what people are told if a master or its workers do not fit."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.offload_job import (
    TIMEOUT_S,
    OffloadJob,
    environment,
    job_settings,
    verify,
)
from tests.e2e.spark.spark_cluster import standalone_spark, without_odradek
from tests.support.ports import free_port
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.slow

CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(records: TopicRecords) -> str:
    """With three partitions."""
    name = f"masters-{uuid4().hex[:8]}"
    records.create(name, 3)
    return name


@pytest.fixture
def job(kafka_broker: EmbeddedBroker, topic: str, tmp_path: Path) -> OffloadJob:
    """Nothing in it depends on the master."""
    settings = job_settings(kafka_broker.bootstrap_servers, tmp_path / "lake")
    return OffloadJob({**settings, "name": topic, "topics": topic, "spark.executor.memory": "512m"})


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master whose worker finds Python's packages only by what the job says."""
    folder = tmp_path_factory.mktemp("standalone")
    with standalone_spark(folder, without_odradek()) as url:
        yield url


def test_the_same_job_runs_on_every_master(
    standalone: str, records: TopicRecords, topic: str, job: OffloadJob
) -> None:
    for number, master in enumerate(["local[2]", CLUSTER, standalone], start=1):
        records.send(topic, [b"v-%d" % number] * 10, partition=number - 1)
        ran = job.once(master=master)
        assert ran.exit_code == 0, f"{master}: {ran.errors}"
        assert [plan["records"] for plan in ran.plans] == [10], master
    partitions = verify(job)["partitions"]
    assert [each["rows"] for each in partitions] == [10, 10, 10]


@pytest.mark.parametrize("where", ["cluster", "standalone"])
def test_the_same_query_runs_on_every_master(
    where: str,
    standalone: str,
    kafka_broker: EmbeddedBroker,
    records: TopicRecords,
    topic: str,
    tmp_path: Path,
) -> None:
    """tests/e2e/spark/test_source.py and test_sink.py run it on local[2]."""
    copy = f"{topic}-copy"
    records.create(copy, 3)
    for partition in range(3):
        values = [b"%d" % number for number in range(10 * partition)]
        records.send(topic, values, partition=partition)
    master = CLUSTER if where == "cluster" else standalone
    arguments = [master, kafka_broker.bootstrap_servers, topic, copy, str(tmp_path / "checkpoint")]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "tests.e2e.spark.kafka_query", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment() | {"PYSPARK_PYTHON": sys.executable},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.splitlines()[-1] == "[(1, 10), (2, 20)]"


def test_workers_without_odradek_are_told_in_one_line(
    standalone: str, records: TopicRecords, topic: str, job: OffloadJob
) -> None:
    """Debian's Python, say: it runs, and has nothing."""
    records.send(topic, [b"v"])
    # -S: without site-packages; pyspark is in Spark's home.
    bare = job.table.parent / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    for python, told in (
        (str(bare), "Error: the Python of Spark's workers has no "),
        ("/absent/python", "Error: Spark cannot run /absent/python on its workers"),
    ):
        ran = job.once(master=standalone, spark_pyspark_python=python)
        assert ran.exit_code == 1
        (error,) = error_lines(ran.errors)
        assert error.startswith(told)
        assert "-X spark.pyspark.python=PATH" in error
    assert not [*job.table.glob("kafka_date=*")]


def test_a_master_that_does_not_answer_is_told_in_one_line(
    records: TopicRecords, topic: str, job: OffloadJob
) -> None:
    records.send(topic, [b"v"])
    master = f"spark://127.0.0.1:{free_port()}"
    ran = job.once(master=master)
    assert ran.exit_code == 1
    assert error_lines(ran.errors)[-1] == (
        f"Error: Spark at {master} has ended or does not answer: check --master and the cluster"
    )


def error_lines(errors: str) -> list[str]:
    """Without the warning of a JVM about its own modules."""
    return [line for line in errors.splitlines() if "incubator modules" not in line]
