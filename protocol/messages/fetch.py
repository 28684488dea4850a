"""Fetch (1): record batches on their way out of a log, to consumers and followers.

The answer's records are given as buffers and leave as such, unjoined. From version 7 on a request
may say only what has changed since the last one of its session (KIP-227).
"""

from __future__ import annotations

from protocol.schema import (
    array,
    int8,
    int16,
    int32,
    int64,
    optional,
    records,
    string,
    struct,
    uuid,
)
from protocol.types import RecordBuffers, Uuid


@struct
class ReplicaState:
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@struct
class FetchPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, since=9, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(default=-1, since=12)
    log_start_offset: int = int64(default=-1, since=5, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: Uuid = uuid(since=17, tag=0, ignorable=True)
    high_watermark: int = int64(default=2**63 - 1, since=18, tag=1, ignorable=True)


@struct
class FetchTopic:
    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[int] = array(int32)


@struct
class FetchRequest:
    cluster_id: str | None = string(nullable_since=0, default=None, since=12, tag=0, ignorable=True)
    replica_id: int = int32(default=-1, until=14)
    replica_state: ReplicaState | None = optional(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1, since=3, ignorable=True)
    isolation_level: int = int8(since=4, ignorable=True)
    session_id: int = int32(since=7, ignorable=True)
    session_epoch: int = int32(default=-1, since=7, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11, ignorable=True)


@struct
class EpochEndOffset:
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class SnapshotId:
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    producer_id: int = int64()
    first_offset: int = int64()


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1, since=4, ignorable=True)
    log_start_offset: int = int64(default=-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset | None = optional(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = optional(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId | None = optional(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, nullable_since=0, since=4, ignorable=True
    )
    preferred_read_replica: int = int32(default=-1, since=11)
    records: RecordBuffers | None = records(nullable_since=0)


@struct
class FetchableTopicResponse:
    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


@struct
class NodeEndpoint:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


@struct
class FetchResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
