"""Membership in groups: FindCoordinator (10), the classic protocol (JoinGroup 11, Heartbeat 12,
LeaveGroup 13, SyncGroup 14), what groups there are (DescribeGroups 15, ListGroups 16,
DeleteGroups 42), and the consumer protocol of KIP-848 (ConsumerGroupHeartbeat 68,
ConsumerGroupDescribe 69).

Where both describe APIs use one struct name, the one of KIP-848 carries its API's name in front.
"""

from __future__ import annotations

from protocol.schema import (
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    nested,
    optional,
    string,
    struct,
    uuid,
)
from protocol.types import NO_AUTHORIZED_OPERATIONS, Uuid


@struct
class FindCoordinatorRequest:
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


@struct
class Coordinator:
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, ignorable=True)


@struct
class FindCoordinatorResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = string(nullable_since=0, since=1, until=3, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


@struct
class JoinGroupRequestProtocol:
    name: str = string()
    metadata: bytes = binary()


@struct
class JoinGroupRequest:
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(default=-1, since=1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=5)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(nullable_since=0, default=None, since=8, ignorable=True)


@struct
class JoinGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    metadata: bytes = binary()


@struct
class JoinGroupResponse:
    throttle_time_ms: int = int32(since=2, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(nullable_since=0, default=None, since=7, ignorable=True)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


@struct
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = binary()


@struct
class SyncGroupRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=3)
    protocol_type: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    protocol_name: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@struct
class SyncGroupResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    protocol_name: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    assignment: bytes = binary()


@struct
class HeartbeatRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=3)


@struct
class HeartbeatResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()


@struct
class MemberIdentity:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None)
    reason: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)


@struct
class LeaveGroupRequest:
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


@struct
class MemberResponse:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0)
    error_code: int = int16()


@struct
class LeaveGroupResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)


@struct
class DescribeGroupsRequest:
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


@struct
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


@struct
class DescribedGroup:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None, since=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS, since=3)


@struct
class DescribeGroupsResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


@struct
class ListGroupsRequest:
    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


@struct
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


@struct
class ListGroupsResponse:
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@struct
class DeleteGroupsRequest:
    groups_names: list[str] = array(string)


@struct
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None, since=3, ignorable=True)


@struct
class DeleteGroupsResponse:
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@struct
class ConsumerGroupHeartbeatTopicPartitions:
    topic_id: Uuid = uuid()
    partitions: list[int] = array(int32)


@struct
class ConsumerGroupHeartbeatRequest:
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable_since=0, default=None)
    subscribed_topic_regex: str | None = string(nullable_since=0, default=None, since=1)
    server_assignor: str | None = string(nullable_since=0, default=None)
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] | None = array(
        ConsumerGroupHeartbeatTopicPartitions, nullable_since=0, default=None
    )


@struct
class ConsumerGroupHeartbeatAssignment:
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = array(
        ConsumerGroupHeartbeatTopicPartitions
    )


@struct
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    member_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: ConsumerGroupHeartbeatAssignment | None = optional(
        ConsumerGroupHeartbeatAssignment, nullable_since=0
    )


@struct
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


@struct
class ConsumerGroupDescribeTopicPartitions:
    topic_id: Uuid = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


@struct
class ConsumerGroupDescribeAssignment:
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = array(
        ConsumerGroupDescribeTopicPartitions
    )


@struct
class ConsumerGroupDescribeMember:
    member_id: str = string()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable_since=0, default=None)
    assignment: ConsumerGroupDescribeAssignment = nested(ConsumerGroupDescribeAssignment)
    target_assignment: ConsumerGroupDescribeAssignment = nested(ConsumerGroupDescribeAssignment)
    member_type: int = int8(default=-1, since=1, ignorable=True)


@struct
class ConsumerGroupDescribedGroup:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[ConsumerGroupDescribeMember] = array(ConsumerGroupDescribeMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)


@struct
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = int32()
    groups: list[ConsumerGroupDescribedGroup] = array(ConsumerGroupDescribedGroup)
