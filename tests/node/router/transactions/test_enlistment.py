"""Produce and the transaction's coordinator: who must enlist, and who is let in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.transaction.requests import AddPartitions
from odradek.node.bus.reply import Reply
from odradek.node.router.fanout import Answer
from odradek.node.router.transactions.enlistment import Producer, produce_error
from odradek.protocol.errors import ErrorCode
from tests.support.transaction_room import Client, TransactionRoom
from tests.support.waiting import wait_until


@pytest.fixture
def room(tmp_path: Path) -> Iterator[TransactionRoom]:
    with TransactionRoom(tmp_path) as room:
        yield room


def test_an_old_client_must_have_enlisted_the_partition(room: TransactionRoom) -> None:
    client = Client(room, version=1)
    client.init()
    assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
    assert client.produce(0, version=11) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert room.end_offset() == 0
    assert client.add(0) == {0: ErrorCode.NONE}
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE]


def test_a_batch_that_comes_after_the_end_opens_nothing(room: TransactionRoom) -> None:
    client = Client(room, version=1)
    client.init()
    client.add(0)
    client.produce(0)
    assert client.end() == ErrorCode.NONE
    room.wait_for("CompleteCommit")
    assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
    assert room.last_stable_offset() == room.end_offset() == 2


def test_a_batch_into_the_open_transaction_needs_nobodys_word(room: TransactionRoom) -> None:
    client = Client(room, version=1)
    client.init()
    client.add(0)
    assert client.produce(0) == [ErrorCode.NONE]
    room.transactions.close()
    assert client.produce(0) == [ErrorCode.NONE]


def test_what_the_coordinator_here_has_told_a_client_is_not_asked_again(
    room: TransactionRoom,
) -> None:
    client = Client(room, version=1)
    client.init()
    assert client.add(0) == {0: ErrorCode.NONE}
    room.transactions.close()
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(1) != [ErrorCode.NONE]


def test_the_word_of_a_coordinator_does_not_outlive_its_transaction(room: TransactionRoom) -> None:
    """Older clients have one epoch for all of their transactions."""
    client = Client(room, version=1)
    client.init()
    for _ in range(3):
        assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
        client.add(0)
        assert client.produce(0) == [ErrorCode.NONE]
        client.end()
        room.wait_for("CompleteCommit")


def test_what_is_asked_before_a_marker_and_answered_behind_it_counts_for_nothing(
    room: TransactionRoom,
) -> None:
    client = Client(room, version=1)
    client.init()
    client.add(0)
    enlistment = room.services.enlistment
    enlistment.ended(client.producer_id)
    producer = Producer("tx", client.producer_id, client.producer_epoch)
    appended: list[int] = []

    def append(leader_epoch: int) -> Reply[Answer]:
        appended.append(leader_epoch)
        return Reply()

    # Behind a record that is not committed yet the coordinator's answer waits.
    room.bus.is_away = True
    adding = AddPartitions(*producer, frozenset({("t", 1)}), client_version=1)
    room.transactions.call("tx", adding)
    answers = [enlistment.append(producer, ("t", 0), append, 9, 0)]
    assert not answers[0].is_done
    enlistment.ended(client.producer_id)
    answers.append(enlistment.append(producer, ("t", 0), append, 9, 1))
    room.bus.come_back()

    def is_there() -> bool:
        room.turn_loop()
        return answers[1].is_done

    wait_until(is_there, what="there is an answer")
    assert [a.result().error_code for a in answers] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert appended == []


def produce_without_a_coordinator(client: Client) -> None:
    """The transaction's coordinator is elsewhere when a batch comes, and returns."""
    room = client.room
    room.services.enlistment.ended(client.producer_id)
    shard = room.transactions.shard_of("tx")
    room.lead(TRANSACTION_STATE, epoch=5, leader=9, partition=shard)
    assert client.produce(0) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    room.lead(TRANSACTION_STATE, epoch=6, partition=shard)

    def is_back() -> bool:
        room.turn_loop(0.001)
        return client.add(0) == {0: ErrorCode.NONE}

    wait_until(is_back, what="the coordinator is back")


def test_a_batch_that_is_to_be_sent_again_comes_before_those_behind_it(
    room: TransactionRoom,
) -> None:
    """Appended first, they would leave no place for it in a partition new to the producer."""
    client = Client(room, version=1)
    client.init()
    client.add(0)
    produce_without_a_coordinator(client)
    client.sequences[0] = 1
    assert client.produce(0) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    client.sequences[0] = 0
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(0) == [ErrorCode.NONE]
    assert room.end_offset() == 2


def test_what_was_said_in_another_leader_epoch_is_asked_for_again(room: TransactionRoom) -> None:
    client = Client(room, version=1)
    client.init()
    client.add(0)
    assert client.produce(0) == [ErrorCode.NONE]
    producer = Producer("tx", client.producer_id, client.producer_epoch)
    assert room.services.enlistment.is_known(producer, ("t", 0))
    room.lead("t", epoch=7)
    assert not room.services.enlistment.is_known(producer, ("t", 0))
    assert client.produce(0) == [ErrorCode.NONE]
    assert room.services.enlistment.is_known(producer, ("t", 0))


def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    static = {"transaction.partition.verification.enable": "false"}
    with TransactionRoom(tmp_path, static=static) as room:
        client = Client(room, version=1)
        client.init()
        assert client.produce(0) == [ErrorCode.NONE]


def test_a_new_client_leaves_it_to_the_broker(room: TransactionRoom) -> None:
    client = Client(room, version=2)
    client.init()
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    assert room.state() == "Ongoing"
    assert room.last_stable_offset() == 0
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.end() == ErrorCode.NONE
    room.wait_for("CompleteCommit")
    assert room.last_stable_offset() == room.end_offset() == 3


def test_a_new_client_is_known_in_its_epoch_only(room: TransactionRoom) -> None:
    client = Client(room, version=2)
    client.init()
    client.produce(0)
    zombie = Client(room, version=2)
    zombie.producer_id, zombie.producer_epoch = client.producer_id, client.producer_epoch
    zombie.sequences = {0: 1}
    client.end()
    room.wait_for("CompleteCommit")
    # Enlisted once, and never more: the partition knows of the end.
    assert zombie.produce(0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert zombie.produce(1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.produce(0) == [ErrorCode.NONE]


def test_a_producer_nobody_knows_is_told_so(room: TransactionRoom) -> None:
    client = Client(room, version=2)
    client.producer_id, client.producer_epoch = 77, 0
    assert client.produce(0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.PRODUCER_FENCED, 13, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_produce_answers_for_the_coordinator(
    code: ErrorCode, version: int, expected: ErrorCode
) -> None:
    assert produce_error(code, version) is expected
