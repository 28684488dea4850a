"""Lag in records, bytes and seconds of groups that jobs have committed to."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.jobs.lag import JobLag, group_lag, job_groups
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.topic_records import TopicRecords

TIMEOUT_S = 30.0
TIME_MS = 1_760_000_000_000


@pytest.fixture
def properties(kafka_broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def topic(properties: dict[str, str]) -> str:
    """10,000 records of 100 bytes in partition 0, a second between each; partition 1 is empty."""
    name = f"lag-{uuid4().hex[:12]}"
    records = TopicRecords(properties)
    records.create(name, partitions=2)
    count = 10_000
    records.send(
        name,
        [b"v" * 90] * count,
        keys=[b"k" * 4] * count,
        headers=[[("h", b"x" * 5), ("n", None)]] * count,
        timestamps=[TIME_MS + 1_000 * number for number in range(count)],
        properties={"batch.num.messages": 200},
    )
    return name


def _lag(cluster: KafkaCluster, properties: dict[str, str], topic: str, at: int) -> list[JobLag]:
    group = f"pipe.{topic}"
    offsets = {PartitionName(topic, 0): at, PartitionName(topic, 1): 0}
    commit_offsets(properties, group, offsets, timeout_s=TIMEOUT_S)
    return group_lag(cluster, properties, group, timeout_s=TIMEOUT_S)


def test_a_long_lag_is_estimated(
    cluster: KafkaCluster, properties: dict[str, str], topic: str
) -> None:
    first, second = _lag(cluster, properties, topic, 2_000)

    assert (first.records, first.committed, first.end, first.lost) == (8_000, 2_000, 10_000, 0)
    assert first.is_estimate
    assert first.bytes == 8_000 * 101
    assert first.seconds == 7_999
    assert (second.records, second.bytes, second.seconds, second.is_estimate) == (0, 0, 0, False)


def test_a_short_lag_is_counted(
    cluster: KafkaCluster, properties: dict[str, str], topic: str
) -> None:
    first, _ = _lag(cluster, properties, topic, 9_990)

    assert (first.records, first.bytes, first.is_estimate) == (10, 10 * 101, False)
    assert first.seconds == 9


def test_what_was_deleted_before_it_was_read_is_lost(
    cluster: KafkaCluster, properties: dict[str, str], topic: str
) -> None:
    TopicRecords(properties).delete_before(topic, 0, 9_500)
    first, _ = _lag(cluster, properties, topic, 9_000)

    assert (first.records, first.lost) == (500, 500)


def test_a_transaction_that_is_open_is_no_lag(
    cluster: KafkaCluster, properties: dict[str, str], topic: str
) -> None:
    transaction = TopicRecords(properties).open_transaction(topic, topic, [b"open"])
    first, _ = _lag(cluster, properties, topic, 10_000)
    transaction.abort_transaction(TIMEOUT_S)

    assert (first.records, first.bytes, first.seconds) == (0, 0, 0)


def test_topics_that_are_gone_are_left_out(
    cluster: KafkaCluster, properties: dict[str, str]
) -> None:
    assert group_lag(cluster, properties, "pipe.never-committed", timeout_s=TIMEOUT_S) == []


def test_groups_of_jobs_are_found(properties: dict[str, str], topic: str) -> None:
    for group in (f"pipe.{topic}", f"pipe.{topic}.verified", f"pipe.{topic}.dlq", topic):
        commit_offsets(properties, group, {PartitionName(topic, 0): 1}, timeout_s=TIMEOUT_S)

    found = [each for each in job_groups(properties, timeout_s=TIMEOUT_S) if topic in each]

    assert found == [f"pipe.{topic}", f"pipe.{topic}.verified"]
