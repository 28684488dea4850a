"""Cluster metadata: Metadata (3), ApiVersions (18), DescribeCluster (60),
DescribeTopicPartitions (75).
"""

from __future__ import annotations

from odradek.protocol.messages.partitions import TopicName
from odradek.protocol.messages.responses import ErrorMessageResponse, NodeEndpoint
from odradek.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    optional,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, Request, Uuid


@struct
class MetadataRequestTopic:
    """A topic by name, or from v12 on by id with a null name."""

    topic_id: Uuid = uuid(since=10, ignorable=True)
    name: str | None = string(nullable_since=10)


@struct
class MetadataRequest(Request["MetadataResponse"]):
    """List brokers, topics and partition leaders.

    In v0 no topics means all; from v1 on null means all and an empty list none. v4 can forbid topic
    auto-creation, v8 can include authorized operations, v10 has topic ids, v11 drops the cluster's
    operations (see DescribeCluster).
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(default=True, since=4)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@struct
class MetadataResponsePartition:
    """A partition's leader (-1 while there is none) and replicas.

    v5 adds the replicas that are offline, v7 the leader epoch.
    """

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, since=7, ignorable=True)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=5, ignorable=True)


@struct
class MetadataResponseTopic:
    """A topic or an error; the name is null if only an unknown id was given (v12)."""

    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: Uuid = uuid(since=10, ignorable=True)
    is_internal: bool = boolean(since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(
        default=NO_AUTHORIZED_OPERATIONS, since=8, ignorable=True
    )


@struct
class MetadataResponse:
    """The cluster's brokers and topics.

    v1 adds the controller, v2 the cluster id, v3 the throttle time, v8 authorized operations, v13 a
    top-level error, which can make the client rebootstrap (KIP-1102).
    """

    throttle_time_ms: int = int32(since=3, ignorable=True)
    brokers: list[NodeEndpoint] = array(NodeEndpoint)
    cluster_id: str | None = string(nullable_since=0, default=None, since=2, ignorable=True)
    controller_id: int = int32(default=-1, since=1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(
        default=NO_AUTHORIZED_OPERATIONS, since=8, until=10, ignorable=True
    )
    error_code: int = int16(since=13, ignorable=True)


@struct
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """List the supported API versions. The first request of most connections.

    v3 is flexible and has the client's software (KIP-511), v5 the cluster and node that it expects
    (KIP-1242).
    """

    client_software_name: str = string(since=3, ignorable=True)
    client_software_version: str = string(since=3, ignorable=True)
    cluster_id: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)
    node_id: int = int32(default=-1, since=5, ignorable=True)


@struct
class ApiVersion:
    """One API and the versions served, both ends included."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@struct
class SupportedFeatureKey:
    """A feature and the levels that this broker supports (KIP-584)."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@struct
class FinalizedFeatureKey:
    """A feature and its finalized level."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@struct
class ApiVersionsResponse:
    """The supported versions. The response header always has version 0 (KIP-511).

    To an unknown version a broker responds in v0 with UNSUPPORTED_VERSION and the range of this
    API. v1 adds the throttle time, v3 the features as tags; before v4 no feature may start at level
    0.
    """

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, since=3, tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64(default=-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, since=3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean(since=3, tag=3, ignorable=True)


@struct
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """List the brokers or controllers of the cluster (KIP-700).

    v1 selects brokers (1) or controllers (2), v2 can include fenced brokers.
    """

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(default=1, since=1)
    include_fenced_brokers: bool = boolean(since=2)


@struct
class DescribeClusterBroker:
    """A node; v2 tells whether it is fenced."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)
    is_fenced: bool = boolean(since=2, ignorable=True)


@struct
class DescribeClusterResponse(ErrorMessageResponse):
    """The cluster's nodes and, if requested, the authorized operations."""

    endpoint_type: int = int8(default=1, since=1, ignorable=True)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)


@struct
class Cursor:
    """The start of the next page."""

    topic_name: str = string()
    partition_index: int = int32()


@struct
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Describe topics in pages; all that the client may describe if none is named (KIP-966).

    The response ends after `response_partition_limit` partitions, with a cursor.
    """

    topics: list[TopicName] = array(TopicName)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = optional(Cursor, nullable_since=0)


@struct
class DescribeTopicPartitionsResponsePartition:
    """A partition with its eligible leader replicas; null where the feature is off."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable_since=0, default=None)
    last_known_elr: list[int] | None = array(int32, nullable_since=0, default=None)
    offline_replicas: list[int] = array(int32, ignorable=True)


@struct
class DescribeTopicPartitionsResponseTopic:
    """A topic, perhaps with only some of its partitions."""

    error_code: int = int16()
    name: str | None = string(nullable_since=0)
    topic_id: Uuid = uuid(ignorable=True)
    is_internal: bool = boolean(ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=NO_AUTHORIZED_OPERATIONS)


@struct
class DescribeTopicPartitionsResponse:
    """A page; `next_cursor` is null on the last one."""

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = optional(Cursor, nullable_since=0)
