"""Requests to a transaction shard that are no messages of the protocol, and its effects.

Handlers make these after authorization. `WriteMarkers` is an effect; the host sends
`MarkersWritten` when it is carried out.
"""

from typing import NamedTuple

import msgspec

from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeTransactionsTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from odradek.protocol.types import Request


class InitProducer(msgspec.Struct, Request[InitProducerIdResponse], frozen=True, gc=False):
    """InitProducerId with a transactional id. `fresh_producer_id` is an unused producer id."""

    request: InitProducerIdRequest
    fresh_producer_id: int


class AddPartitions(msgspec.Struct, Request[ErrorCode], frozen=True, gc=False):
    """Add partitions to the owner's transaction. `client_version` is the transaction version of the
    client (0 to 2)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition]
    client_version: int


class VerifyPartitions(
    msgspec.Struct, Request[frozenset[Partition] | ErrorCode], frozen=True, gc=False
):
    """Verify that partitions are in the owner's transaction; answered by those that are not."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition]


class EndTransaction(msgspec.Struct, Request[EndTxnResponse], frozen=True, gc=False):
    """EndTxn. `fresh_producer_id` is required if epochs are exhausted (see
    `transaction_metadata.is_epoch_exhausted`), and -1 otherwise."""

    request: EndTxnRequest
    client_version: int
    fresh_producer_id: int


class DescribeTransaction(
    msgspec.Struct, Request[DescribeTransactionsTransactionState], frozen=True, gc=False
):
    """One transactional id of DescribeTransactions."""

    transactional_id: str


class WriteMarkers(NamedTuple):
    """Effect: end the producer's transaction in these partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[Partition]
    transaction_version: int


class MarkersWritten(msgspec.Struct, Request[None], frozen=True, gc=False):
    """All markers of a `WriteMarkers` are written. The response comes when that is recorded."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
