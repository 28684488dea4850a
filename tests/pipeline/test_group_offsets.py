"""Commits without a member, against a real node."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import (
    commit_offsets,
    committed_offsets,
    committed_with_metadata,
)
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import client_properties
from tests.support.ports import free_port
from tests.support.waiting import wait_until

TOPIC = "group-offsets"
TIMEOUT_S = 30.0
ZERO = PartitionName(TOPIC, 0)
ONE = PartitionName(TOPIC, 1)


@pytest.fixture(scope="module")
def properties(kafka_broker: EmbeddedBroker) -> dict[str, str]:
    kafka_broker.create_topic(TOPIC, partitions=2)
    return client_properties({}, bootstrap_servers=kafka_broker.bootstrap_servers)


def test_what_was_committed_is_fetched(properties: dict[str, str]) -> None:
    commit_offsets(properties, "fetched", {ZERO: 7, ONE: 0}, timeout_s=TIMEOUT_S)
    commit_offsets(properties, "fetched", {ZERO: 8}, timeout_s=TIMEOUT_S)
    found = committed_offsets(properties, "fetched", [ZERO, ONE], timeout_s=TIMEOUT_S)
    assert found == {ZERO: 8, ONE: 0}


def test_partitions_without_an_offset_are_left_out(properties: dict[str, str]) -> None:
    commit_offsets(properties, "partly", {ONE: 3}, timeout_s=TIMEOUT_S)
    found = committed_offsets(properties, "partly", [ZERO, ONE], timeout_s=TIMEOUT_S)
    assert found == {ONE: 3}
    assert committed_offsets(properties, "never", [ZERO], timeout_s=TIMEOUT_S) == {}


def test_all_offsets_of_a_group_are_fetched_with_their_metadata(properties: dict[str, str]) -> None:
    commit_offsets(properties, "whole", {ZERO: 1, ONE: 2}, timeout_s=TIMEOUT_S)
    found = committed_with_metadata(properties, "whole", None, timeout_s=TIMEOUT_S)
    assert found == {ZERO: (1, ""), ONE: (2, "")}


def test_offsets_in_an_open_transaction_are_waited_for(properties: dict[str, str]) -> None:
    """With the older offset a restarted task would take what it has committed for missing."""
    commit_offsets(properties, "pending", {ZERO: 1}, timeout_s=TIMEOUT_S)
    producer = Producer({**properties, "transactional.id": "pending"})
    consumer = Consumer({**properties, "group.id": "pending"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(*ZERO, 2)], consumer.consumer_group_metadata(), TIMEOUT_S
    )
    consumer.close()
    with pytest.raises(PipelineError, match="a transaction with offsets of this group is open"):
        committed_offsets(properties, "pending", [ZERO], timeout_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(committed_offsets, properties, "pending", [ZERO], timeout_s=TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        assert waiting.result() == {ZERO: 2}


def test_nothing_to_commit_is_no_request(properties: dict[str, str]) -> None:
    nowhere = {**properties, "bootstrap.servers": f"127.0.0.1:{free_port()}"}
    commit_offsets(nowhere, "empty", {}, timeout_s=0.1)
    assert committed_offsets(nowhere, "empty", [], timeout_s=0.1) == {}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_told(properties: dict[str, str], protocol: str) -> None:
    group = f"with-members-{protocol}"
    consumer = Consumer({**properties, "group.id": group, "group.protocol": protocol})
    try:
        consumer.subscribe([TOPIC])
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), what="an assignment")
        with pytest.raises(PipelineError, match="the group has members") as refused:
            commit_offsets(properties, group, {ZERO: 1}, timeout_s=TIMEOUT_S)
        assert f"group {group}" in str(refused.value)
        assert "stop the consumers" in str(refused.value)
    finally:
        consumer.close()


def test_an_unknown_topic_is_told(properties: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match=r"no-such-topic-0: .*[Uu]nknown topic"):
        commit_offsets(
            properties, "unknown", {PartitionName("no-such-topic", 0): 1}, timeout_s=TIMEOUT_S
        )


def test_a_cluster_that_does_not_answer_is_told(properties: dict[str, str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    nowhere = {**properties, "bootstrap.servers": address}
    with pytest.raises(PipelineError, match=f"no answer from {address} .*refused"):
        commit_offsets(nowhere, "unreachable", {ZERO: 1}, timeout_s=1.0)
    with pytest.raises(PipelineError, match="cannot fetch offsets of group unreachable"):
        committed_offsets(nowhere, "unreachable", [ZERO], timeout_s=1.0)
