"""Log offsets: ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23)."""

from __future__ import annotations

from odradek.protocol.messages.partitions import TopicOffsets
from odradek.protocol.schema import array, int8, int16, int32, int64, string, struct
from odradek.protocol.types import Request


@struct
class ListOffsetsPartition:
    """One partition and the timestamp; -1 is the end and -2 the start of the log.

    v4 adds fencing by leader epoch. Negative: -3 the largest timestamp (v7), -4 the local start
    (v8), -5 the last tiered offset (v9), -6 the first pending upload (v11).
    """

    partition_index: int = int32()
    current_leader_epoch: int = int32(default=-1, since=4, ignorable=True)
    timestamp: int = int64()
    max_num_offsets: int = int32(default=1, until=0)


@struct
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@struct
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Find the first offset at or after a timestamp, or a special offset.

    v1 answers with one offset instead of a list, v2 adds the isolation level, v10 a timeout.
    """

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10, ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    """The record found, with its own timestamp; offset and timestamp are -1 if there is none.

    v0 has a list of offsets instead; v4 adds the leader epoch.
    """

    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64, until=0)
    timestamp: int = int64(default=-1, since=1)
    offset: int = int64(default=-1, since=1)
    leader_epoch: int = int32(default=-1, since=4, ignorable=True)


@struct
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@struct
class ListOffsetsResponse:
    """The offsets found; v2 adds the throttle time."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@struct
class OffsetForLeaderPartition:
    """One partition and the epoch to look up; v2 adds fencing by the current epoch."""

    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, since=2, ignorable=True)
    leader_epoch: int = int32()


@struct
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@struct
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Find the end offsets of leader epochs, to detect diverged logs (KIP-101, KIP-320).

    v3 adds the requesting replica; -1 is a consumer, -2 a debugging consumer, which reads beyond
    the high watermark.
    """

    replica_id: int = int32(default=-2, since=3, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@struct
class EpochEndOffset:
    """The largest epoch up to the requested one, and its exclusive end; -1 if there is none.

    v1 adds the epoch.
    """

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1, since=1, ignorable=True)
    end_offset: int = int64(default=-1)


@struct
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


@struct
class OffsetForLeaderEpochResponse:
    """The ends found; v2 adds the throttle time."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


@struct
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Move log start offsets forward (KIP-107)."""

    topics: list[TopicOffsets] = array(TopicOffsets)
    timeout_ms: int = int32()


@struct
class DeleteRecordsPartitionResult:
    """The new log start offset; -1 with an error."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@struct
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@struct
class DeleteRecordsResponse:
    """The new log start offsets."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
