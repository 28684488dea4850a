"""DescribeProducers as clients see it (B.11, KIP-664)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.handlers.producers import handle_describe_producers
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 2)
    harness.follow()
    yield harness
    harness.close()


def ask(
    harness: RouterHarness, name: str, *indexes: int
) -> list[DescribeProducersPartitionResponse]:
    request = DescribeProducersRequest(
        topics=[TopicPartitions(name=name, partitions=list(indexes))]
    )
    (topic,) = harness.call(handle_describe_producers, request).topics
    assert topic.name == name
    assert [partition.partition_index for partition in topic.partitions] == list(indexes)
    return topic.partitions


def codes(harness: RouterHarness, name: str, *indexes: int) -> list[int]:
    return [partition.error_code for partition in ask(harness, name, *indexes)]


def test_producers_are_described_by_their_last_batch(
    harness: RouterHarness,
) -> None:
    harness.append(
        "t",
        batch_of(2, timestamp=NOW_MS, producer_id=7, producer_epoch=1, base_sequence=0),
        batch_of(3, timestamp=NOW_MS + 5, producer_id=7, producer_epoch=1, base_sequence=2),
        batch_of(1, timestamp=NOW_MS, producer_id=8, producer_epoch=0, base_sequence=4),
        batch_of(1, timestamp=NOW_MS),
    )
    first, second = ask(harness, "t", 0, 1)
    producers = {state.producer_id: state for state in first.active_producers}
    assert producers.keys() == {7, 8}
    assert (producers[7].producer_epoch, producers[7].last_sequence) == (1, 4)
    assert producers[7].last_timestamp == NOW_MS + 5
    assert (producers[8].producer_epoch, producers[8].last_sequence) == (0, 4)
    assert {state.current_txn_start_offset for state in producers.values()} == {-1}
    assert {state.coordinator_epoch for state in producers.values()} == {-1}
    assert (second.error_code, second.active_producers) == (ErrorCode.NONE, [])


def test_an_open_transaction_has_its_start_offset(harness: RouterHarness) -> None:
    harness.append("t", batch_of(3, timestamp=NOW_MS))
    for sequence in (0, 2):
        batch = batch_of(
            2,
            timestamp=NOW_MS,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        harness.append("t", batch)
    ((state,),) = (partition.active_producers for partition in ask(harness, "t", 0))
    assert state.current_txn_start_offset == 3


def test_an_unknown_topic_or_partition_has_an_error(harness: RouterHarness) -> None:
    assert codes(harness, "t", 0, 2, -1) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert codes(harness, "nowhere", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_only_replicas_answer(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("spread", 9, 2)
    harness.follow()
    leaders = [partition.leader for partition in harness.image.topics_by_name["spread"].partitions]
    wanted = [
        ErrorCode.NONE if leader == 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER for leader in leaders
    ]
    assert codes(harness, "spread", 0, 1) == wanted
    harness.close()


def test_a_follower_describes_its_own_state(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("copied", 9, 1, factor=2)
    harness.follow()
    harness.lead("copied", 5)
    batch = batch_of(
        2,
        timestamp=NOW_MS,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    harness.append("copied", batch)
    harness.lead("copied", 6, leader=1)
    (partition,) = ask(harness, "copied", 0)
    assert partition.error_code == ErrorCode.NONE
    assert [state.current_txn_start_offset for state in partition.active_producers] == [0]
    harness.close()


def test_a_failed_worker_is_a_retriable_error(harness: RouterHarness) -> None:
    harness.worker_client.is_away = True
    assert codes(harness, "t", 0) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("name", ["t", "nowhere"])
def test_a_denied_topic_is_refused_whether_it_exists_or_not(
    harness: RouterHarness, name: str
) -> None:
    harness.deny(AclOperation.READ, ResourceType.TOPIC, name)
    assert codes(harness, name, 0, 9) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
