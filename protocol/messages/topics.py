"""Topics: CreateTopics (19), DeleteTopics (20), CreatePartitions (37)."""

from __future__ import annotations

from odradek.protocol.schema import array, boolean, int8, int16, int32, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class CreatableReplicaAssignment:
    """The brokers of one partition, the preferred leader first."""

    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


@struct
class CreatableTopicConfig:
    """A configuration of the new topic; null is the default."""

    name: str = string()
    value: str | None = string(nullable_since=0)


@struct
class CreatableTopic:
    """A topic to create; counts are -1 with assignments, or for the defaults (v4, KIP-464)."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@struct
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Create topics; v1 can ask for validation only."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(since=1)


@struct
class CreatableTopicConfigs:
    """A configuration the topic has, with its source (v5, KIP-525)."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1, ignorable=True)
    is_sensitive: bool = boolean()


@struct
class CreatableTopicResult:
    """The result for one topic.

    v1 adds a message, v5 its counts and configs, v7 its id. The tagged field is the error if
    configs are left out.
    """

    name: str = string()
    topic_id: Uuid = uuid(since=7, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, since=1, ignorable=True)
    topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)
    num_partitions: int = int32(default=-1, since=5, ignorable=True)
    replication_factor: int = int16(default=-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, nullable_since=0, since=5, ignorable=True
    )


@struct
class CreateTopicsResponse:
    """One result per topic; v2 adds the throttle time."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class DeleteTopicState:
    """A topic by name, or by id with a null name (v6)."""

    name: str | None = string(nullable_since=0, default=None)
    topic_id: Uuid = uuid()


@struct
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Delete topics; v6 takes names and ids in `topics`, older ones names only."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5, ignorable=True)
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    """The result for one topic; v5 adds a message, v6 its id."""

    name: str | None = string(nullable_since=6)
    topic_id: Uuid = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None, since=5, ignorable=True)


@struct
class DeleteTopicsResponse:
    """One result per topic; v1 adds the throttle time."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    """The brokers of one new partition."""

    broker_ids: list[int] = array(int32)


@struct
class CreatePartitionsTopic:
    """A topic and its new number of partitions."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable_since=0
    )


@struct
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Add partitions to topics (KIP-195)."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    """The result for one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class CreatePartitionsResponse:
    """One result per topic."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
