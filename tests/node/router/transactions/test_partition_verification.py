"""Produce and the transaction coordinator: partitions are added or verified (KIP-890)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.transaction.requests import AddPartitions
from odradek.node.bus.messages import AppendReply
from odradek.node.bus.reply import Reply
from odradek.node.router.transactions.partition_verification import (
    TransactionalProducer,
    produce_error,
)
from odradek.protocol.errors import ErrorCode
from tests.support.transaction_harness import TransactionalClient, TransactionHarness
from tests.support.waiting import wait_until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TransactionHarness]:
    with TransactionHarness(tmp_path) as harness:
        yield harness


def test_an_older_client_must_add_the_partition_first(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
    assert client.produce(0, version=11) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert harness.end_offset() == 0
    assert client.add(0) == {0: ErrorCode.NONE}
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE]


def test_a_batch_after_the_end_opens_no_transaction(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    client.produce(0)
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")
    assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
    assert harness.last_stable_offset() == harness.end_offset() == 2


def test_a_verified_partition_is_not_verified_again(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    assert client.produce(0) == [ErrorCode.NONE]
    harness.transactions.close()
    assert client.produce(0) == [ErrorCode.NONE]


def test_partitions_added_on_this_broker_are_not_verified_again(
    harness: TransactionHarness,
) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    assert client.add(0) == {0: ErrorCode.NONE}
    harness.transactions.close()
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(1) != [ErrorCode.NONE]


def test_a_verification_ends_with_the_transaction(
    harness: TransactionHarness,
) -> None:
    """Older clients have one epoch for all of their transactions."""
    client = TransactionalClient(harness, version=1)
    client.init()
    for _ in range(3):
        assert client.produce(0) == [ErrorCode.INVALID_TXN_STATE]
        client.add(0)
        assert client.produce(0) == [ErrorCode.NONE]
        client.end()
        harness.wait_for("CompleteCommit")


def test_a_verification_that_a_marker_overtakes_is_void(
    harness: TransactionHarness,
) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    partition_verification = harness.services.partition_verification
    partition_verification.on_marker(client.producer_id)
    producer = TransactionalProducer("tx", client.producer_id, client.producer_epoch)
    appended: list[int] = []

    def append(leader_epoch: int) -> Reply[AppendReply]:
        appended.append(leader_epoch)
        return Reply()

    # The coordinator's reply waits for a record that is not committed yet.
    harness.bus.is_away = True
    adding = AddPartitions(*producer, frozenset({("t", 1)}), client_version=1)
    harness.transactions.call("tx", adding)
    answers = [partition_verification.append(producer, ("t", 0), append, version=9, sequence=0)]
    assert not answers[0].is_done
    partition_verification.on_marker(client.producer_id)
    answers.append(partition_verification.append(producer, ("t", 0), append, version=9, sequence=1))
    harness.bus.come_back()

    def is_there() -> bool:
        harness.turn_loop()
        return answers[1].is_done

    wait_until(is_there, what="there is an answer")
    assert [a.result().error_code for a in answers] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert appended == []


def produce_without_a_coordinator(client: TransactionalClient) -> None:
    """The transaction's coordinator is elsewhere when a batch comes, and returns."""
    harness = client.harness
    harness.services.partition_verification.on_marker(client.producer_id)
    shard = harness.transactions.shard_of("tx")
    harness.lead(TRANSACTION_STATE, epoch=5, leader=9, partition=shard)
    assert client.produce(0) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    harness.lead(TRANSACTION_STATE, epoch=6, partition=shard)

    def is_back() -> bool:
        harness.turn_loop(0.001)
        return client.add(0) == {0: ErrorCode.NONE}

    wait_until(is_back, what="the coordinator is back")


def test_a_batch_that_must_be_retried_is_appended_before_later_ones(
    harness: TransactionHarness,
) -> None:
    """If they were appended first, it would be out of order in a partition new to the producer."""
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    produce_without_a_coordinator(client)
    client.sequences[0] = 1
    assert client.produce(0) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    client.sequences[0] = 0
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.produce(0) == [ErrorCode.NONE]
    assert harness.end_offset() == 2


def test_a_batch_that_was_retried_with_another_leader_is_not_waited_for(
    harness: TransactionHarness,
) -> None:
    """librdkafka ends with a fatal error at OUT_OF_ORDER_SEQUENCE_NUMBER."""
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    produce_without_a_coordinator(client)
    # The leader moves, gets the batch with sequence 0, and moves back.
    harness.lead("t", epoch=7, leader=9)
    harness.lead("t", epoch=8)
    client.sequences[0] = 1
    assert client.produce(0) == [ErrorCode.NONE]


def test_a_new_leader_epoch_needs_a_new_verification(
    harness: TransactionHarness,
) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add(0)
    assert client.produce(0) == [ErrorCode.NONE]
    producer = TransactionalProducer("tx", client.producer_id, client.producer_epoch)
    assert harness.services.partition_verification.is_verified(producer, ("t", 0))
    harness.lead("t", epoch=7)
    assert not harness.services.partition_verification.is_verified(producer, ("t", 0))
    assert client.produce(0) == [ErrorCode.NONE]
    assert harness.services.partition_verification.is_verified(producer, ("t", 0))


def test_verification_can_be_disabled(tmp_path: Path) -> None:
    static = {"transaction.partition.verification.enable": "false"}
    with TransactionHarness(tmp_path, static=static) as harness:
        client = TransactionalClient(harness, version=1)
        client.init()
        assert client.produce(0) == [ErrorCode.NONE]


def test_the_broker_adds_partitions_for_newer_clients(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=2)
    client.init()
    assert client.produce(0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    assert harness.state() == "Ongoing"
    assert harness.last_stable_offset() == 0
    assert client.produce(0) == [ErrorCode.NONE]
    assert client.end() == ErrorCode.NONE
    harness.wait_for("CompleteCommit")
    assert harness.last_stable_offset() == harness.end_offset() == 3


def test_a_verification_is_for_one_producer_epoch(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=2)
    client.init()
    client.produce(0)
    zombie = TransactionalClient(harness, version=2)
    zombie.producer_id, zombie.producer_epoch = client.producer_id, client.producer_epoch
    zombie.sequences = {0: 1}
    client.end()
    harness.wait_for("CompleteCommit")
    # The former transaction has ended in the partition.
    assert zombie.produce(0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert zombie.produce(1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.produce(0) == [ErrorCode.NONE]


def test_an_unknown_producer_is_refused(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=2)
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
def test_coordinator_errors_become_produce_errors(
    code: ErrorCode, version: int, expected: ErrorCode
) -> None:
    assert produce_error(code, version) is expected
