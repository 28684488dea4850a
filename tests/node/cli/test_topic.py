"""`odradek topic` against a cluster."""

import re

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


def test_a_created_topic_is_listed_and_described(kafka: Run, topic: str) -> None:
    listed = kafka("topic", "list", topic, "-o", "json").json()
    assert listed == [
        {"topic": topic, "partitions": 3, "replication_factor": 1, "under_replicated": 0}
    ]
    described = kafka("topic", "describe", topic, "-o", "json").json()
    assert isinstance(described, list)
    assert described[0]["topic"] == topic
    assert [row["partition"] for row in described[0]["partitions"]] == [0, 1, 2]
    assert {row["records"] for row in described[0]["partitions"]} == {0}


def test_creation_takes_settings_and_describe_shows_them(kafka: Run, topic: str) -> None:
    name = f"{topic}-configured"
    kafka("topic", "create", name, "-c", "retention.ms=60000", "-c", "cleanup.policy=compact")
    described = kafka("topic", "describe", name, "-o", "json").json()
    assert isinstance(described, list)
    assert described[0]["configs"] == {"retention.ms": "60000", "cleanup.policy": "compact"}
    kafka("topic", "delete", name, "-y")


def test_topic_ids_are_written_as_kafka_writes_them(kafka: Run, topic: str) -> None:
    """Url-safe base64 (org.apache.kafka.common.Uuid): to be pasted into any other tool."""
    names = [f"{topic}-{index}" for index in range(8)]
    kafka("topic", "create", *names)
    described = kafka("topic", "describe", *names, "-o", "json").json()
    assert isinstance(described, list)
    for document in described:
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", document["topic_id"])
    kafka("topic", "delete", *names, "-y")


def test_an_existing_topic_is_an_error_without_if_not_exists(kafka: Run, topic: str) -> None:
    refused = kafka("topic", "create", topic)
    assert refused.exit_code == 1
    assert "TOPIC_ALREADY_EXISTS" in refused.stderr
    accepted = kafka("topic", "create", topic, "--if-not-exists", "-o", "json").json()
    assert accepted == {"created": [], "existing": [topic], "dry_run": False}


def test_a_dry_run_creates_nothing(kafka: Run, topic: str) -> None:
    name = f"{topic}-dry"
    assert "Would create" in kafka("topic", "create", name, "--dry-run").stdout
    assert kafka("topic", "list", name, "-o", "json").json() == []


def test_a_wrong_setting_is_refused_with_its_key(kafka: Run, topic: str) -> None:
    ran = kafka("topic", "create", f"{topic}-wrong", "-c", "retention.ms=soon")
    assert ran.exit_code == 1
    assert "retention.ms" in ran.stderr


def test_partitions_are_added_and_never_removed(kafka: Run, topic: str) -> None:
    assert kafka("topic", "alter", topic, "-p", "5").exit_code == 0
    listed = kafka("topic", "list", topic, "-o", "json").json()
    assert isinstance(listed, list)
    assert listed[0]["partitions"] == 5
    fewer = kafka("topic", "alter", topic, "-p", "2")
    assert fewer.exit_code == 1
    assert "INVALID_PARTITIONS" in fewer.stderr


@pytest.mark.usefixtures("keeps_old_records")
def test_offsets_are_shown_at_start_end_and_a_time(kafka: Run, topic: str) -> None:
    for timestamp in ("1000", "2000", "3000"):
        kafka("produce", topic, "v", "-p", "1", "--timestamp", timestamp)
    rows = kafka("topic", "offsets", f"{topic}:1", "--at", "1500", "-o", "json").json()
    assert rows == [
        {
            "topic": topic,
            "partition": 1,
            "start_offset": 0,
            "end_offset": 3,
            "records": 3,
            "offset_at_time": 1,
        }
    ]


def test_a_selected_partition_that_does_not_exist_is_named(kafka: Run, topic: str) -> None:
    ran = kafka("topic", "offsets", f"{topic}:7")
    assert ran.exit_code == 1
    assert "-7: no such partition" in ran.stderr


def test_trim_deletes_records_below_an_offset(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "a", "b", "c", "-p", "0")
    rows = kafka("topic", "trim", f"{topic}:0", "--before", "2", "-y", "-o", "json").json()
    assert rows == [{"topic": topic, "partition": 0, "start_offset": 2}]
    assert kafka("consume", f"{topic}:0").stdout == "c\n"


def test_delete_asks_first_and_reports_what_is_missing(kafka: Run, topic: str) -> None:
    assert kafka("topic", "delete", topic, stdin="n\n").exit_code == 1
    assert kafka("topic", "delete", topic, "-y").stdout == f"Deleted {topic}\n"
    again = kafka("topic", "delete", topic, "-y")
    assert again.exit_code == 1
    assert "no such topic" in again.stderr
    assert kafka("topic", "delete", topic, "-y", "--if-exists").exit_code == 0


def test_missing_topics_are_an_error_after_the_others_are_described(kafka: Run, topic: str) -> None:
    ran = kafka("topic", "describe", topic, f"{topic}-not", "-o", "json")
    assert ran.exit_code == 1
    assert f'"topic": "{topic}"' in ran.stdout
    assert f"{topic}-not: " in ran.stderr
