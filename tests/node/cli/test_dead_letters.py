"""`odradek group dlq` against a cluster."""

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e

Headers = list[tuple[str, str | bytes | None]]


@pytest.fixture
def dlq(kafka: Run, group_name: str) -> Iterator[str]:
    """A dead-letter topic of two partitions that the group names."""
    name = f"dlq.{uuid4().hex[:12]}"
    assert kafka("topic", "create", name, "--partitions", "2").exit_code == 0
    key = "errors.deadletterqueue.topic.name"
    changed = kafka("config", "set", "group", group_name, f"{key}={name}")
    assert changed.exit_code == 0, changed.stderr
    yield name
    kafka("topic", "delete", name, "--yes", "--if-exists")


def send(
    bootstrap: str,
    topic: str,
    *records: tuple[int, bytes | None, bytes | None, Headers],
) -> None:
    """Each to its partition, with key, value and headers."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition, key, value, headers in records:
        producer.produce(topic, value, key, partition, headers=headers)
    assert producer.flush(30) == 0


def letter(
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    key: bytes | None = None,
    value: bytes | None = None,
    own: Headers | None = None,
) -> tuple[int, bytes | None, bytes | None, Headers]:
    said = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "group": group,
        "delivery.count": 5,
        "message": "enough",
    }
    headers: Headers = [(f"__dlq.errors.{name}", str(what).encode()) for name, what in said.items()]
    return 0, key, value, [*headers, *(own or [])]


def consumed(kafka: Run, topic: str, partition: int = 0) -> Sequence[dict[str, object]]:
    ran = kafka("consume", f"{topic}:{partition}", "--from", "beginning", "-o", "json")
    return ran.json_lines()


def test_dead_letters_are_listed_with_their_source(
    kafka: Run, bootstrap: str, topic: str, dlq: str, group_name: str
) -> None:
    send(
        bootstrap,
        dlq,
        letter(group_name, topic, 3, key=b"k", value=b"v"),
        letter("another", topic, 4),
        letter(group_name, topic, 5, partition=2),
        (0, None, b"no letter", []),
    )
    rows = kafka("group", "dlq", "list", group_name, "-o", "json").json()
    assert isinstance(rows, list)
    assert [(row["partition"], row["offset"], row["copied"]) for row in rows] == [
        (0, 3, True),
        (2, 5, False),
    ]
    first = rows[0]
    assert (first["topic"], first["deliveries"], first["cause"]) == (topic, 5, "enough")
    assert (first["value"], first["redriven"], first["letter"]) == ("v", False, f"{dlq}-0@0")
    limited = kafka("group", "dlq", "list", group_name, "--limit", "1", "-o", "json").json()
    assert limited == rows[:1]


def test_repeated_redrives_send_each_record_once(
    kafka: Run, bootstrap: str, topic: str, dlq: str, group_name: str
) -> None:
    send(bootstrap, topic, (1, b"k1", b"original", [("own", b"x")]))
    send(
        bootstrap,
        dlq,
        letter(group_name, topic, 7, key=b"k0", value=b"copy", own=[("own", b"y")]),
        letter("another", topic, 8, value=b"not mine"),
        letter(group_name, topic, 0, partition=1),
        letter(group_name, topic, 99, partition=1),
    )
    rehearsed = kafka("group", "dlq", "redrive", group_name, "--dry-run", "-o", "json").json()
    assert isinstance(rehearsed, dict)
    expected = {"letters": 3, "sent": 2, "missing": [f"{topic}-1@99"]}
    assert {name: rehearsed[name] for name in expected} == expected
    done = kafka("group", "dlq", "redrive", group_name)
    assert done.exit_code == 0, done.stderr
    assert "2 of 3 records sent back" in done.stdout
    [copy] = consumed(kafka, topic, 0)
    assert (copy["key"], copy["value"]) == ("k0", "copy")
    assert copy["headers"] == [
        {"key": "own", "value": "y"},
        {"key": "__dlq.redrive.from", "value": f"{dlq}-0@0"},
        {"key": "__dlq.redrive.count", "value": "1"},
    ]
    values = [record["value"] for record in consumed(kafka, topic, 1)]
    assert values == ["original", "original"]
    again = kafka("group", "dlq", "redrive", group_name, "-o", "json").json()
    assert isinstance(again, dict)
    assert (again["letters"], again["sent"]) == (0, 0)
    assert len(consumed(kafka, topic, 0)) == 1
    rows = kafka("group", "dlq", "list", group_name, "-o", "json").json()
    assert isinstance(rows, list)
    assert {row["redriven"] for row in rows} == {True}


def test_a_redrive_with_a_limit_is_resumed(
    kafka: Run, bootstrap: str, topic: str, dlq: str, group_name: str
) -> None:
    letters = [letter(group_name, topic, at, value=b"%d" % at) for at in range(5)]
    send(bootstrap, dlq, *letters)
    for expected in (2, 2, 1, 0):
        ran = kafka("group", "dlq", "redrive", group_name, "--limit", "2", "-o", "json").json()
        assert isinstance(ran, dict)
        assert ran["sent"] == expected
    assert [record["value"] for record in consumed(kafka, topic)] == [str(at) for at in range(5)]


def test_a_group_without_a_dead_letter_topic_is_an_error_with_advice(
    kafka: Run, group_name: str
) -> None:
    ran = kafka("group", "dlq", "list", group_name)
    assert ran.exit_code == 1
    assert "config set group" in ran.stderr


def test_a_topic_that_accepts_no_dead_letters_gives_a_hint(
    kafka: Run, topic: str, group_name: str
) -> None:
    listing = ("group", "dlq", "list", group_name, "--dlq-topic", topic)
    setting = f"{topic} errors.deadletterqueue.group.enable=true"
    assert setting in kafka(*listing).stderr
    assert kafka("config", "set", "topic", *setting.split()).exit_code == 0
    assert setting not in kafka(*listing).stderr


def test_a_dead_letter_topic_that_does_not_exist_is_an_error(kafka: Run, group_name: str) -> None:
    ran = kafka("group", "dlq", "redrive", group_name, "--dlq-topic", "dlq.nowhere")
    assert ran.exit_code == 1
    assert "dlq.nowhere" in ran.stderr
