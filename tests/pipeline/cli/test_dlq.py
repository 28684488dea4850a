"""`odradek pipe dlq` against a real node."""

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.tables.rows import BadRecord
from tests.support.ports import free_port
from tests.support.topic_records import TopicRecords


@pytest.fixture
def bootstrap(kafka_broker: EmbeddedBroker) -> str:
    return str(kafka_broker.bootstrap_servers)


@pytest.fixture
def job(bootstrap: str) -> str:
    """A job with three dead letters."""
    name = f"letters-{uuid4().hex[:12]}"
    properties = {"bootstrap.servers": bootstrap, "log_level": "0"}
    TopicRecords(properties).create(name)
    with DeadLetterSender(properties, f"pipe.{name}", f"{name}.dlq", timeout_s=30) as sender:
        sender.send(
            4,
            [
                BadRecord(name, 0, offset, 1_000, "no JSON", b"k", b"{\xff", (("a", None),))
                for offset in (3, 5, 8)
            ],
        )
    return name


def _dlq(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(pipe, ["dlq", *arguments], input=answer)


def test_letters_are_listed_for_people(bootstrap: str, job: str) -> None:
    result = _dlq("list", job, "-b", bootstrap, "--limit", "2")

    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["letter", "record", "time", "reason"]
    assert first.startswith(f"0/0     {job}-0 offset 3  20")
    assert first.endswith("  no JSON")
    assert second.startswith(f"0/1     {job}-0 offset 5  20")
    assert result.stderr == "There are more than 2: see more with --limit.\n"


def test_letters_are_listed_for_scripts(bootstrap: str, job: str) -> None:
    result = _dlq("list", job, "-b", bootstrap, "--output", "json")

    found = json.loads(result.stdout)
    assert [each["offset"] for each in found] == [3, 5, 8]
    sent_ms = found[0].pop("sent_ms")
    assert sent_ms > 1_700_000_000_000
    assert found[0] == {
        "letter_partition": 0,
        "letter_offset": 0,
        "plan": 4,
        "topic": job,
        "partition": 0,
        "offset": 3,
        "timestamp_ms": 1_000,
        "reason": "no JSON",
        "key": "k",
        "value": "{\\xff",
        "headers": [["a", None]],
    }


def test_redriven_letters_are_not_pending_any_more(bootstrap: str, job: str) -> None:
    result = _dlq("redrive", job, "-b", bootstrap)
    assert (result.exit_code, result.stdout) == (0, "3 records were sent again.\n")

    assert _dlq("redrive", job, "-b", bootstrap).stdout == "0 records were sent again.\n"
    assert _dlq("list", job, "-b", bootstrap).stderr == "No dead letters.\n"
    assert len(_dlq("list", job, "-b", bootstrap, "--all").stdout.splitlines()) == 4


def test_letters_are_dropped_after_a_question(bootstrap: str, job: str) -> None:
    refused = _dlq("drop", job, "-b", bootstrap, answer="n\n")
    assert refused.exit_code == 1
    assert len(_dlq("list", job, "-b", bootstrap).stdout.splitlines()) == 4

    result = _dlq("drop", job, "-b", bootstrap, "--yes")
    assert (result.exit_code, result.stdout) == (0, "3 dead letters are dropped.\n")
    assert _dlq("list", job, "-b", bootstrap).stderr == "No dead letters.\n"


def test_a_job_without_letters_is_told(bootstrap: str) -> None:
    result = _dlq("list", "never-ran", "-b", bootstrap)

    assert result.exit_code == 1
    assert "dead-letter topic never-ran.dlq does not exist" in result.stderr


def test_a_cluster_that_does_not_answer_is_told_with_the_reason() -> None:
    address = f"127.0.0.1:{free_port()}"

    result = _dlq("redrive", "any", "-b", address, "-X", "kafka.default.api.timeout.ms=2000")

    assert result.exit_code == 1
    assert "Connection refused" in result.stderr
