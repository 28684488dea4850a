"""Share groups (KIP-932): ShareGroupHeartbeat (76), ShareGroupDescribe (77), ShareFetch (78),
ShareAcknowledge (79), and their offsets: Describe (90), Alter (91), DeleteShareGroupOffsets (92).

Version 0 of the first four was early access only and is not served, as in Kafka. Where two APIs use
one struct name for different things, it carries its API's name in front.
"""

from __future__ import annotations

from odradek.protocol.messages.groups import (
    DescribedAssignment,
    DescribedGroupEpochs,
    HeartbeatAssignment,
)
from odradek.protocol.messages.partitions import (
    DetailedPartitionResult,
    TopicIdPartitions,
    TopicName,
    TopicOffsets,
    TopicPartitions,
)
from odradek.protocol.messages.responses import ErrorMessageResponse, NodeEndpoint
from odradek.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nested,
    optional,
    records,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, RecordBuffers, Request, Uuid


@struct
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    """Join (epoch 0), heartbeat or leave (-1); null means that nothing has changed."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable_since=0, default=None)
    subscribed_topic_names: list[str] | None = array(string, nullable_since=0, default=None)


@struct
class ShareGroupHeartbeatResponse(ErrorMessageResponse):
    """The member's epoch, and its assignment when that has changed."""

    member_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = optional(HeartbeatAssignment, nullable_since=0)


@struct
class ShareGroupDescribeRequest(Request["ShareGroupDescribeResponse"]):
    """Describe share groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


@struct
class ShareGroupDescribeMember:
    """A member and its assignment."""

    member_id: str = string()
    rack_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    assignment: DescribedAssignment = nested(DescribedAssignment)


@struct
class ShareGroupDescribedGroup(DescribedGroupEpochs):
    """A group, its epochs and members."""

    assignor_name: str = string()
    members: list[ShareGroupDescribeMember] = array(ShareGroupDescribeMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)


@struct
class ShareGroupDescribeResponse:
    """The requested groups."""

    throttle_time_ms: int = int32()
    groups: list[ShareGroupDescribedGroup] = array(ShareGroupDescribedGroup)


@struct
class AcknowledgementBatch:
    """Acknowledges `[first_offset, last_offset]`: one type for all, or one per offset.

    0 is a gap, 1 accept, 2 release, 3 reject, 4 renew (v2).
    """

    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array(int8)


@struct
class ShareRequestPartition:
    """A partition of ShareFetch or ShareAcknowledge, with acknowledgements."""

    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class ShareRequestTopic:
    """The partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ShareRequestPartition] = array(ShareRequestPartition)


@struct
class ShareFetchRequest(Request["ShareFetchResponse"]):
    """Acquire records. Share sessions are as in Fetch, without an id.

    v2 adds the acquire mode (0 by batch, 1 by record limit; KIP-1206) and the renewal of locks
    (KIP-1222).
    """

    group_id: str | None = string(nullable_since=0, default=None)
    member_id: str | None = string(nullable_since=0)
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1)
    max_records: int = int32()
    batch_size: int = int32()
    share_acquire_mode: int = int8(since=2, ignorable=True)
    is_renew_ack: bool = boolean(since=2)
    topics: list[ShareRequestTopic] = array(ShareRequestTopic)
    forgotten_topics_data: list[TopicIdPartitions] = array(TopicIdPartitions)


@struct
class ShareLeaderIdAndEpoch:
    """The current leader, if it is not this broker."""

    leader_id: int = int32()
    leader_epoch: int = int32()


@struct
class AcquiredRecords:
    """An acquired range `[first_offset, last_offset]` and its delivery count."""

    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


@struct
class ShareFetchPartitionData(DetailedPartitionResult):
    """Whole batches, of which only the acquired ranges belong to the member."""

    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = string(nullable_since=0, default=None)
    current_leader: ShareLeaderIdAndEpoch = nested(ShareLeaderIdAndEpoch)
    records: RecordBuffers = records()
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


@struct
class ShareFetchableTopicResponse:
    """The partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ShareFetchPartitionData] = array(ShareFetchPartitionData)


@struct
class ShareFetchResponse(ErrorMessageResponse):
    """The acquired records and the duration of their locks."""

    acquisition_lock_timeout_ms: int = int32()
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@struct
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    """Acknowledge acquired records; v2 can renew their locks (KIP-1222)."""

    group_id: str | None = string(nullable_since=0, default=None)
    member_id: str | None = string(nullable_since=0)
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(since=2)
    topics: list[ShareRequestTopic] = array(ShareRequestTopic)


@struct
class ShareAcknowledgePartitionData(DetailedPartitionResult):
    """The result for one partition."""

    current_leader: ShareLeaderIdAndEpoch = nested(ShareLeaderIdAndEpoch)


@struct
class ShareAcknowledgeTopicResponse:
    """The partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData)


@struct
class ShareAcknowledgeResponse(ErrorMessageResponse):
    """One result per partition; v2 adds the duration of renewed locks."""

    acquisition_lock_timeout_ms: int = int32(since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@struct
class DescribeShareGroupOffsetsRequestGroup:
    """One group; null topics means all with committed offsets."""

    group_id: str = string()
    topics: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0)


@struct
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    """Describe the start offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(
        DescribeShareGroupOffsetsRequestGroup
    )


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """A start offset, -1 before there is one; v1 adds the lag (KIP-1226)."""

    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(default=-1, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    topic_id: Uuid = uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition
    )


@struct
class DescribeShareGroupOffsetsResponseGroup:
    """The start offsets of one group."""

    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(
        DescribeShareGroupOffsetsResponseTopic
    )
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class DescribeShareGroupOffsetsResponse:
    """The start offsets."""

    throttle_time_ms: int = int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(
        DescribeShareGroupOffsetsResponseGroup
    )


@struct
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    """Move the start offsets of an empty share group."""

    group_id: str = string()
    topics: list[TopicOffsets] = array(TopicOffsets)


@struct
class AlterShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    topic_id: Uuid = uuid()
    partitions: list[DetailedPartitionResult] = array(DetailedPartitionResult)


@struct
class AlterShareGroupOffsetsResponse(ErrorMessageResponse):
    """One result per offset."""

    responses: list[AlterShareGroupOffsetsResponseTopic] = array(
        AlterShareGroupOffsetsResponseTopic
    )


@struct
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    """Delete the offsets of topics of an empty share group."""

    group_id: str = string()
    topics: list[TopicName] = array(TopicName)


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """The result of the removal."""

    topic_name: str = string()
    topic_id: Uuid = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class DeleteShareGroupOffsetsResponse(ErrorMessageResponse):
    """One result per topic."""

    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(
        DeleteShareGroupOffsetsResponseTopic
    )
