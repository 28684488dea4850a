"""`odradek group lag` and `odradek group wait` against a cluster."""

import os
import threading
import time

import pytest
from confluent_kafka import Consumer

from odradek.node.cli.group_lag import sum_lags
from odradek.node.cli.output import Json
from tests.node.cli.conftest import Run

SHORT_S = "2"
"""A timeout for waits that must fail; long enough for a busy machine to answer."""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


@pytest.fixture
def group(kafka: Run, topic: str, group_name: str) -> str:
    """A group without members, at offset 2 of 5 in partition 0."""
    kafka("produce", topic, *(f"v{number}" for number in range(2)), "-p", "0")
    moved = kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    assert moved.exit_code == 0, moved.stderr
    kafka("produce", topic, *(f"v{number}" for number in range(3)), "-p", "0")
    return group_name


def rows(kafka: Run, *arguments: str) -> list[dict[str, object]]:
    found = kafka("group", "lag", *arguments, "-o", "json").json()
    assert isinstance(found, list)
    return found


def test_the_lag_of_an_empty_group_is_in_records_bytes_and_seconds(
    kafka: Run, topic: str, group: str
) -> None:
    found = {row["partition"]: row for row in rows(kafka, group)}
    assert (found[0]["committed"], found[0]["end_offset"], found[0]["lag"]) == (2, 5, 3)
    size, age = found[0]["bytes"], found[0]["seconds"]
    assert isinstance(size, int)
    assert size > 61
    assert isinstance(age, float)
    assert 0 < age < 60
    assert (found[1]["committed"], found[1]["lag"], found[1]["seconds"]) == (None, None, None)


def test_lag_adds_up_by_topic_and_by_group(kafka: Run, topic: str, group: str) -> None:
    [by_topic] = rows(kafka, group, "--by", "topic")
    assert (by_topic["group"], by_topic["topic"], by_topic["lag"]) == (group, topic, 3)
    of_all = {row["group"]: row["lag"] for row in rows(kafka, "--all")}
    assert of_all[group] == 3


def test_where_nothing_is_committed_the_sum_is_not_known_either() -> None:
    nothing: dict[str, Json] = {"group": "g", "lag": None, "bytes": None, "seconds": None}
    some: dict[str, Json] = {"group": "g", "lag": 3, "bytes": 210, "seconds": 1.5}
    assert sum_lags([nothing, nothing], ("group",)) == [nothing]
    assert sum_lags([nothing, some, some], ("group",)) == [
        {"group": "g", "lag": 6, "bytes": 420, "seconds": 1.5}
    ]


def test_a_description_has_bytes_and_seconds_too(kafka: Run, topic: str, group: str) -> None:
    documents = kafka("group", "describe", group, "-o", "json").json()
    assert isinstance(documents, list)
    [row] = documents[0]["offsets"]
    assert (row["committed"], row["lag"]) == (2, 3)
    assert row["bytes"] > 61
    assert 0 < row["seconds"] < 60
    assert "SECONDS" in kafka("group", "describe", group).stdout


def test_lag_of_one_topic(kafka: Run, topic: str, group: str) -> None:
    assert {row["topic"] for row in rows(kafka, group, "-t", topic)} == {topic}
    missing = kafka("group", "lag", group, "-t", "no-such-topic")
    assert (missing.exit_code, missing.stdout) == (0, "")


def test_lag_of_a_group_that_does_not_exist_is_an_error(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "lag", group_name)
    assert ran.exit_code == 1
    assert f"Group {group_name} not found" in ran.stderr


def test_names_or_all_are_required(odradek: Run) -> None:
    assert odradek("group", "lag").exit_code == 2
    assert odradek("group", "lag", "g", "--all").exit_code == 2


# -- wait -----------------------------------------------------------------------------------------


def test_a_group_within_the_limit_is_not_waited_for(kafka: Run, group: str) -> None:
    ran = kafka("group", "wait", group, "--lag", "3", "-o", "json")
    assert ran.json() == {"group": group, "lag": 3, "seconds": pytest.approx(0, abs=60)}
    assert kafka("group", "wait", group, "--lag-seconds", "60").exit_code == 0


def test_the_timeout_names_the_reason(kafka: Run, topic: str, group: str) -> None:
    ran = kafka("group", "wait", group, "--timeout", SHORT_S)
    assert ran.exit_code == 1
    assert f"{topic}-0: 3 records behind" in ran.stderr
    assert "offset 2 since the wait began" in ran.stderr
    assert "the group has no members" in ran.stderr


def test_partitions_without_a_commit_count_as_unread(kafka: Run, topic: str, group: str) -> None:
    kafka("produce", topic, "one", "-p", "1")
    ran = kafka("group", "wait", group, "--lag", "3", "--timeout", SHORT_S)
    assert ran.exit_code == 1
    assert f"{topic}-1: 1 records behind" in ran.stderr
    assert kafka("group", "wait", group, "--lag", "3", "--committed-only").exit_code == 0


def test_waiting_for_a_group_that_does_not_exist_times_out(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "wait", group_name, "--timeout", SHORT_S)
    assert ran.exit_code == 1
    assert f"group {group_name} did not exist" in ran.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_wait_ends_when_a_later_consumer_has_caught_up(
    kafka: Run, topic: str, group_name: str, bootstrap: str, protocol: str
) -> None:
    for index in range(3):
        kafka("produce", topic, *(f"v{number}" for number in range(20)), "-p", str(index))
    is_over = threading.Event()
    polled_at: list[float] = []

    def consume() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_name,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        while not is_over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                polled_at.append(time.monotonic())
                consumer.commit(message=message, asynchronous=False)
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        ran = kafka("group", "wait", group_name, "--timeout", "30")
        assert ran.exit_code == 0, ran.stderr
        assert ran.stdout == f"{group_name} is 0 records and 0.0 s behind\n"
        assert len(polled_at) == 60
    finally:
        is_over.set()
        thread.join()
