"""Durable state of share groups (KIP-932): InitializeShareGroupState (83), ReadShareGroupState
(84), WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

Brokers ask the share coordinator these; clients have no use for them. WriteShareGroupState and
ReadShareGroupStateSummary 0-1: v1 counts completed deliveries (KIP-1226). Structs that several of
these APIs name alike carry their API's name in front.
"""

from __future__ import annotations

from odradek.protocol.schema import array, int8, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class StateBatch:
    """What is known of the records `[first_offset, last_offset]`: 0 available, 2 acknowledged,
    4 archived."""

    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


@struct
class InitializeShareGroupStatePartitionData:
    """A partition to begin with; start offset -1 if that is not decided yet."""

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
class InitializeShareGroupStateRequest(Request["InitializeShareGroupStateResponse"]):
    """Begin, or begin anew."""

    group_id: str = string()
    topics: list[InitializeStateData] = array(InitializeStateData)


@struct
class InitializeShareGroupStatePartitionResult:
    """What became of one partition."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class InitializeStateResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[InitializeShareGroupStatePartitionResult] = array(
        InitializeShareGroupStatePartitionResult
    )


@struct
class InitializeShareGroupStateResponse:
    """The partitions asked for."""

    results: list[InitializeStateResult] = array(InitializeStateResult)


@struct
class ReadShareGroupStatePartitionData:
    """A partition, and the epoch of the leader that reads; -1 fences nobody."""

    partition: int = int32()
    leader_epoch: int = int32()


@struct
class ReadStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ReadShareGroupStatePartitionData] = array(ReadShareGroupStatePartitionData)


@struct
class ReadShareGroupStateRequest(Request["ReadShareGroupStateResponse"]):
    """What a leader needs to go on."""

    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)


@struct
class ReadShareGroupStatePartitionResult:
    """The state of one partition; start offset -1 if that is not decided yet."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
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
    """The partitions asked for."""

    results: list[ReadStateResult] = array(ReadStateResult)


@struct
class WriteShareGroupStatePartitionData:
    """What has changed in one partition; start offset -1 if that has not."""

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
class WriteShareGroupStateRequest(Request["WriteShareGroupStateResponse"]):
    """Remember what became of records."""

    group_id: str = string()
    topics: list[WriteStateData] = array(WriteStateData)


@struct
class WriteShareGroupStatePartitionResult:
    """What became of one partition."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class WriteStateResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[WriteShareGroupStatePartitionResult] = array(
        WriteShareGroupStatePartitionResult
    )


@struct
class WriteShareGroupStateResponse:
    """The partitions asked for."""

    results: list[WriteStateResult] = array(WriteStateResult)


@struct
class DeleteShareGroupStatePartitionData:
    """A partition to forget."""

    partition: int = int32()


@struct
class DeleteStateData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[DeleteShareGroupStatePartitionData] = array(DeleteShareGroupStatePartitionData)


@struct
class DeleteShareGroupStateRequest(Request["DeleteShareGroupStateResponse"]):
    """Forget partitions."""

    group_id: str = string()
    topics: list[DeleteStateData] = array(DeleteStateData)


@struct
class DeleteShareGroupStatePartitionResult:
    """What became of one partition."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class DeleteStateResult:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[DeleteShareGroupStatePartitionResult] = array(
        DeleteShareGroupStatePartitionResult
    )


@struct
class DeleteShareGroupStateResponse:
    """The partitions asked for."""

    results: list[DeleteStateResult] = array(DeleteStateResult)


@struct
class ReadShareGroupStateSummaryPartitionData:
    """A partition; its leader epoch is not looked at."""

    partition: int = int32()
    leader_epoch: int = int32()


@struct
class ReadStateSummaryData:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ReadShareGroupStateSummaryPartitionData] = array(
        ReadShareGroupStateSummaryPartitionData
    )


@struct
class ReadShareGroupStateSummaryRequest(Request["ReadShareGroupStateSummaryResponse"]):
    """How far are these partitions?"""

    group_id: str = string()
    topics: list[ReadStateSummaryData] = array(ReadStateSummaryData)


@struct
class ReadShareGroupStateSummaryPartitionResult:
    """Where one partition stands; start offset -1 if nobody has begun."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
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
    """The partitions asked for."""

    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)
