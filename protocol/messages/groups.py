"""Membership in groups: FindCoordinator (10), the classic protocol (JoinGroup 11, Heartbeat 12,
LeaveGroup 13, SyncGroup 14), administration (DescribeGroups 15, ListGroups 16, DeleteGroups 42),
and the consumer protocol of KIP-848 (ConsumerGroupHeartbeat 68, ConsumerGroupDescribe 69).

Where both describe APIs use one struct name, the one of KIP-848 carries its API's name in front.
"""

from __future__ import annotations

from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
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
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, Request, Uuid


@struct
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Find coordinators. `key_type` is 0 for groups, 1 for transactions, 2 for share partitions.

    v1 adds the key type, v4 takes several keys, v6 adds share partitions, with keys "group:topic
    id:partition".
    """

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


@struct
class Coordinator:
    """One key's coordinator; node -1 with an error while there is none."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, ignorable=True)


@struct
class FindCoordinatorResponse:
    """The coordinator; v1 adds the throttle time and a message, v4 one answer per key."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = string(nullable_since=0, since=1, until=3, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


@struct
class JoinGroupRequestProtocol:
    """An assignor that the member supports, with the member's metadata for it."""

    name: str = string()
    metadata: bytes = binary()


@struct
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Join or rejoin; answered when all members have joined.

    v0 uses the session timeout for rebalances too, v1 has a rebalance timeout, v4 makes new members
    join twice (KIP-394), v5 adds static membership (KIP-345), v8 a reason (KIP-800).
    """

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
    """A member, only sent to the leader; v5 adds its static id."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    metadata: bytes = binary()


@struct
class JoinGroupResponse:
    """The new generation, and for the leader the metadata of all members.

    v2 adds the throttle time, v7 the protocol type and a null protocol name without one ("" before,
    KIP-559), v9 can tell the leader to skip the assignment (KIP-814).
    """

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
    """The assignment of one member."""

    member_id: str = string()
    assignment: bytes = binary()


@struct
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Get the member's assignment; the leader sends all assignments.

    v3 adds static membership, v5 the protocol, which must be the group's (KIP-559).
    """

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=3)
    protocol_type: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    protocol_name: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@struct
class SyncGroupResponse:
    """The member's assignment; v1 adds the throttle time, v5 the protocol."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    protocol_name: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    assignment: bytes = binary()


@struct
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Keep the session alive; v3 adds static membership."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=3)


@struct
class HeartbeatResponse:
    """NONE, or the reason to rejoin; v1 adds the throttle time."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()


@struct
class MemberIdentity:
    """A leaving member, or a static member by its instance id alone; v5 adds the reason."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None)
    reason: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)


@struct
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Leave the group; v3 can remove several members."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


@struct
class MemberResponse:
    """Whether the member has left."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0)
    error_code: int = int16()


@struct
class LeaveGroupResponse:
    """Whether the members have left; v1 adds the throttle time, v3 one result per member."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)


@struct
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Describe classic groups; v3 can include authorized operations."""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


@struct
class DescribedGroupMember:
    """A member with the bytes of its metadata and assignment; v4 adds its static id."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None, since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


@struct
class DescribedGroup:
    """A group and its state; one that does not exist is Dead, from v6 on with an error (KIP-1043).

    v3 adds the authorized operations, v6 a message.
    """

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None, since=6, ignorable=True)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS, since=3, ignorable=True)


@struct
class DescribeGroupsResponse:
    """The requested groups; v1 adds the throttle time."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


@struct
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """List the groups that this broker coordinates; v4 filters by state, v5 by type."""

    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


@struct
class ListedGroup:
    """A group; v4 adds its state, v5 its type."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


@struct
class ListGroupsResponse:
    """The groups of this broker; v1 adds the throttle time."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@struct
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Delete these empty groups with their offsets."""

    groups_names: list[str] = array(string)


@struct
class DeletableGroupResult:
    """Whether the group was deleted; v3 adds a message."""

    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None, since=3, ignorable=True)


@struct
class DeleteGroupsResponse:
    """One result per group."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@struct
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """Join (epoch 0), heartbeat, leave (-1) or leave as a static member (-2): KIP-848.

    Null means that a field has not changed since the last heartbeat. v1 adds subscription by
    regular expression, and member ids that clients generate (KIP-1082).
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable_since=0, default=None)
    subscribed_topic_regex: str | None = string(nullable_since=0, default=None, since=1)
    server_assignor: str | None = string(nullable_since=0, default=None)
    topic_partitions: list[TopicIdPartitions] | None = array(
        TopicIdPartitions, nullable_since=0, default=None
    )


@struct
class HeartbeatAssignment:
    """The partitions assigned to the member."""

    topic_partitions: list[TopicIdPartitions] = array(TopicIdPartitions)


@struct
class ConsumerGroupHeartbeatResponse(ErrorMessageResponse):
    """The member's epoch, and its assignment when that has changed."""

    member_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = optional(HeartbeatAssignment, nullable_since=0)


@struct
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Describe consumer groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


@struct
class DescribedTopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


@struct
class DescribedAssignment:
    """A current or target assignment."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


@struct
class ConsumerGroupDescribeMember:
    """A member with its current and target assignment.

    v1 adds the member's protocol: classic (0), consumer (1), unknown (-1).
    """

    member_id: str = string()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable_since=0, default=None)
    assignment: DescribedAssignment = nested(DescribedAssignment)
    target_assignment: DescribedAssignment = nested(DescribedAssignment)
    member_type: int = int8(default=-1, since=1, ignorable=True)


@struct
class DescribedGroupEpochs:
    """A group with its state and epochs."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()


@struct
class ConsumerGroupDescribedGroup(DescribedGroupEpochs):
    """A group, its epochs and members."""

    assignor_name: str = string()
    members: list[ConsumerGroupDescribeMember] = array(ConsumerGroupDescribeMember)
    authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)


@struct
class ConsumerGroupDescribeResponse:
    """The requested groups."""

    throttle_time_ms: int = int32()
    groups: list[ConsumerGroupDescribedGroup] = array(ConsumerGroupDescribedGroup)
