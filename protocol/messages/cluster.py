"""Cluster administration: log directories (AlterReplicaLogDirs 34, DescribeLogDirs 35),
ElectLeaders (43), reassignments (AlterPartitionReassignments 45, ListPartitionReassignments 46),
features (UpdateFeatures 57), and the controller quorum (DescribeQuorum 55, UnregisterBroker 64,
AddRaftVoter 80, RemoveRaftVoter 81, UnregisterController 94).
"""

from __future__ import annotations

from odradek.protocol.messages.partitions import (
    DetailedTopicResults,
    TopicPartitionNumbers,
    TopicPartitionResults,
    TopicPartitions,
)
from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
    uuid,
)
from odradek.protocol.types import Request, Uuid


@struct
class AlterReplicaLogDir:
    """A directory and the replicas to move there."""

    path: str = string()
    topics: list[TopicPartitions] = array(TopicPartitions)


@struct
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Move replicas between a broker's directories (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


@struct
class AlterReplicaLogDirsResponse:
    """One result per replica."""

    throttle_time_ms: int = int32()
    results: list[TopicPartitionResults] = array(TopicPartitionResults)


@struct
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Describe this broker's log directories. Null topics means all."""

    topics: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0)


@struct
class DescribeLogDirsPartition:
    """A replica's size, and its lag behind the replica that it replaces."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@struct
class DescribeLogDirsTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    """A directory; v4 adds its space (-1 unknown), v5 whether it is cordoned."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(default=-1, since=4, ignorable=True)
    usable_bytes: int = int64(default=-1, since=4, ignorable=True)
    is_cordoned: bool = boolean(since=5, ignorable=True)


@struct
class DescribeLogDirsResponse:
    """The directories; v3 adds a top-level error."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


@struct
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elect leaders; null partitions means all.

    v1 can elect a replica that is not in sync (`election_type` 1, KIP-460); v0 only preferred
    leaders.
    """

    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0)
    timeout_ms: int = int32(default=60000)


@struct
class ElectLeadersResponse:
    """One result per partition; v1 adds a top-level error."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[DetailedTopicResults] = array(DetailedTopicResults)


@struct
class ReassignablePartition:
    """The new replicas of a partition; null cancels a reassignment."""

    partition_index: int = int32()
    replicas: list[int] | None = array(int32, nullable_since=0, default=None)


@struct
class ReassignableTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@struct
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Move partitions to other brokers (KIP-455); answered when started, not when done.

    v1 can forbid a change of the replication factor.
    """

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(default=True, since=1)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class AlterPartitionReassignmentsResponse:
    """One result per partition."""

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(default=True, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    responses: list[DetailedTopicResults] = array(DetailedTopicResults)


@struct
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """List ongoing reassignments. Null topics means all."""

    timeout_ms: int = int32(default=60000)
    topics: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0, default=None)


@struct
class OngoingPartitionReassignment:
    """A partition: all its replicas, those being added and those being removed."""

    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


@struct
class OngoingTopicReassignment:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@struct
class ListPartitionReassignmentsResponse(ErrorMessageResponse):
    """The ongoing reassignments."""

    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


@struct
class DescribeQuorumRequest(Request["DescribeQuorumResponse"]):
    """Describe the controller quorum (KIP-595)."""

    topics: list[TopicPartitionNumbers] = array(TopicPartitionNumbers)


@struct
class DescribeQuorumReplicaState:
    """A voter or observer and its log end offset; v1 adds timestamps, v2 its directory."""

    replica_id: int = int32()
    replica_directory_id: Uuid = uuid(since=2, ignorable=True)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(default=-1, since=1, ignorable=True)
    last_caught_up_timestamp: int = int64(default=-1, since=1, ignorable=True)


@struct
class DescribeQuorumResponsePartitionData:
    """The quorum's leader, voters and observers."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, since=2, ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[DescribeQuorumReplicaState] = array(DescribeQuorumReplicaState)
    observers: list[DescribeQuorumReplicaState] = array(DescribeQuorumReplicaState)


@struct
class DescribeQuorumResponseTopicData:
    """The metadata log."""

    topic_name: str = string()
    partitions: list[DescribeQuorumResponsePartitionData] = array(
        DescribeQuorumResponsePartitionData
    )


@struct
class RaftVoterEndpoint:
    """A listener of a controller."""

    name: str = string()
    host: str = string()
    port: int = uint16()


@struct
class DescribeQuorumResponseNode:
    """A voter and its listeners."""

    node_id: int = int32()
    listeners: list[RaftVoterEndpoint] = array(RaftVoterEndpoint)


@struct
class DescribeQuorumResponse:
    """The quorum; v2 adds messages and the voters' listeners (KIP-853)."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, since=2, ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array(DescribeQuorumResponseTopicData)
    nodes: list[DescribeQuorumResponseNode] = array(
        DescribeQuorumResponseNode, since=2, ignorable=True
    )


@struct
class FeatureUpdateKey:
    """A feature and its new level; 0 disables it.

    v0 only allows or forbids a downgrade. v1 has a type: 1 upgrade, 2 safe downgrade, 3 unsafe
    downgrade.
    """

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(default=1, since=1)


@struct
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Change feature levels (KIP-584); v1 can ask for validation only."""

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


@struct
class UpdatableFeatureResult:
    """Whether a feature has its new level, up to v1."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


@struct
class UpdateFeaturesResponse(ErrorMessageResponse):
    """The result of the update; up to v1 one result per feature."""

    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)


@struct
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    """Remove the registration of a broker."""

    broker_id: int = int32()


@struct
class UnregisterBrokerResponse(ErrorMessageResponse):
    """The result of the removal."""


@struct
class AddRaftVoterRequest(Request["AddRaftVoterResponse"]):
    """Add a voter (KIP-853); v1 can respond before it is committed."""

    cluster_id: str | None = string(nullable_since=0)
    timeout_ms: int = int32()
    voter_id: int = int32()
    voter_directory_id: Uuid = uuid()
    listeners: list[RaftVoterEndpoint] = array(RaftVoterEndpoint)
    ack_when_committed: bool = boolean(default=True, since=1)


@struct
class AddRaftVoterResponse(ErrorMessageResponse):
    """Whether the voter was added."""


@struct
class RemoveRaftVoterRequest(Request["RemoveRaftVoterResponse"]):
    """Remove a voter (KIP-853)."""

    cluster_id: str | None = string(nullable_since=0)
    voter_id: int = int32()
    voter_directory_id: Uuid = uuid()


@struct
class RemoveRaftVoterResponse(ErrorMessageResponse):
    """Whether the voter was removed."""


@struct
class UnregisterControllerRequest(Request["UnregisterControllerResponse"]):
    """Remove the registration of a controller."""

    controller_id: int = int32()


@struct
class UnregisterControllerResponse(ErrorMessageResponse):
    """The result of the removal."""
