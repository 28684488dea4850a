"""`odradek group lag` and `odradek group wait` against a cluster."""

import os
import threading
import time

import pytest
from confluent_kafka import Consumer

from odradek.node.cli.group_lag import PartitionLag, sum_lags
from odradek.node.cli.group_queries import COMMITTED_OFFSET, LOG_START, Lag
from odradek.protocol.errors import ErrorCode
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
    assert (found[1]["committed"], found[1]["lag"], found[1]["seconds"]) == (None, 0, 0.0)
    assert [found[n]["counted_from"] for n in (0, 1)] == ["committed offset", "log start"]
    shown = kafka("group", "lag", group)
    assert "COUNTED FROM" in shown.stdout
    assert "counted from the start of the log" in shown.stderr


def test_lag_adds_up_by_topic_and_by_group(kafka: Run, topic: str, group: str) -> None:
    [by_topic] = rows(kafka, group, "--by", "topic")
    assert (by_topic["group"], by_topic["topic"], by_topic["lag"]) == (group, topic, 3)
    of_all = {row["group"]: row["lag"] for row in rows(kafka, "--all")}
    assert of_all[group] == 3


def lag_in(index: int, records: int, **answered: object) -> PartitionLag:
    lag = Lag(partition_index=index, records=records, bytes=70 * records, lag_ms=500 * records)
    for name, value in answered.items():
        setattr(lag, name, value)
    return PartitionLag(
        group="g",
        partition_id=("t", index),
        committed=0,
        counted_from=LOG_START if index else COMMITTED_OFFSET,
        lag=lag,
    )


def test_the_sum_says_what_is_counted_from_the_start_of_the_log() -> None:
    assert sum_lags([lag_in(0, 3), lag_in(1, 2), lag_in(2, 0)], ("group",)) == [
        {
            "group": "g",
            "lag": 5,
            "bytes": 350,
            "seconds": 1.5,
            "uncommitted_partitions": 2,
            "unknown_partitions": 0,
        }
    ]


def test_the_sum_is_not_known_while_a_partition_is_not() -> None:
    silent = lag_in(1, -1, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
    [row] = sum_lags([lag_in(0, 3), silent], ("group", "topic"))
    assert (row["lag"], row["bytes"], row["seconds"]) == (None, None, None)
    assert (row["topic"], row["unknown_partitions"]) == ("t", 1)
    deleted = lag_in(1, -1, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    [row] = sum_lags([lag_in(0, 3), deleted], ("group",))
    assert (row["lag"], row["unknown_partitions"]) == (3, 0)


def test_a_description_has_bytes_and_seconds_too(kafka: Run, topic: str, group: str) -> None:
    documents = kafka("group", "describe", group, "-o", "json").json()
    assert isinstance(documents, list)
    row, *rest = documents[0]["offsets"]
    assert (row["committed"], row["lag"]) == (2, 3)
    assert [(other["committed"], other["lag"]) for other in rest] == [(None, 0)] * 2
    assert documents[0]["total_lag"] == 3
    assert row["bytes"] > 61
    assert 0 < row["seconds"] < 60
    assert "SECONDS" in kafka("group", "describe", group).stdout


def test_lag_of_one_topic(kafka: Run, topic: str, group: str) -> None:
    assert {row["topic"] for row in rows(kafka, group, "-t", topic)} == {topic}
    unread = kafka("group", "lag", group, "-t", "__consumer_offsets")
    assert (unread.exit_code, unread.stdout) == (0, "")


def test_lag_of_a_group_that_does_not_exist_is_an_error(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "lag", group_name)
    assert ran.exit_code == 1
    assert f"{group_name}: no such group" in ran.stderr


def test_names_or_all_are_required(odradek: Run) -> None:
    assert odradek("group", "lag").exit_code == 2
    assert odradek("group", "lag", "g", "--all").exit_code == 2


# -- wait -----------------------------------------------------------------------------------------


def test_a_group_within_the_limit_is_not_waited_for(kafka: Run, group: str) -> None:
    ran = kafka("group", "wait", group, "--lag", "3", "-o", "json")
    assert ran.json() == {
        "group": group,
        "lag": 3,
        "seconds": pytest.approx(0, abs=60),
        "uncommitted_partitions": 2,
    }
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
    assert "nothing is committed, counted from: log start" in ran.stderr
    assert kafka("group", "wait", group, "--lag", "3", "--committed-only").exit_code == 0


def test_waiting_for_a_group_that_does_not_exist_times_out(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "wait", group_name, "--timeout", SHORT_S)
    assert ran.exit_code == 1
    assert f"group {group_name} did not exist" in ran.stderr


def test_waiting_in_a_topic_that_does_not_exist_says_so(kafka: Run, topic: str, group: str) -> None:
    name = f"{topic}x"
    ran = kafka("group", "wait", group, "-t", name, "--timeout", SHORT_S)
    assert ran.exit_code == 1
    assert ran.stderr.rstrip().endswith(f"; {name}: no such topic; did you mean {topic}?")


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
