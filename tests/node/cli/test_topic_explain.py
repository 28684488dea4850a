"""`odradek topic explain` against a cluster."""

import os

import pytest
from confluent_kafka import Consumer, Producer

from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


def explained(kafka: Run, topic: str, *arguments: str) -> dict[str, object]:
    document = kafka("topic", "explain", topic, *arguments, "-o", "json").json()
    assert isinstance(document, dict)
    return document


def test_a_healthy_topic_has_no_findings(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "one", "two", "-p", "1")
    ran = kafka("topic", "explain", topic)
    assert (ran.exit_code, ran.stdout.splitlines()[0]) == (0, "No problems found.")
    partitions = explained(kafka, topic)["partitions"]
    assert isinstance(partitions, list)
    assert [row["partition"] for row in partitions] == [0, 1, 2]
    assert (partitions[1]["end_offset"], partitions[1]["stable_offset"]) == (2, 2)


def test_one_partition_is_selected(kafka: Run, topic: str) -> None:
    partitions = explained(kafka, topic, "-p", "2")["partitions"]
    assert isinstance(partitions, list)
    assert [row["partition"] for row in partitions] == [2]
    assert kafka("topic", "explain", topic, "-p", "9").exit_code == 1
    missing = kafka("topic", "explain", "no-such-topic")
    assert missing.exit_code == 1
    assert "no-such-topic" in missing.stderr


def test_readers_of_a_topic_are_shown_with_their_groups(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group_name, "client.id": "app"}
    )
    consumer.subscribe([topic])

    def is_read() -> bool:
        consumer.poll(0.05)
        document = explained(kafka, topic)
        readers, groups = document["readers"], document["groups"]
        assert isinstance(readers, list)
        assert isinstance(groups, list)
        reading = {row["partition"] for row in readers if row["client"] == "app"}
        return reading == {0, 1, 2} and group_name in groups

    wait_until(is_read)
    consumer.close()


def test_an_open_transaction_is_shown_with_its_partition(
    kafka: Run, topic: str, bootstrap: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"x-{topic}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    try:
        ran = kafka("topic", "explain", topic)
        assert f"transaction 'x-{topic}' of producer" in ran.stdout
        partitions = explained(kafka, topic)["partitions"]
        assert isinstance(partitions, list)
        assert partitions[0]["transaction"] == f"x-{topic}"
    finally:
        producer.abort_transaction()
