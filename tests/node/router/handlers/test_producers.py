"""DescribeProducers as clients see it (B.11, KIP-664)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.authorizer import Operation, ResourceType
from odradek.node.router.handlers.producers import handle_describe_producers
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.router_room import RouterRoom
from tests.support.stores import NOW_MS, batch_of


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    room.controller.has("t", 1, 2)
    room.follow()
    yield room
    room.close()


def ask(room: RouterRoom, name: str, *indexes: int) -> list[PartitionResponse]:
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=list(indexes))]
    )
    (topic,) = room.call(handle_describe_producers, request).topics
    assert topic.name == name
    assert [partition.partition_index for partition in topic.partitions] == list(indexes)
    return topic.partitions


def codes(room: RouterRoom, name: str, *indexes: int) -> list[int]:
    return [partition.error_code for partition in ask(room, name, *indexes)]


def test_every_producer_of_a_partition_is_described_by_its_last_batch(room: RouterRoom) -> None:
    room.append(
        "t",
        batch_of(2, timestamp=NOW_MS, producer_id=7, producer_epoch=1, base_sequence=0),
        batch_of(3, timestamp=NOW_MS + 5, producer_id=7, producer_epoch=1, base_sequence=2),
        batch_of(1, timestamp=NOW_MS, producer_id=8, producer_epoch=0, base_sequence=4),
        batch_of(1, timestamp=NOW_MS),
    )
    first, second = ask(room, "t", 0, 1)
    producers = {state.producer_id: state for state in first.active_producers}
    assert producers.keys() == {7, 8}
    assert (producers[7].producer_epoch, producers[7].last_sequence) == (1, 4)
    assert producers[7].last_timestamp == NOW_MS + 5
    assert (producers[8].producer_epoch, producers[8].last_sequence) == (0, 4)
    assert {state.current_txn_start_offset for state in producers.values()} == {-1}
    assert {state.coordinator_epoch for state in producers.values()} == {-1}
    assert (second.error_code, second.active_producers) == (ErrorCode.NONE, [])


def test_an_open_transaction_is_described_by_where_it_began(room: RouterRoom) -> None:
    room.append("t", batch_of(3, timestamp=NOW_MS))
    for sequence in (0, 2):
        batch = batch_of(
            2,
            timestamp=NOW_MS,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        room.append("t", batch)
    ((state,),) = (partition.active_producers for partition in ask(room, "t", 0))
    assert state.current_txn_start_offset == 3


def test_what_does_not_exist_is_unknown(room: RouterRoom) -> None:
    assert codes(room, "t", 0, 2, -1) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert codes(room, "nowhere", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_only_replicas_answer(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("spread", 9, 2)
    room.follow()
    leaders = [partition.leader for partition in room.image.topics_by_name["spread"].partitions]
    wanted = [
        ErrorCode.NONE if leader == 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER for leader in leaders
    ]
    assert codes(room, "spread", 0, 1) == wanted
    room.close()


def test_a_follower_describes_what_it_has_copied(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("copied", 9, 1, factor=2)
    room.follow()
    room.lead("copied", 5)
    batch = batch_of(
        2,
        timestamp=NOW_MS,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    room.append("copied", batch)
    room.lead("copied", 6, leader=1)
    (partition,) = ask(room, "copied", 0)
    assert partition.error_code == ErrorCode.NONE
    assert [state.current_txn_start_offset for state in partition.active_producers] == [0]
    room.close()


def test_a_worker_that_is_gone_leaves_an_error_that_clients_retry(room: RouterRoom) -> None:
    room.fanout.is_away = True
    assert codes(room, "t", 0) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("name", ["t", "nowhere"])
def test_a_topic_that_may_not_be_read_is_refused_whether_it_exists_or_not(
    room: RouterRoom, name: str
) -> None:
    room.deny(Operation.READ, ResourceType.TOPIC, name)
    assert codes(room, name, 0, 9) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
