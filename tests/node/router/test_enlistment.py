"""Produce and the transaction's coordinator: who must enlist, and who is let in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.router.enlistment import produce_error
from protocol.errors import ErrorCode
from tests.support.transaction_room import Client, TransactionRoom


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
