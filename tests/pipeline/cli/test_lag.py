"""`odradek pipe lag` against a real node."""

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.kafka_types import PartitionName
from tests.support.ports import free_port
from tests.support.topic_records import TopicRecords


@pytest.fixture
def bootstrap(kafka_broker: EmbeddedBroker) -> str:
    return str(kafka_broker.bootstrap_servers)


@pytest.fixture
def job(bootstrap: str) -> str:
    """A job that has moved 5 of 12 records of a topic of the same name."""
    name = f"lagging-{uuid4().hex[:12]}"
    properties = {"bootstrap.servers": bootstrap, "log_level": "0"}
    records = TopicRecords(properties)
    records.create(name)
    records.send(name, [b"v" * 1_000] * 12, timestamps=[1_000 * number for number in range(1, 13)])
    commit_offsets(properties, f"pipe.{name}", {PartitionName(name, 0): 5}, timeout_s=30)
    return name


def _lag(*arguments: str) -> Result:
    return CliRunner().invoke(pipe, ["lag", *arguments])


def test_lag_of_a_job_for_people(bootstrap: str, job: str) -> None:
    result = _lag(job, "-b", bootstrap)

    assert (result.exit_code, result.stderr) == (0, "")
    header, line = result.stdout.splitlines()
    assert header.split() == [
        *("group", "topic", "partition", "committed", "end", "records", "bytes", "seconds")
    ]
    assert line.split() == [f"pipe.{job}", job, "0", "5", "12", "7", "7.0", "kB", "6.0"]


def test_lag_of_all_jobs_for_scripts(bootstrap: str, job: str) -> None:
    result = _lag("-b", bootstrap, "--output", "json")

    assert result.exit_code == 0
    (found,) = [each for each in json.loads(result.stdout) if each["topic"] == job]
    assert found == {
        "group": f"pipe.{job}",
        "topic": job,
        "partition": 0,
        "committed": 5,
        "end": 12,
        "records": 7,
        "lost": 0,
        "bytes": 7_000,
        "is_estimate": False,
        "seconds": 6.0,
    }


def test_lost_records_are_told(bootstrap: str, job: str) -> None:
    TopicRecords({"bootstrap.servers": bootstrap}).delete_before(job, 0, 8)

    result = _lag(job, "-b", bootstrap)

    assert result.stderr == (
        f"pipe.{job}: 3 offsets of {job}-0 were deleted before they were read\n"
    )


def test_a_job_that_is_not_known_is_told(bootstrap: str) -> None:
    result = _lag("unknown-job", "-b", bootstrap)

    assert result.exit_code == 1
    assert "group pipe.unknown-job has committed nothing: check the name" in result.stderr


def test_a_cluster_that_does_not_answer_is_no_cluster_without_jobs() -> None:
    address = f"127.0.0.1:{free_port()}"

    result = _lag("-b", address, "-X", "kafka.default.api.timeout.ms=2000")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot list groups of {address}: " in result.stderr
    assert "Connection refused" in result.stderr
