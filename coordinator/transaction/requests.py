"""What a transaction shard is asked besides the messages of the protocol, and what it asks for.

Handlers turn requests into these once they have checked who may; `WriteMarkers` is what the shell
is told to do, `MarkersWritten` how it says that it is done.
"""

from typing import NamedTuple

from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest


class InitProducer(NamedTuple):
    """InitProducerId with a transactional id; answered by InitProducerIdResponse.
    `fresh_producer_id` has never been given to anybody."""

    request: InitProducerIdRequest
    fresh_producer_id: int


class AddPartitions(NamedTuple):
    """Let partitions take part in the owner's transaction; answered by an ErrorCode.
    `client_version` is the transaction version that the client speaks (0 to 2)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition]
    client_version: int


class VerifyPartitions(NamedTuple):
    """Whether partitions take part in the owner's transaction; answered by an ErrorCode, or by
    those that do not."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition]


class EndTransaction(NamedTuple):
    """EndTxn; answered by EndTxnResponse. `fresh_producer_id` is needed if epochs run out (see
    `transaction.is_epoch_exhausted`), and -1 otherwise."""

    request: EndTxnRequest
    client_version: int
    fresh_producer_id: int


class DescribeTransaction(NamedTuple):
    """Answered by DescribeTransactionsTransactionState."""

    transactional_id: str


class WriteMarkers(NamedTuple):
    """Instruction to the shell: end the producer's transaction in these partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[Partition]
    transaction_version: int


class MarkersWritten(NamedTuple):
    """What `WriteMarkers` asked for is done. Answered when that is recorded."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
