"""Produce (0): appends record batches.

A client sends one batch per partition and request (from version 3 on, format v2). The request's
records stay a view of the received frame; they are never copied here.
"""

from __future__ import annotations

from odradek.protocol.messages.responses import LeaderIdAndEpoch, NodeEndpoint
from odradek.protocol.schema import (
    array,
    int16,
    int32,
    int64,
    optional,
    records,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import Request, Uuid


@struct
class PartitionProduceData:
    """The records for one partition: a view of the frame. Null is invalid."""

    index: int = int32()
    records: memoryview | None = records(nullable_since=0)


@struct
class TopicProduceData:
    """The partitions of one topic; v13 names it by its id (KIP-516)."""

    name: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@struct
class ProduceRequest(Request["ProduceResponse"]):
    """Append these batches; `acks` is -1 for all in-sync replicas, 0 for no response, or 1.

    v3 adds the transactional id and record format v2, v7 allows zstd (KIP-110), v9 is flexible,
    from v12 on a transactional request adds its partitions to the transaction implicitly (KIP-890),
    v13 has topic ids.
    """

    transactional_id: str | None = string(nullable_since=0, default=None, since=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    """A record that caused its batch to be rejected (KIP-467)."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable_since=0, default=None)


@struct
class PartitionProduceResponse:
    """The result for one partition; `log_append_time_ms` is -1 unless the topic uses it.

    v2 adds the append time, v5 the log start offset, v8 the rejected records, v10 the current
    leader.
    """

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1, since=2, ignorable=True)
    log_start_offset: int = int64(default=-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, since=8, ignorable=True
    )
    error_message: str | None = string(nullable_since=0, default=None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = optional(
        LeaderIdAndEpoch, since=10, tag=0, ignorable=True
    )


@struct
class TopicProduceResponse:
    """The partitions of one topic; v13 names it by its id."""

    name: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@struct
class ProduceResponse:
    """One result per partition; never sent for acks=0.

    v1 adds the throttle time, v10 the endpoints of leaders it names.
    """

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0, ignorable=True)
