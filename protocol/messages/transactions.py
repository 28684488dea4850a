"""Idempotent and transactional producers: InitProducerId (22), AddPartitionsToTxn (24),
AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27), TxnOffsetCommit (28), and descriptions:
DescribeProducers (61), DescribeTransactions (65), ListTransactions (66).
"""

from __future__ import annotations

from odradek.protocol.messages.partitions import (
    DetailedPartitionResult,
    PartitionResult,
    TopicPartitionResults,
    TopicPartitions,
)
from odradek.protocol.messages.responses import ErrorCodeResponse
from odradek.protocol.schema import array, boolean, int8, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Get a producer id; with a transactional id also abort an open transaction.

    With v3 a producer can continue with its id after an error (KIP-360). v6, two-phase commit, is
    not stable in Kafka.
    """

    transactional_id: str | None = string(nullable_since=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(default=-1, since=3)
    producer_epoch: int = int16(default=-1, since=3)


@struct
class InitProducerIdResponse:
    """The id and its epoch. v4 may answer PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


@struct
class AddPartitionsToTxnTransaction:
    """One transaction of a batch; `verify_only` checks without adding."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[TopicPartitions] = array(TopicPartitions)


@struct
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Add partitions to the transaction.

    v4 is for brokers and takes several transactions (KIP-890); clients use v3 and below.
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, since=4
    )
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[TopicPartitions] = array(TopicPartitions, until=3)


@struct
class AddPartitionsToTxnResult:
    """One transaction of a batch."""

    transactional_id: str = string()
    topic_results: list[TopicPartitionResults] = array(TopicPartitionResults)


@struct
class AddPartitionsToTxnResponse:
    """One result per partition; v4 has one result per transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, since=4
    )
    results_by_topic_v3_and_below: list[TopicPartitionResults] = array(
        TopicPartitionResults, until=3
    )


@struct
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Add the group's offsets to the transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@struct
class AddOffsetsToTxnResponse(ErrorCodeResponse):
    """The result."""


@struct
class EndTxnRequest(Request["EndTxnResponse"]):
    """Commit or abort. From v5 the producer epoch is bumped as well (KIP-890)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@struct
class EndTxnResponse(ErrorCodeResponse):
    """The result; v5 adds producer id and epoch for the next transaction."""

    producer_id: int = int64(default=-1, since=5, ignorable=True)
    producer_epoch: int = int16(default=-1, since=5, ignorable=True)


@struct
class WritableTxnMarker:
    """The end of one transaction: `transaction_result` is true for commit. v2 adds its version."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[TopicPartitions] = array(TopicPartitions)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2, ignorable=True)


@struct
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Write transaction markers; sent by the coordinator to the partition leaders."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


@struct
class WritableTxnMarkerResult:
    """One producer's markers."""

    producer_id: int = int64()
    topics: list[TopicPartitionResults] = array(TopicPartitionResults)


@struct
class WriteTxnMarkersResponse:
    """One result per marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


@struct
class TxnOffsetCommitRequestPartition:
    """An offset to commit with the transaction; v2 adds the leader epoch."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=2, ignorable=True)
    committed_metadata: str | None = string(nullable_since=0)


@struct
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic; v6 names it by its id (KIP-1319)."""

    name: str = string(until=5, ignorable=True)
    topic_id: Uuid = uuid(since=6, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@struct
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Commit a group's offsets with the transaction.

    v3 adds the group's member, to fence members of old generations (KIP-447), v5 adds the group to
    the transaction implicitly (KIP-890), v6 has topic ids and KIP-848 member epochs.
    """

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id_or_member_epoch: int = int32(default=-1, since=3)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(nullable_since=0, default=None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@struct
class TxnOffsetCommitResponseTopic:
    """The partitions of one topic; v6 names it by its id."""

    name: str = string(until=5, ignorable=True)
    topic_id: Uuid = uuid(since=6, ignorable=True)
    partitions: list[PartitionResult] = array(PartitionResult)


@struct
class TxnOffsetCommitResponse:
    """One result per offset."""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


@struct
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Describe the active producers of partitions (KIP-664)."""

    topics: list[TopicPartitions] = array(TopicPartitions)


@struct
class ProducerState:
    """A producer: its last batch, and the start of its open transaction (-1 for none)."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@struct
class DescribeProducersPartitionResponse(DetailedPartitionResult):
    """The producers of one partition."""

    active_producers: list[ProducerState] = array(ProducerState)


@struct
class DescribeProducersTopicResponse:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse)


@struct
class DescribeProducersResponse:
    """The producers found."""

    throttle_time_ms: int = int32()
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse)


@struct
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Describe transactions (KIP-664)."""

    transactional_ids: list[str] = array(string)


@struct
class DescribeTransactionsTransactionState:
    """A transaction; `transaction_start_time_ms` is -1 while none is open."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicPartitions] = array(TopicPartitions)


@struct
class DescribeTransactionsResponse:
    """The transactions."""

    throttle_time_ms: int = int32()
    transaction_states: list[DescribeTransactionsTransactionState] = array(
        DescribeTransactionsTransactionState
    )


@struct
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """List the transactions that this broker coordinates. Empty filters match all.

    v1 filters by age (KIP-994), v2 by a pattern of the transactional id (KIP-1152).
    """

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(default=-1, since=1)
    transactional_id_pattern: str | None = string(nullable_since=0, default=None, since=2)


@struct
class ListTransactionsTransactionState:
    """A transaction in short."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@struct
class ListTransactionsResponse(ErrorCodeResponse):
    """The transactions, and the unknown state filters."""

    unknown_state_filters: list[str] = array(string)
    transaction_states: list[ListTransactionsTransactionState] = array(
        ListTransactionsTransactionState
    )
