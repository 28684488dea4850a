"""DescribeTransactions and ListTransactions."""

import pytest

from odradek.coordinator.transaction.description import describe_transaction, list_transactions
from odradek.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import ListTransactionsRequest

TRANSACTIONS = {
    "open": TransactionMetadata(
        producer_id=1,
        producer_epoch=2,
        timeout_ms=3,
        state=TransactionState.ONGOING,
        partitions=frozenset({("a", 1), ("a", 0), ("b", 0)}),
        last_update_ms=100,
        start_ms=100,
    ),
    "idle": TransactionMetadata(
        producer_id=2,
        producer_epoch=0,
        timeout_ms=3,
        state=TransactionState.COMPLETE_COMMIT,
        last_update_ms=500,
        start_ms=500,
    ),
}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["idle", "open"]),
        ({"state_filters": ["Ongoing"]}, ["open"]),
        ({"producer_id_filters": [2]}, ["idle"]),
        ({"duration_filter": 899}, ["open"]),
        ({"duration_filter": 900}, []),
        ({"state_filters": ["Nonsense"]}, []),
    ],
)
def test_filters(filters: dict[str, object], expected: list[str]) -> None:
    request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]  # by name
    answer = list_transactions(TRANSACTIONS.items(), request, 1_000)
    assert [state.transactional_id for state in answer.transaction_states] == expected
    assert answer.unknown_state_filters == (
        ["Nonsense"] if "Nonsense" in request.state_filters else []
    )


def test_an_open_transaction_has_partitions_and_a_start_time() -> None:
    shown = describe_transaction("open", TRANSACTIONS["open"])
    assert shown.transaction_state == "Ongoing"
    assert shown.transaction_start_time_ms == 100
    assert {topic.name: topic.partitions for topic in shown.topics} == {"a": [0, 1], "b": [0]}


def test_an_idle_transaction_has_no_start_time() -> None:
    shown = describe_transaction("idle", TRANSACTIONS["idle"])
    assert shown.transaction_state == "CompleteCommit"
    assert shown.transaction_start_time_ms == -1


def test_an_unknown_id_is_an_error() -> None:
    assert describe_transaction("no", None).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_states_have_the_names_of_kafkas_tools() -> None:
    assert TransactionState.PREPARE_EPOCH_FENCE.label == "PrepareEpochFence"
