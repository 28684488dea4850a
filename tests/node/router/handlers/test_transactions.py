"""The transaction APIs as clients, brokers and administrators use them (B.6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import RegisterBroker
from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.node.router.handlers.transactions import (
    handle_add_partitions_to_txn,
    handle_describe_transactions,
    handle_init_producer_id,
    handle_list_transactions,
    handle_write_txn_markers,
)
from odradek.node.router.producer_ids import ProducerIds
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from tests.support.controller_harness import topic_id
from tests.support.router_harness import RouterHarness
from tests.support.transaction_harness import TransactionalClient, TransactionHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def init(
    harness: RouterHarness, version: int = 5, transactional_id: str | None = None, **former: int
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    for field, value in former.items():
        setattr(request, field, value)
    return harness.call(handle_init_producer_id, request, version)


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_its_own_id_at_epoch_0(harness: RouterHarness, version: int) -> None:
    answers = [init(harness, version) for _ in range(3)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


def test_a_former_id_is_not_returned(harness: RouterHarness) -> None:
    answer = init(harness, producer_id=7_000_000, producer_epoch=3)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != 7_000_000


def test_ids_are_unique_across_routers_and_restarts(
    harness: RouterHarness,
) -> None:
    mine = init(harness).producer_id
    harness.controller.do(RegisterBroker(0, topic_id(5), "cluster"))
    harness.follow()
    services = harness.services
    services.producer_ids = ProducerIds(services.metadata, services.controller)
    assert init(harness).producer_id >= mine + 1000


def test_one_block_of_ids_serves_many_producers(harness: RouterHarness) -> None:
    for _ in range(1001):
        assert init(harness).error_code == 0
    assert len(harness.link.timeouts_ms) == 2


def test_an_id_needs_idempotent_write_or_write_on_some_topic(harness: RouterHarness) -> None:
    # KIP-679
    harness.deny(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    assert init(harness).error_code == ErrorCode.NONE
    harness.deny(AclOperation.WRITE, ResourceType.TOPIC, "*")
    answer = init(harness)
    assert (answer.error_code, answer.producer_id) == (31, -1)


def test_a_controller_that_does_not_answer_fails_the_request(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    answer = init(harness)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    harness.link.failure = None
    assert init(harness).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("secret", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_invalid_transactional_ids_are_not_retriable(
    harness: RouterHarness, transactional_id: str, code: ErrorCode
) -> None:
    harness.deny(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "secret")
    answer = init(harness, transactional_id=transactional_id)
    assert (answer.error_code, answer.producer_id) == (code, -1)
    assert not ErrorCode(answer.error_code).is_retriable


# -- with a coordinator ---------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[TransactionHarness]:
    with TransactionHarness(tmp_path / "whole") as harness:
        yield harness


def test_a_transactional_id_gets_a_producer_id_and_then_the_next_epoch(
    whole: TransactionHarness,
) -> None:
    client, successor = TransactionalClient(whole, version=2), TransactionalClient(whole, version=2)
    assert client.init() == successor.init() == ErrorCode.NONE
    assert successor.producer_id == client.producer_id
    assert (client.producer_epoch, successor.producer_epoch) == (0, 1)
    assert client.produce(0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.end() == ErrorCode.PRODUCER_FENCED


def test_a_transactional_id_of_another_node_is_not_served_here(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=2)
    whole.drop_topic(TRANSACTION_STATE)
    assert client.init() == ErrorCode.NOT_COORDINATOR


def test_partitions_are_added_all_or_none(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=1)
    client.init()
    assert client.add(0, 9) == {
        0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert whole.state() == "Empty"
    assert client.add(0, topic=TRANSACTION_STATE) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert client.add(0, 1) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert whole.state() == "Ongoing"


@pytest.mark.parametrize(("version", "code"), [(1, 47), (2, 90)])
def test_producer_fenced_is_invalid_producer_epoch_before_version_2(
    whole: TransactionHarness, version: int, code: int
) -> None:
    client = TransactionalClient(whole, version=1)
    client.init()
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=client.producer_id,
        v3_and_below_producer_epoch=5,
        v3_and_below_topics=[TopicPartitions(name="t", partitions=[0])],
    )
    answer = whole.call(handle_add_partitions_to_txn, request, version)
    [found] = answer.results_by_topic_v3_and_below
    assert found.partitions[0].error_code == code


def test_another_broker_adds_and_verifies_several_transactions(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=2)
    client.init()
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=client.producer_id,
                producer_epoch=client.producer_epoch,
                verify_only=verify_only,
                topics=[TopicPartitions(name="t", partitions=partitions)],
            )
            for transactional_id, partitions, verify_only in (
                ("tx", [0], False),
                ("tx", [0, 1], True),
                ("unknown", [0], True),
            )
        ]
    )

    def ask() -> list[dict[int, int]]:
        answer = whole.call(handle_add_partitions_to_txn, request)
        return [
            {
                partition.partition_index: partition.error_code
                for partition in result.topic_results[0].partitions
            }
            for result in answer.results_by_transaction
        ]

    aborted = ErrorCode.TRANSACTION_ABORTABLE
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert ask() == [{0: 0}, {0: 0, 1: aborted}, {0: unknown}]
    whole.deny(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    refused = whole.call(handle_add_partitions_to_txn, request)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_another_broker_cannot_add_unknown_partitions(
    whole: TransactionHarness,
) -> None:
    client = TransactionalClient(whole, version=2)
    client.init()
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id="tx",
                producer_id=client.producer_id,
                producer_epoch=client.producer_epoch,
                topics=[TopicPartitions(name="t", partitions=[0, 99])],
            )
        ]
    )
    answer = whole.call(handle_add_partitions_to_txn, request)
    found = answer.results_by_transaction[0].topic_results[0].partitions
    assert {result.partition_index: result.error_code for result in found} == {
        0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        99: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert whole.state() == "Empty"


def test_a_repeated_end_txn_succeeds(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=1)
    client.init()
    client.add(0)
    assert client.end() == ErrorCode.NONE
    whole.wait_for("CompleteCommit")
    assert client.end() == ErrorCode.NONE
    assert client.end(is_commit=False) == ErrorCode.INVALID_TXN_STATE


def test_transactions_are_listed_and_filtered(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=1)
    client.init()

    def listed(**filters: object) -> tuple[list[str], list[str], int]:
        request = ListTransactionsRequest()
        for name, value in filters.items():
            setattr(request, name, value)
        answer = whole.call(handle_list_transactions, request)
        names = [state.transactional_id for state in answer.transaction_states]
        return names, answer.unknown_state_filters, answer.error_code

    assert listed() == (["tx"], [], 0)
    assert listed(state_filters=["Ongoing", "Strange"]) == ([], ["Strange"], 0)
    assert listed(transactional_id_pattern="t.*") == (["tx"], [], 0)
    assert listed(transactional_id_pattern="x") == ([], [], 0)
    assert listed(transactional_id_pattern="(") == ([], [], ErrorCode.INVALID_REGULAR_EXPRESSION)
    whole.deny(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "tx")
    assert listed() == ([], [], 0)


def test_unknown_transactional_ids_are_not_found(whole: TransactionHarness) -> None:
    request = DescribeTransactionsRequest(transactional_ids=["no", ""])
    states = whole.call(handle_describe_transactions, request).transaction_states
    assert [state.error_code for state in states] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]


def test_an_administrator_can_abort_a_hanging_transaction(whole: TransactionHarness) -> None:
    client = TransactionalClient(whole, version=1)
    client.init()
    client.add(0)
    client.produce(0)

    def mark(topic: str, partition: int, coordinator_epoch: int = 0) -> int:
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=client.producer_id,
                    producer_epoch=client.producer_epoch,
                    topics=[TopicPartitions(name=topic, partitions=[partition])],
                    coordinator_epoch=coordinator_epoch,
                )
            ]
        )
        answer = whole.call(handle_write_txn_markers, request, 1)
        return answer.markers[0].topics[0].partitions[0].error_code

    assert mark("t", 9) == mark("no", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert whole.last_stable_offset() == 0
    assert mark("t", 0, coordinator_epoch=3) == ErrorCode.NONE
    assert whole.last_stable_offset() == 2
    assert mark("t", 0, coordinator_epoch=2) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    whole.deny(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    whole.deny(AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert mark("t", 0, coordinator_epoch=3) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("regex", ["(", r"(a)\1", "(?=a)", "a{1001}", "((a{100}){100}){100}"])
def test_an_invalid_pattern_is_refused(whole: TransactionHarness, regex: str) -> None:
    # KIP-1152
    answer = whole.call(
        handle_list_transactions, ListTransactionsRequest(transactional_id_pattern=regex)
    )
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == []


def test_a_slow_pattern_yields_to_the_event_loop(whole: TransactionHarness) -> None:
    for number in range(50):
        assert init(whole, transactional_id=f"{'a' * 100}-{number}").error_code == 0
    others: list[float] = []

    def take_a_turn() -> None:
        others.append(whole.loop.time())
        whole.loop.call_soon(take_a_turn)

    take_a_turn()
    # More states than RE2 may cache, so that it computes them for each letter.
    request = ListTransactionsRequest(transactional_id_pattern="(.?){900}b")
    before = len(others)
    assert whole.call(handle_list_transactions, request).transaction_states == []
    assert len(others) - before > 10
    request = ListTransactionsRequest(transactional_id_pattern="(a+)+-[0-9]")
    found = whole.call(handle_list_transactions, request).transaction_states
    assert {state.transactional_id[-2:] for state in found} == {f"-{n}" for n in range(10)}


def test_a_pattern_that_would_take_long_with_all_ids_is_refused(
    whole: TransactionHarness,
) -> None:
    slow = ListTransactionsRequest(transactional_id_pattern="((a?){30}){30}b")
    assert init(whole, transactional_id="a" * 100).error_code == 0
    assert whole.call(handle_list_transactions, slow).error_code == ErrorCode.NONE
    for number in range(10):
        assert init(whole, transactional_id=f"{'a' * 30_000}-{number}").error_code == 0
    answer = whole.call(handle_list_transactions, slow)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == []
    fast = ListTransactionsRequest(transactional_id_pattern="a*-[0-9]")
    assert len(whole.call(handle_list_transactions, fast).transaction_states) == 10


def test_very_many_transactions_are_described_in_turns(whole: TransactionHarness) -> None:
    names = [f"t{index}" for index in range(2_000)]
    request = DescribeTransactionsRequest(transactional_ids=names)
    answer = whole.call_in_turns(handle_describe_transactions, request, whole.loop)
    assert [state.transactional_id for state in answer.transaction_states] == names
