"""DescribeTransactions and ListTransactions (KIP-664, KIP-994)."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from odradek.coordinator.transaction.records import by_topic
from odradek.coordinator.transaction.transaction_metadata import (
    NO_TIME,
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsTransactionState,
)

STATE_LABELS: Final = frozenset(state.label for state in TransactionState)


def describe_transaction(
    transactional_id: str, known: TransactionMetadata | None
) -> DescribeTransactionsTransactionState:
    """One transactional id of DescribeTransactions."""
    if known is None:
        return DescribeTransactionsTransactionState(
            error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
        )
    is_open = known.state is TransactionState.ONGOING or known.state.is_prepared
    return DescribeTransactionsTransactionState(
        transactional_id=transactional_id,
        transaction_state=known.state.label,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_ms if is_open else NO_TIME,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=by_topic(known.partitions),
    )


def list_transactions(
    transactions: Iterable[tuple[str, TransactionMetadata]],
    request: ListTransactionsRequest,
    now_ms: int,
) -> ListTransactionsResponse:
    """The transactions that match all filters. Unknown states match nothing and are returned.

    The handler applies the pattern of version 2, because it reports an invalid one.
    """
    states = set(request.state_filters)
    producer_ids = set(request.producer_id_filters)
    duration_ms = request.duration_filter

    def passes(known: TransactionMetadata) -> bool:
        return (
            (not states or known.state.label in states)
            and (not producer_ids or known.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - known.start_ms > duration_ms)
        )

    return ListTransactionsResponse(
        unknown_state_filters=sorted(states - STATE_LABELS),
        transaction_states=[
            ListTransactionsTransactionState(
                transactional_id=transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.label,
            )
            for transactional_id, known in sorted(transactions, key=itemgetter(0))
            if passes(known)
        ],
    )
