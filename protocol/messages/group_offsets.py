"""Offsets that groups have committed: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47)."""

from __future__ import annotations

from odradek.protocol.messages.partitions import (
    PartitionResult,
    TopicPartitionNumbers,
    TopicPartitionResults,
)
from odradek.protocol.schema import array, boolean, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class OffsetCommitRequestPartition:
    """An offset to commit: the next one to read.

    Only v1 has a timestamp; v6 adds the leader epoch of the last record read.
    """

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=6, ignorable=True)
    commit_timestamp: int = int64(default=-1, since=1, until=1)
    committed_metadata: str | None = string(nullable_since=0)


@struct
class OffsetCommitRequestTopic:
    """The partitions of one topic; v10 names it by its id (KIP-848)."""

    name: str = string(until=9, ignorable=True)
    topic_id: Uuid = uuid(since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@struct
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Commit offsets of a group.

    v0 has no member; v1 adds generation and member, both defaults for a commit from outside the
    group. v2 to v4 set a retention time, v7 adds static membership, v9 also takes a KIP-848 member
    epoch.
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1, since=1, ignorable=True)
    member_id: str = string(since=1, ignorable=True)
    group_instance_id: str | None = string(nullable_since=0, default=None, since=7)
    retention_time_ms: int = int64(default=-1, since=2, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@struct
class OffsetCommitResponseTopic:
    """The partitions of one topic; v10 names it by its id."""

    name: str = string(until=9, ignorable=True)
    topic_id: Uuid = uuid(since=10, ignorable=True)
    partitions: list[PartitionResult] = array(PartitionResult)


@struct
class OffsetCommitResponse:
    """One result per offset; v3 adds the throttle time."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic; v10 names it by its id."""

    name: str = string(until=9, ignorable=True)
    topic_id: Uuid = uuid(since=10, ignorable=True)
    partition_indexes: list[int] = array(int32)


@struct
class OffsetFetchRequestGroup:
    """One group; null topics means all with committed offsets. v9 adds a KIP-848 member."""

    group_id: str = string()
    member_id: str | None = string(nullable_since=0, default=None, since=9, ignorable=True)
    member_epoch: int = int32(default=-1, since=9, ignorable=True)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, nullable_since=0)


@struct
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Fetch committed offsets.

    From v2 on null topics mean all, v7 can require stable offsets (KIP-447), v8 takes several
    groups, in `groups` instead of the fields above.
    """

    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, nullable_since=2, until=7
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@struct
class OffsetFetchResponsePartition:
    """An offset; -1 if none was committed. v5 adds the leader epoch."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1, since=5, ignorable=True)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


@struct
class OffsetFetchResponseTopic:
    """Partitions of one topic; v10 names it by its id."""

    name: str = string(until=9, ignorable=True)
    topic_id: Uuid = uuid(since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group, or an error."""

    group_id: str = string()
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic)
    error_code: int = int16()


@struct
class OffsetFetchResponse:
    """The committed offsets.

    v2 adds a top-level error, v3 the throttle time, v8 has one result per group.
    """

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


@struct
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Delete offsets of topics that the group is not subscribed to (KIP-496). Never flexible."""

    group_id: str = string()
    topics: list[TopicPartitionNumbers] = array(TopicPartitionNumbers)


@struct
class OffsetDeleteResponse:
    """One result per offset."""

    error_code: int = int16()
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[TopicPartitionResults] = array(TopicPartitionResults)
