"""What is wrong around a job is one line on stderr that says what to do, with exit code 1; nothing
half-written is in the table, as others read it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.lacking_python import python_without
from tests.e2e.spark.offload_job import (
    TIMEOUT_S,
    OffloadJob,
    environment,
    job_settings,
    read_by_others,
    verify,
)
from tests.support.disks import small_disk
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg.*")

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
QUERY = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.read.format("odradek").option("subscribe", "orders").load()
"""


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def topic(records: TopicRecords) -> str:
    """With three partitions."""
    name = f"errors-{uuid4().hex[:8]}"
    records.create(name, 3)
    return name


def job_of(kafka_broker: EmbeddedBroker, folder: Path, topic: str, **more: str) -> OffloadJob:
    named = {"name": topic, "topics": topic, **more}
    return OffloadJob(job_settings(kafka_broker.bootstrap_servers, folder / "lake", **named))


def only_line(errors: str) -> str:
    """Of stderr, without the warning of a JVM about its own modules."""
    (line,) = (each for each in errors.splitlines() if "incubator modules" not in each)
    return line


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Interpreters without the packages of extras."""
    folder = tmp_path_factory.mktemp("lacking")
    spark = ("pyspark", "py4j", "pyarrow", "yaml", "pyyaml")
    return {
        "spark": python_without(folder / "spark", *spark),
        "formats": python_without(folder / "formats", "deltalake", "pyiceberg", "fastavro"),
        "arrow": python_without(folder / "arrow", "pyarrow"),
    }


def ran_with(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-P", *arguments],
        capture_output=True,
        text=True,
        env=environment() | {"PYSPARK_PYTHON": str(python)},
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "lacks", "told"),
    [
        (("offload", "--once"), "spark", "odradek pipe needs Spark and Arrow: "),
        (("verify",), "spark", "odradek pipe needs Spark and Arrow: "),
        (("offload", "--once", "--format", "delta"), "delta", "format delta needs "),
        (("offload", "--once", "--format", "iceberg"), "iceberg", "format iceberg needs "),
        (("offload", "--once", "--value-format", "avro"), "avro", "value.format avro needs "),
        (("upsert", "--once"), "delta", "upsert needs "),
    ],
)
def test_a_missing_extra_is_named(
    lacking: dict[str, Path],
    kafka_broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    command: tuple[str, ...],
    lacks: str,
    told: str,
) -> None:
    flags = ["--name", topic, "--topics", topic, "--table", str(tmp_path / "lake")]
    flags += ["-b", kafka_broker.bootstrap_servers, "--value-schema", AVRO]
    python = lacking.get(lacks, lacking["formats"])
    ran = ran_with(python, "-m", "odradek", "pipe", *command, *flags)
    assert ran.returncode == 1
    line = only_line(ran.stderr)
    assert line.startswith(f"Error: {told}")
    assert line.endswith(f"pip install 'odradek[{lacks}]'")
    assert not (tmp_path / "lake").exists()


def test_format_odradek_without_arrow_says_so_and_not_that_it_is_unknown(
    lacking: dict[str, Path],
) -> None:
    """Spark takes a data source that cannot be imported for one that does not exist."""
    ran = ran_with(lacking["arrow"], "-c", QUERY)
    assert ran.returncode == 1
    lines = [each for each in ran.stderr.splitlines() if "PipelineError: " in each]
    assert [each.partition("PipelineError: ")[2] for each in lines] == [
        f"format odradek needs the package pyarrow, which {lacking['arrow']} has not:"
        " pip install 'odradek[spark]' there"
    ]
    assert "Caused by" not in ran.stderr


def test_an_unreachable_cluster_is_named_and_leaves_no_table(tmp_path: Path) -> None:
    patience = {"kafka_default_api_timeout_ms": "500"}
    job = OffloadJob(job_settings("127.0.0.1:1", tmp_path / "lake", **patience))
    ran = job.once()
    assert (ran.exit_code, ran.plans) == (1, [])
    assert only_line(ran.errors) == (
        "Error: No broker of 127.0.0.1:1 can be reached: 127.0.0.1:1: Connection refused. Check"
        " the addresses, and security.protocol. (tried for 0.5 s)"
    )
    assert not job.table.exists()


def test_another_schema_and_another_topic_are_refused_and_the_table_stays(
    kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str, tmp_path: Path
) -> None:
    kinds = {"value_format": "json", "format": "delta"}
    job = job_of(kafka_broker, tmp_path, topic, **kinds, value_schema="id BIGINT")
    records.send(topic, [b'{"id": 1}'] * 5)
    assert job.once().exit_code == 0
    records.send(topic, [b'{"id": "two"}'] * 5)
    other = f"{topic}-other"
    records.create(other)
    for changes, told in (
        ({"value_schema": "id STRING"}, "column id is int64 in the table and string"),
        ({"value_schema": "id BIGNT"}, "BIGNT"),
        ({"topics": other}, f"was made with topics {topic} and not {other}: choose another table"),
        ({"format": "parquet"}, "was made with format delta and not parquet"),
    ):
        ran = job.once(**changes)
        assert (ran.exit_code, ran.plans) == (1, []), changes
        line = only_line(ran.errors)
        assert line.startswith("Error: ")
        assert told in line
    ran = job.once(format="orc")
    assert ran.exit_code == 2
    assert read_by_others("delta", job).column("id").to_pylist() == [1] * 5


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that is large enough for the first plan alone."""
    with small_disk(tmp_path / "disk", 8 << 20):
        yield tmp_path / "disk"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_full_disk_is_one_line_and_the_plan_runs_when_there_is_room(
    kind: str, full: Path, kafka_broker: EmbeddedBroker, records: TopicRecords, topic: str
) -> None:
    job = job_of(kafka_broker, full, topic, format=kind)
    records.send(topic, [b"small"] * 10)
    assert job.once().exit_code == 0
    chance = __import__("random").Random(14)
    for partition in range(3):
        values = [chance.randbytes(900_000) for _ in range(4)]
        records.send(topic, values, partition=partition)
    ran = job.once()
    assert (ran.exit_code, ran.plans) == (1, [])
    line = only_line(ran.errors)
    assert line.startswith("Error: ")
    assert "No space left on device" in line
    assert "nothing of this plan is visible, it runs again" in line
    assert read_by_others(kind, job).num_rows == 10
    assert not (job.table / "_odradek" / "staging").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(full)], check=True)
    again = job.once()
    assert again.exit_code == 0, again.errors
    assert [plan["records"] for plan in again.plans] == [12]
    assert read_by_others(kind, job).num_rows == 22
    verify(job)
