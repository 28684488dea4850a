"""Durable state of share groups (KIP-932): InitializeShareGroupState (83), ReadShareGroupState
(84), WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

Brokers send these to the share coordinator; clients do not use them. WriteShareGroupState and
ReadShareGroupStateSummary 0-1: v1 counts completed deliveries (KIP-1226). Initialize, Write and
Delete have the same response.
"""

from __future__ import annotations

from odradek.protocol.schema import array, int8, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class StateBatch:
    """The state of the records `[first_offset, last_offset]`: 0 available, 2 acknowledged,
    4 archived."""

    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


@struct
class InitializeShareGroupStatePartitionData:
    """A partition to initialize; start offset -1 if it is not known yet."""

    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


@struct
class InitializeStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[InitializeShareGroupStatePartitionData] = array(
        InitializeShareGroupStatePartitionData
    )


@struct
class InitializeShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    """Initialize or reset share-partition states."""

    group_id: str = string()
    topics: list[InitializeStateData] = array(InitializeStateData)


@struct
class ShareGroupStatePartitionResult:
    """The result for one partition."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class ShareGroupStateResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ShareGroupStatePartitionResult] = array(ShareGroupStatePartitionResult)


@struct
class ShareGroupStateResponse:
    """One result per partition."""

    results: list[ShareGroupStateResult] = array(ShareGroupStateResult)


@struct
class ReadShareGroupStatePartitionData:
    """A partition, and the epoch of the reading leader; -1 does not fence."""

    partition: int = int32()
    leader_epoch: int = int32()


@struct
class ReadStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ReadShareGroupStatePartitionData] = array(ReadShareGroupStatePartitionData)


@struct
class ReadShareGroupStateRequest(Request["ReadShareGroupStateResponse"]):
    """Read share-partition states, for their leader."""

    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)


@struct
class ReadShareGroupStatePartitionResult(ShareGroupStatePartitionResult):
    """The state of one partition; start offset -1 if it is not known yet."""

    state_epoch: int = int32()
    start_offset: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)


@struct
class ReadStateResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ReadShareGroupStatePartitionResult] = array(ReadShareGroupStatePartitionResult)


@struct
class ReadShareGroupStateResponse:
    """One result per partition."""

    results: list[ReadStateResult] = array(ReadStateResult)


@struct
class WriteShareGroupStatePartitionData:
    """The changes in one partition; start offset -1 if it has not changed."""

    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, since=1, ignorable=True)
    state_batches: list[StateBatch] = array(StateBatch)


@struct
class WriteStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[WriteShareGroupStatePartitionData] = array(WriteShareGroupStatePartitionData)


@struct
class WriteShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    """Write share-partition states."""

    group_id: str = string()
    topics: list[WriteStateData] = array(WriteStateData)


@struct
class DeleteShareGroupStatePartitionData:
    """A partition whose offset or state to delete."""

    partition: int = int32()


@struct
class DeleteStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[DeleteShareGroupStatePartitionData] = array(DeleteShareGroupStatePartitionData)


@struct
class DeleteShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    """Delete share-partition states."""

    group_id: str = string()
    topics: list[DeleteStateData] = array(DeleteStateData)


@struct
class ReadShareGroupStateSummaryRequest(Request["ReadShareGroupStateSummaryResponse"]):
    """Read summaries of share-partition states."""

    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)


@struct
class ReadShareGroupStateSummaryPartitionResult(ShareGroupStatePartitionResult):
    """The summary of one partition; start offset -1 before the first read."""

    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, since=1, ignorable=True)


@struct
class ReadStateSummaryResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ReadShareGroupStateSummaryPartitionResult] = array(
        ReadShareGroupStateSummaryPartitionResult
    )


@struct
class ReadShareGroupStateSummaryResponse:
    """One result per partition."""

    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)
