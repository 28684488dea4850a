"""Streams groups (KIP-1071): StreamsGroupHeartbeat (88), StreamsGroupDescribe (89),
StreamsGroupTopologyDescriptionUpdate (93).

Where two APIs use one struct name for different things, it carries its API's name in front.
"""

from __future__ import annotations

from odradek.protocol.messages.groups import DescribedGroupEpochs
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nested,
    optional,
    string,
    struct,
    uint16,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, Request


@struct
class KeyValue:
    """A key and a value."""

    key: str = string()
    value: str = string()


@struct
class TopicInfo:
    """An internal topic of the topology; with 0 partitions the broker decides the number."""

    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[KeyValue] = array(KeyValue)


@struct
class CopartitionGroup:
    """Topics that need equal partition counts, as indexes into the subtopology's lists."""

    source_topics: list[int] = array(int16)
    source_topic_regex: list[int] = array(int16)
    repartition_source_topics: list[int] = array(int16)


@struct
class StreamsGroupHeartbeatSubtopology:
    """A part of the topology whose tasks run together."""

    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    source_topic_regex: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_sink_topics: list[str] = array(string)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


@struct
class StreamsGroupHeartbeatTopology:
    """The whole topology, sent when joining."""

    epoch: int = int32()
    subtopologies: list[StreamsGroupHeartbeatSubtopology] = array(StreamsGroupHeartbeatSubtopology)


@struct
class TaskIds:
    """Tasks of one subtopology, one for each partition number."""

    subtopology_id: str = string()
    partitions: list[int] = array(int32)


@struct
class StreamsGroupEndpoint:
    """A member's address for interactive queries."""

    host: str = string()
    port: int = uint16()


@struct
class TaskOffset:
    """The offset of a task's state."""

    subtopology_id: str = string()
    partition: int = int32()
    offset: int = int64()


@struct
class StreamsGroupHeartbeatRequest(Request["StreamsGroupHeartbeatResponse"]):
    """Join (epoch 0), heartbeat, leave (-1) or leave as a static member (-2).

    Null means that a field has not changed. v1 only changes the response.
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    endpoint_information_epoch: int = int32()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    topology: StreamsGroupHeartbeatTopology | None = optional(
        StreamsGroupHeartbeatTopology, nullable_since=0
    )
    active_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    standby_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    warmup_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    process_id: str | None = string(nullable_since=0, default=None)
    user_endpoint: StreamsGroupEndpoint | None = optional(StreamsGroupEndpoint, nullable_since=0)
    client_tags: list[KeyValue] | None = array(KeyValue, nullable_since=0, default=None)
    task_offsets: list[TaskOffset] | None = array(TaskOffset, nullable_since=0, default=None)
    task_end_offsets: list[TaskOffset] | None = array(TaskOffset, nullable_since=0, default=None)
    shutdown_application: bool = boolean()


@struct
class StreamsGroupHeartbeatStatus:
    """A status for the member, such as a missing topic."""

    status_code: int = int8()
    status_detail: str = string()


@struct
class EndpointToPartitions:
    """Which partitions can be queried at an endpoint."""

    user_endpoint: StreamsGroupEndpoint = nested(StreamsGroupEndpoint)
    active_partitions: list[TopicPartitions] = array(TopicPartitions)
    standby_partitions: list[TopicPartitions] = array(TopicPartitions)


@struct
class StreamsGroupHeartbeatResponse(ErrorMessageResponse):
    """The member's epoch, and its tasks when they have changed.

    v1 can request the topology's description (KIP-1331) and has a 64-bit recovery lag.
    """

    member_id: str = string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    acceptable_recovery_lag_legacy: int = int32(until=0, ignorable=True)
    task_offset_interval_ms: int = int32()
    acceptable_recovery_lag: int = int64(default=-1, since=1, ignorable=True)
    status: list[StreamsGroupHeartbeatStatus] | None = array(
        StreamsGroupHeartbeatStatus, nullable_since=0
    )
    active_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    standby_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    warmup_tasks: list[TaskIds] | None = array(TaskIds, nullable_since=0, default=None)
    topology_description_required: bool = boolean(since=1, ignorable=True)
    endpoint_information_epoch: int = int32()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(
        EndpointToPartitions, nullable_since=0, default=None
    )


@struct
class StreamsGroupDescribeRequest(Request["StreamsGroupDescribeResponse"]):
    """Describe streams groups; v1 can include the topology's description."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()
    include_topology_description: bool = boolean(since=1)


@struct
class StreamsGroupDescribeSubtopology:
    """A part of the topology."""

    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    repartition_sink_topics: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)


@struct
class StreamsGroupDescribeTopology:
    """The topology; null subtopologies while it is not known."""

    epoch: int = int32()
    subtopologies: list[StreamsGroupDescribeSubtopology] | None = array(
        StreamsGroupDescribeSubtopology, nullable_since=0, default=None
    )


@struct
class StreamsGroupDescribeAssignment:
    """A current or target assignment."""

    active_tasks: list[TaskIds] = array(TaskIds)
    standby_tasks: list[TaskIds] = array(TaskIds)
    warmup_tasks: list[TaskIds] = array(TaskIds)


@struct
class StreamsGroupDescribeMember:
    """A member with its tasks and their offsets."""

    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    client_id: str = string()
    client_host: str = string()
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: StreamsGroupEndpoint | None = optional(StreamsGroupEndpoint, nullable_since=0)
    client_tags: list[KeyValue] = array(KeyValue)
    task_offsets: list[TaskOffset] = array(TaskOffset)
    task_end_offsets: list[TaskOffset] = array(TaskOffset)
    assignment: StreamsGroupDescribeAssignment = nested(StreamsGroupDescribeAssignment)
    target_assignment: StreamsGroupDescribeAssignment = nested(StreamsGroupDescribeAssignment)
    is_classic: bool = boolean()


@struct
class TopologyDescriptionNode:
    """A source (1), processor (2) or sink (3), and its successors."""

    name: str = string()
    node_type: int = int8()
    source_topics: list[str] = array(string)
    sink_topic: str | None = string(nullable_since=0, default=None)
    stores: list[str] = array(string)
    successors: list[str] = array(string)


@struct
class TopologyDescriptionSubtopology:
    """The nodes of one subtopology."""

    subtopology_id: str = string()
    nodes: list[TopologyDescriptionNode] = array(TopologyDescriptionNode)


@struct
class TopologyDescriptionGlobalStore:
    """A global store: every member has all of it."""

    source: TopologyDescriptionNode = nested(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = nested(TopologyDescriptionNode)


@struct
class TopologyDescription:
    """The description of the topology (KIP-1331)."""

    subtopologies: list[TopologyDescriptionSubtopology] = array(TopologyDescriptionSubtopology)
    global_stores: list[TopologyDescriptionGlobalStore] = array(TopologyDescriptionGlobalStore)


@struct
class StreamsGroupDescribedGroup(DescribedGroupEpochs):
    """A group, its epochs, topology and members; v1 adds the description and the assignor."""

    topology: StreamsGroupDescribeTopology | None = optional(
        StreamsGroupDescribeTopology, nullable_since=0
    )
    members: list[StreamsGroupDescribeMember] = array(StreamsGroupDescribeMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)
    topology_description: TopologyDescription | None = optional(
        TopologyDescription, nullable_since=0, since=1, ignorable=True
    )
    topology_description_status: int = int8(since=1, ignorable=True)
    assignor_name: str | None = string(nullable_since=0, default=None, since=1, ignorable=True)


@struct
class StreamsGroupDescribeResponse:
    """The requested groups."""

    throttle_time_ms: int = int32()
    groups: list[StreamsGroupDescribedGroup] = array(StreamsGroupDescribedGroup)


@struct
class StreamsGroupTopologyDescriptionUpdateRequest(
    Request["StreamsGroupTopologyDescriptionUpdateResponse"]
):
    """The description that a heartbeat response requested (KIP-1331)."""

    group_id: str = string()
    member_id: str = string()
    topology_epoch: int = int32()
    topology_description: TopologyDescription = nested(TopologyDescription)


@struct
class StreamsGroupTopologyDescriptionUpdateResponse(ErrorMessageResponse):
    """The result of the update."""
