"""CreateTopics, DeleteTopics and CreatePartitions: the checks in Kafka's order, and the records.

A topic that fails does not fail the others of a command. Only a command with more partitions than
one entry of the metadata log should hold is refused for all its topics.
"""

from collections import Counter
from collections.abc import Iterable

from odradek.cluster.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    TopicReference,
    TopicResult,
    TopicsReply,
)
from odradek.cluster.controller.config_checks import check_topic_constraints, check_value
from odradek.cluster.controller.mutation_quotas import MutationQuota
from odradek.cluster.controller.placement import place_replicas
from odradek.cluster.controller.reassignment import is_reassigned
from odradek.cluster.controller.replica_assignments import (
    check_assignment,
    initial_partition,
    replicas_by_partition,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState, is_active
from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage, TopicImage
from odradek.cluster.metadata.records import (
    ConfigChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
)
from odradek.cluster.metadata.topic_names import topic_name_error, unify_collision_chars
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import ZERO_UUID

PARTITIONS_PER_COMMAND_MAX = 10_000
"""Kafka's limit of partitions created by one request."""


def create_topics(
    state: ControllerState, command: CreateTopics, quota: MutationQuota
) -> ControllerResult:
    """Create the topics; with `validate_only` only check them."""
    records: list[Record] = []
    results: list[TopicResult] = []
    times_named = Counter(topic.name for topic in command.topics)
    names_in_request: dict[str, str] = {}
    partition_count = 0
    for topic in {topic.name: topic for topic in command.topics}.values():
        try:
            if times_named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made = state.image.topics_by_id.get(topic.topic_id)
            if made is not None and made.name == topic.name:
                # Ids are fresh with each request: this one comes again, its answer was lost.
                results.append(_created_result(topic.name, topic.topic_id, made.partitions))
                continue
            _check_name(state, topic.name, names_in_request)
            partitions = _new_partitions(state, topic)
            partition_count += len(partitions)
            if partition_count > PARTITIONS_PER_COMMAND_MAX:
                return _too_many_partitions(command)
            configs = _checked_configs(state, topic)
            quota.charge(len(partitions))
        except ApiError as error:
            results.append(TopicResult(topic.name, error.code, error.message))
            continue
        names_in_request[unify_collision_chars(topic.name)] = topic.name
        records.append(TopicCreated(topic.name, topic.topic_id))
        records.append(PartitionsAdded(topic.topic_id, 0, partitions))
        records.extend(
            ConfigChanged(ConfigResourceType.TOPIC, topic.name, key, value)
            for key, value in configs.items()
        )
        results.append(_created_result(topic.name, topic.topic_id, partitions))
    return ControllerResult(
        records=() if command.validate_only else tuple(records),
        reply=TopicsReply(tuple(results), quota.throttle_time_ms),
    )


def delete_topics(
    state: ControllerState, command: DeleteTopics, quota: MutationQuota
) -> ControllerResult:
    """Delete the topics, with their configs."""
    records: list[Record] = []
    results: list[TopicResult] = []
    times_named = Counter(command.topics)
    deleted: set[bytes] = set()
    for reference in dict.fromkeys(command.topics):
        try:
            if times_named[reference] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic = _find_topic(state, reference)
            if topic.topic_id in deleted:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
            quota.charge(len(topic.partitions))
        except ApiError as error:
            results.append(
                TopicResult(reference.name, error.code, error.message, topic_id=reference.topic_id)
            )
            continue
        deleted.add(topic.topic_id)
        records.append(TopicDeleted(topic.topic_id))
        results.append(TopicResult(topic.name, topic_id=topic.topic_id))
    return ControllerResult(
        records=tuple(records), reply=TopicsReply(tuple(results), quota.throttle_time_ms)
    )


def create_partitions(
    state: ControllerState, command: CreatePartitions, quota: MutationQuota
) -> ControllerResult:
    """Add partitions to topics; the existing ones do not change."""
    records: list[Record] = []
    results: list[TopicResult] = []
    times_named = Counter(topic.name for topic in command.topics)
    added_count = 0
    for wanted in {topic.name: topic for topic in command.topics}.values():
        try:
            if times_named[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic, partitions = _partitions_to_add(state, wanted)
            added_count += len(partitions)
            if added_count > PARTITIONS_PER_COMMAND_MAX:
                return _too_many_partitions(command)
            quota.charge(len(partitions))
        except ApiError as error:
            results.append(TopicResult(wanted.name, error.code, error.message))
            continue
        records.append(PartitionsAdded(topic.topic_id, len(topic.partitions), partitions))
        results.append(TopicResult(topic.name, topic_id=topic.topic_id))
    return ControllerResult(
        records=() if command.validate_only else tuple(records),
        reply=TopicsReply(tuple(results), quota.throttle_time_ms),
    )


def _created_result(
    name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...]
) -> TopicResult:
    return TopicResult(
        name,
        topic_id=topic_id,
        partition_count=len(partitions),
        replication_factor=len(partitions[0].replicas),
    )


def _check_name(state: ControllerState, name: str, names_in_request: dict[str, str]) -> None:
    complaint = topic_name_error(name)
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
    if name in state.image.topics_by_name:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = state.colliding_topic(name) or names_in_request.get(unify_collision_chars(name))
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )


def _new_partitions(state: ControllerState, topic: NewTopic) -> tuple[PartitionImage, ...]:
    if topic.assignments:
        for count, what in (
            (topic.replication_factor, "replication factor"),
            (topic.partition_count, "numPartitions"),
        ):
            if count != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        return tuple(
            initial_partition(state, replicas)
            for replicas in replicas_by_partition(state, topic.assignments)
        )
    settings = state.broker_settings
    partition_count, replication_factor = topic.partition_count, topic.replication_factor
    if partition_count == -1:
        partition_count = settings.num_partitions
    if replication_factor == -1:
        replication_factor = settings.default_replication_factor
    if partition_count < 1:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if replication_factor < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    # What is beyond the limit is counted, not built.
    built_count = min(partition_count, PARTITIONS_PER_COMMAND_MAX + 1)
    return _place_partitions(state, topic.topic_id, (), built_count, replication_factor)


def _place_partitions(
    state: ControllerState,
    topic_id: bytes,
    existing: tuple[PartitionImage, ...],
    count: int,
    replication_factor: int,
) -> tuple[PartitionImage, ...]:
    registered = state.registered_brokers()
    brokers = [broker for broker in registered if not state.is_cordoned(broker.broker_id)]
    if len(brokers) < replication_factor <= len(registered):
        cordoned = [b.broker_id for b in registered if state.is_cordoned(b.broker_id)]
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target"
            f" replication factor of {replication_factor} cannot be reached because only"
            f" {len(brokers)} of {len(registered)} broker(s) take new replicas: cordoned.log.dirs"
            f" is set for {', '.join(map(str, cordoned))}.",
        )
    return tuple(
        initial_partition(state, replicas)
        for replicas in place_replicas(
            topic_id,
            partition_count=count,
            replication_factor=replication_factor,
            brokers=[broker.broker_id for broker in brokers if is_active(broker)],
            racks={broker.broker_id: broker.rack for broker in brokers},
            inactive=[broker.broker_id for broker in brokers if not is_active(broker)],
            existing=(partition.replicas for partition in existing),
        )
    )


def _checked_configs(state: ControllerState, topic: NewTopic) -> dict[str, str]:
    nulls = [key for key, value in topic.configs if value is None]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    configs = {key: value.strip() for key, value in topic.configs if value is not None}
    for key, value in configs.items():
        check_value(ConfigResourceType.TOPIC, topic.name, key, value)
    check_topic_constraints(state, configs)
    return configs


def _topic_named(state: ControllerState, name: str) -> TopicImage:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
        )
    return topic


def _find_topic(state: ControllerState, reference: TopicReference) -> TopicImage:
    has_id = reference.topic_id != ZERO_UUID
    if has_id == (reference.name is not None):
        raise ApiError(ErrorCode.INVALID_REQUEST, "A topic must have either a name or an id.")
    if not state.broker_settings.delete_topic_enable:
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED,
            "Topic deletion is disabled. Set delete.topic.enable=true to allow it.",
        )
    if reference.name is None:
        topic = state.image.topics_by_id.get(reference.topic_id)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return topic
    return _topic_named(state, reference.name)


def _partitions_to_add(
    state: ControllerState, wanted: NewPartitions
) -> tuple[TopicImage, tuple[PartitionImage, ...]]:
    topic = _topic_named(state, wanted.name)
    if any(map(is_reassigned, topic.partitions)):
        raise ApiError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Partitions of {wanted.name} are being reassigned. Try again when that is done.",
        )
    count = len(topic.partitions)
    added = wanted.count - count
    if added < 1:
        message = f"The topic {wanted.name} currently has {count} partition(s); {wanted.count}"
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{message} would not be an increase."
            if added
            else f"Topic already has {count} partition(s).",
        )
    replication_factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        added = min(added, PARTITIONS_PER_COMMAND_MAX + 1)
        partitions = _place_partitions(
            state, topic.topic_id, topic.partitions, added, replication_factor
        )
        return topic, partitions
    if len(wanted.assignments) != added:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only"
            f" {len(wanted.assignments)} assignment(s) were specified.",
        )
    for replicas in wanted.assignments:
        check_assignment(state, replicas, replication_factor)
    return topic, tuple(initial_partition(state, replicas) for replicas in wanted.assignments)


def _too_many_partitions(command: CreateTopics | CreatePartitions) -> ControllerResult:
    names: Iterable[str] = dict.fromkeys(topic.name for topic in command.topics)
    message = "Excessively large number of partitions per request."
    return ControllerResult(
        records=(),
        reply=TopicsReply(
            tuple(TopicResult(name, ErrorCode.POLICY_VIOLATION, message) for name in names)
        ),
    )
