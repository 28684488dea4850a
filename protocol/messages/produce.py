"""Produce (0): record batches on their way into a log.

A client sends one batch per partition and request (from version 3 on, format v2). The request's
records stay a view of the received frame; nothing in this family ever copies them.
"""

from __future__ import annotations

from protocol.schema import array, int16, int32, int64, optional, records, string, struct, uuid
from protocol.types import Uuid


@struct
class PartitionProduceData:
    index: int = int32()
    records: memoryview | None = records(nullable_since=0)


@struct
class TopicProduceData:
    name: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@struct
class ProduceRequest:
    transactional_id: str | None = string(nullable_since=0, default=None, since=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable_since=0, default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class PartitionProduceResponse:
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1, since=2, ignorable=True)
    log_start_offset: int = int64(default=-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, since=8, ignorable=True
    )
    error_message: str | None = string(nullable_since=0, default=None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = optional(LeaderIdAndEpoch, since=10, tag=0)


@struct
class TopicProduceResponse:
    name: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@struct
class NodeEndpoint:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


@struct
class ProduceResponse:
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
