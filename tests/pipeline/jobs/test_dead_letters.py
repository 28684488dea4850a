"""Dead letters: they keep all of the record, and those of a plan are sent once."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.dead_letters import (
    DeadLetterSender,
    JobLetter,
    letter_headers,
    read_letter,
)
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.tables.rows import BadRecord
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0


def bad(offset: int, value: bytes | None = b"{") -> BadRecord:
    headers = (("trace", b"1"), ("__dlq.errors.topic", b"of another queue"), ("none", None))
    return BadRecord("orders", 3, offset, -1, "no JSON: é", b"key", value, headers)


def test_a_letter_is_the_record_again() -> None:
    letter = JobLetter(bad(17), "pipe.archive", 4)
    headers = letter_headers(letter)
    assert ("__dlq.errors.offset", b"17") in headers
    assert read_letter(b"key", b"{", headers) == letter
    assert read_letter(b"key", b"{", headers[1:]) == JobLetter(
        BadRecord("orders", 3, 17, -1, "no JSON: é", b"key", b"{", bad(17).headers[1:]),
        "pipe.archive",
        4,
    )


LETTER = letter_headers(JobLetter(bad(1), "g", 1))


@pytest.mark.parametrize("headers", [[], [("trace", b"1")], LETTER[:-1]])
def test_what_others_sent_is_no_letter(headers: list[tuple[str, bytes | None]]) -> None:
    assert read_letter(b"key", b"value", headers) is None


@pytest.fixture
def bootstrap(kafka_broker: EmbeddedBroker) -> str:
    return str(kafka_broker.bootstrap_servers)


def sender(bootstrap: str, name: str = "archive") -> DeadLetterSender:
    properties = {"bootstrap.servers": bootstrap, "log_level": "0"}
    return DeadLetterSender(properties, f"pipe.{name}", f"{name}.dlq", timeout_s=TIMEOUT_S)


def letters_in(bootstrap: str, topic: str, count: int) -> Iterator[JobLetter | None]:
    """The committed messages of the topic, once there are `count`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
        }
    )
    partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found = []

    def read() -> bool:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            sent = message.headers()
            assert isinstance(sent, list)
            headers = [(name, value) for name, value in sent if not isinstance(value, str)]
            found.append(read_letter(message.key(), message.value(), headers))
        return len(found) >= count

    wait_until(read)
    assert consumer.poll(0.5) is None
    consumer.close()
    yield from found


@pytest.mark.e2e
def test_letters_of_a_plan_are_sent_once(bootstrap: str) -> None:
    with sender(bootstrap) as first:
        first.send(1, [bad(1), bad(2)])
        first.send(2, [])
    # The plan runs again after a crash, and so does a whole process.
    with sender(bootstrap) as again:
        again.send(1, [bad(1), bad(2)])
        again.send(2, [bad(8)])
        again.send(3, [bad(9, value=None)])
    found = [*letters_in(bootstrap, "archive.dlq", 3)]
    assert sorted(found, key=str) == sorted(
        [
            JobLetter(bad(1), "pipe.archive", 1),
            JobLetter(bad(2), "pipe.archive", 1),
            JobLetter(bad(9, value=None), "pipe.archive", 3),
        ],
        key=str,
    )


@pytest.mark.e2e
def test_an_older_process_of_the_job_is_fenced(bootstrap: str) -> None:
    with sender(bootstrap, "fenced") as older, sender(bootstrap, "fenced") as newer:
        newer.send(1, [bad(1)])
        with pytest.raises(PipelineError, match=r"another process of the job pipe.fenced"):
            older.send(2, [bad(2)])
    with (
        sender(bootstrap, "fenced") as older,
        sender(bootstrap, "fenced"),
        pytest.raises(PipelineError, match=r"another process of the job pipe.fenced"),
    ):
        older.send(2, repeat(bad(2), 200_000))  # It hears of it before it has sent all.
    assert [*letters_in(bootstrap, "fenced.dlq", 1)] == [JobLetter(bad(1), "pipe.fenced", 1)]


@pytest.mark.e2e
def test_letters_are_larger_than_records_may_be(bootstrap: str) -> None:
    with sender(bootstrap, "large") as large:
        large.send(1, [bad(1, b"x" * 1_048_000)])
    assert len([*letters_in(bootstrap, "large.dlq", 1)]) == 1


def test_letters_are_sent_when_a_node_is_back_that_was_killed_between_two_plans(
    tmp_path: Path,
) -> None:
    """librdkafka knows the group's coordinator from the first plan."""
    with EmbeddedBroker(tmp_path, timeout_s=60.0) as node:
        properties = client_properties({}, bootstrap_servers=node.bootstrap_servers)
        sending = DeadLetterSender(properties, "pipe.killed", "killed.dlq", timeout_s=TIMEOUT_S)
        sending.send(1, [bad(1)])
        node.kill()
        # It fails by waiting for ever, and must not keep the tests from ending then.
        second = Thread(target=sending.send, args=(2, [bad(2)]), daemon=True)
        second.start()
        node.start()
        second.join(2 * TIMEOUT_S)
        assert not second.is_alive()
        letters = letters_in(node.bootstrap_servers, "killed.dlq", 2)
        assert [each.record.offset for each in letters if each is not None] == [1, 2]
