"""The letters of a job are found in its topic, with what they hold and whether some are deleted."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Timer
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.jobs.dead_letter_index import digest_of
from odradek.pipeline.jobs.dead_letter_reader import letter_index, letter_ranges, read_letters
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.rows import BadRecord
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.topic_records import TopicRecords

BAD = BadRecord("orders", 3, 0, 1_000, "no JSON", b"k", None, (("a", b"b"), ("c", None)))


@pytest.fixture
def properties(kafka_broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def topic(properties: dict[str, str]) -> str:
    """Letters of two jobs in one topic, and a message that is none."""
    name = f"letters-{uuid4().hex[:12]}"
    TopicRecords(properties).create(name)
    for group, offsets in (("pipe.one", (7, 9)), ("pipe.two", (7,))):
        with DeadLetterSender(properties, f"{group}{name}", name, timeout_s=30) as sender:
            sender.send(1, [replace(BAD, offset=offset) for offset in offsets])
    TopicRecords(properties).send(name, [b"no letter"])
    return name


def test_letters_of_a_job_are_told_from_those_of_others(cluster: KafkaCluster, topic: str) -> None:
    index = letter_index(cluster, topic, f"pipe.one{topic}")

    assert index.is_complete
    assert index.partitions() == (PartitionName("orders", 3),)
    assert index.offsets(PartitionRange("orders", "", 3, 0, 100)) == [7, 9]
    assert index.digests(PartitionName("orders", 3), 9) == [digest_of(replace(BAD, offset=9))]


def test_all_letters_are_read_from_a_position_on(cluster: KafkaCluster, topic: str) -> None:
    ranges = letter_ranges(cluster, topic)
    found = [*read_letters(cluster, ranges)]

    assert [(each.offset, each.letter.record.offset) for each in found] == [(0, 7), (1, 9), (3, 7)]
    assert all(each.sent_ms > 1_700_000_000_000 for each in found)
    rest = ranges.after({PartitionName(topic, 0): 1})
    assert [each.offset for each in read_letters(cluster, rest)] == [1, 3]
    assert [*read_letters(cluster, ranges.after({PartitionName(topic, 0): 99}))] == []


def test_a_topic_with_a_deleted_start_is_not_complete(
    properties: dict[str, str], cluster: KafkaCluster, topic: str
) -> None:
    TopicRecords(properties).delete_before(topic, 0, 1)
    index = letter_index(cluster, topic, f"pipe.one{topic}")

    assert not index.is_complete
    assert index.offsets(PartitionRange("orders", "", 3, 0, 100)) == [9]


def test_no_topic_is_no_letters(cluster: KafkaCluster) -> None:
    index = letter_index(cluster, "never-created.dlq", "pipe.never")

    assert (index.partitions(), index.is_complete) == ((), True)


def test_a_transaction_that_is_open_is_waited_for(
    properties: dict[str, str], cluster: KafkaCluster, topic: str
) -> None:
    transaction = TopicRecords(properties).open_transaction(f"{topic}-open", topic, [b"open"])
    ended = Timer(0.5, transaction.commit_transaction, [30])
    ended.start()

    (found,) = letter_ranges(cluster, topic).ranges
    ended.join()

    # Three letters and the ends of their two transactions, a message, the open one and its end.
    assert found.end >= 7
