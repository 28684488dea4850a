"""Fetch (1): reads record batches, for consumers and followers.

The records of a response are buffers, which are sent without being joined. From v7 on a request can
contain only the changes since the last one of its session (KIP-227).
"""

from __future__ import annotations

from odradek.protocol.messages.responses import LeaderIdAndEpoch, NodeEndpoint
from odradek.protocol.schema import (
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
from odradek.protocol.types import RecordBuffers, Request, Uuid


@struct
class ReplicaState:
    """The fetching follower and its broker epoch (KIP-903); not set by consumers."""

    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@struct
class FetchPartition:
    """One partition to read, from `fetch_offset` on and at most about `partition_max_bytes`.

    v5 adds a follower's log start offset, v9 fencing by leader epoch (KIP-320), v12 the epoch of
    the last record fetched, which finds diverged logs (KIP-595), v17 the follower's directory,
    v18 its high watermark.
    """

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
    """The partitions of one topic; v13 names it by its id (KIP-516)."""

    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    """Partitions that leave the fetch session (KIP-227)."""

    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[int] = array(int32)


@struct
class FetchRequest(Request["FetchResponse"]):
    """Read from these partitions; wait for `min_bytes`, but no longer than `max_wait_ms`.

    v3 adds a limit for the whole response and serves partitions in order, v4 the isolation level
    (1 is read_committed), v7 sessions (id 0 with epoch 0 creates one, epoch -1 uses none), v11 the
    rack (KIP-392), v12 is flexible, v13 has topic ids, v15 moves `replica_id` into `replica_state`.
    """

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
class FetchEpochEndOffset:
    """The end of that epoch in the leader's log: the follower's log diverges there."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class SnapshotId:
    """A snapshot to fetch instead; only used between controllers."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    """An aborted transaction that overlaps the records returned, for the reader to filter."""

    producer_id: int = int64()
    first_offset: int = int64()


@struct
class PartitionData:
    """Whole batches from the one that contains the fetch offset, and the log's offsets.

    v4 adds the last stable offset and, for read_committed, the aborted transactions (null
    otherwise), v5 the log start offset, v11 the preferred read replica, v12 the three tagged
    fields.
    """

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1, since=4, ignorable=True)
    log_start_offset: int = int64(default=-1, since=5, ignorable=True)
    diverging_epoch: FetchEpochEndOffset | None = optional(FetchEpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = optional(
        LeaderIdAndEpoch, since=12, tag=1, ignorable=True
    )
    snapshot_id: SnapshotId | None = optional(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, nullable_since=0, since=4, ignorable=True
    )
    preferred_read_replica: int = int32(default=-1, since=11)
    records: RecordBuffers | None = records(nullable_since=0)


@struct
class FetchableTopicResponse:
    """The partitions of one topic; v13 names it by its id."""

    topic: str = string(until=12, ignorable=True)
    topic_id: Uuid = uuid(since=13, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


@struct
class FetchResponse:
    """The records read; in a session only the partitions that have changed.

    v1 adds the throttle time, v7 the session and its errors, v16 the endpoints of leaders it
    names.
    """

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0, ignorable=True)
