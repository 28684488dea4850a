"""CreateTopics (19, versions 0 to 7), DeleteTopics (20, 0 to 6), CreatePartitions (37, 0 to 3) and
DeleteRecords (21, 0 to 2).

CreateTopics: v1 adds validate_only and messages, v4 lets counts default (KIP-464), v5 answers the
configs (KIP-525), v7 the topic's id. DeleteTopics: v5 adds messages, v6 names topics by id too
(KIP-516). The controller's answer arrives after this node has applied the change, so that the
client's next Metadata shows it.
"""

import uuid
from collections import deque
from collections.abc import Collection, Iterable

from odradek.cluster.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    ReplicaAssignment,
    TopicReference,
    TopicResult,
)
from odradek.cluster.controller.topics import PARTITIONS_PER_COMMAND_MAX
from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.config_description import describe_topic
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS
from odradek.node.bus.messages import UNSENT, DeleteRecords, DeleteRecordsReply, RecordsDeleted
from odradek.node.bus.reply import Reply
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.node.router.topic_log import caller_fields, log_created_topic, log_deleted_topic
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from odradek.protocol.messages.partitions import PartitionOffset
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from odradek.protocol.types import Uuid, uuid_to_text

HIGH_WATERMARK = -1
"""In DeleteRecords this offset means the high watermark."""
DELETIONS_IN_FLIGHT_MAX = 2_000
"""Partitions of one DeleteRecords request that wait for their workers at a time."""
_TOO_LARGE = ErrorCode.POLICY_VIOLATION
"""Of more than PARTITIONS_PER_COMMAND_MAX topics in one request, as in Kafka."""
CONFIGS_PER_TOPIC_MAX = 1_000
"""More configs of a new topic are refused with INVALID_CONFIG: no more than that exist."""
_CONFIGS_PER_ITEM = 10
"""Configs of a new topic that are read in the time of one item of a LoopYielder."""


def fresh_topic_id() -> Uuid:
    """A random topic id. Its text never begins with a dash, which looks like an option."""
    while True:
        topic_id = uuid.uuid4().bytes
        if not uuid_to_text(topic_id).startswith("-"):
            return topic_id


# -- CreateTopics ----------------------------------------------------------------------------


async def handle_create_topics(
    request: CreateTopicsRequest, context: RequestContext, services: Services
) -> CreateTopicsResponse:
    """Create topics, each by itself. Needs CREATE on the cluster or on the topic."""
    pace = LoopYielder(context)
    topics = {}
    allowed = set()
    new = []
    is_too_large = len(request.topics) > PARTITIONS_PER_COMMAND_MAX
    refused = []
    for topic in request.topics:
        await pace.step(1 + len(topic.configs) // _CONFIGS_PER_ITEM)
        topics[topic.name] = topic
        if len(topic.configs) > CONFIGS_PER_TOPIC_MAX:
            message = f"A topic has at most {CONFIGS_PER_TOPIC_MAX} configs."
            refused.append(TopicResult(topic.name, ErrorCode.INVALID_CONFIG, message))
        elif not is_too_large and can_create_topic(topic.name, context, services):
            allowed.add(topic.name)
            new.append(_new_topic(topic))
    results = await _submit(
        CreateTopics(
            tuple(new), request.validate_only, services.client_quotas.mutating_client(context)
        ),
        topics,
        allowed,
        request.timeout_ms,
        context,
        services,
        refusal=_TOO_LARGE if is_too_large else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    results.update((result.name or "", result) for result in refused)
    who = caller_fields(context)
    answers = []
    async for name, topic in iterate_cooperatively(topics.items(), context):
        if not request.validate_only:
            log_created_topic(results[name], who)
        answers.append(_created(topic, results[name], context, services))
    return CreateTopicsResponse(topics=answers)


async def _submit(
    command: CreateTopics | CreatePartitions,
    names: Iterable[str],
    allowed: Collection[str],
    timeout_ms: int,
    context: RequestContext,
    services: Services,
    *,
    refusal: ErrorCode = ErrorCode.TOPIC_AUTHORIZATION_FAILED,
) -> dict[str, TopicResult]:
    """The result for each name: `refusal` for those that are not in the command."""
    results = {
        name: TopicResult(name, refusal)
        async for name in iterate_cooperatively(names)
        if name not in allowed
    }
    if command.topics:
        try:
            reply = await services.controller.submit(command, timeout_ms)
            results.update((result.name or "", result) for result in reply.results)
            context.throttle_time_ms = reply.throttle_time_ms
        except ApiError as error:
            results.update((name, TopicResult(name, error.code, error.message)) for name in allowed)
    return results


def can_create_topic(name: str, context: RequestContext, services: Services) -> bool:
    """Whether the principal may create the topic: CREATE on the cluster or on the topic."""
    authorizer = services.authorizer
    return authorizer.is_cluster_allowed(
        context, AclOperation.CREATE
    ) or authorizer.is_topic_allowed(context, AclOperation.CREATE, name)


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        topic_id=fresh_topic_id(),
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(assignment.partition_index, tuple(assignment.broker_ids))
            for assignment in topic.assignments
        ),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _created(
    topic: CreatableTopic, result: TopicResult, context: RequestContext, services: Services
) -> CreatableTopicResult:
    if result.error_code:
        return CreatableTopicResult(
            name=topic.name, error_code=result.error_code, error_message=_message(result)
        )
    answer = CreatableTopicResult(name=topic.name, topic_id=result.topic_id, error_message=None)
    if context.api_version < 5:
        return answer
    if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE_CONFIGS, topic.name):
        answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    answer.num_partitions = result.partition_count
    answer.replication_factor = result.replication_factor
    overrides = {config.name: config.value or "" for config in topic.configs}
    answer.configs = [
        CreatableTopicConfigs(
            name=config.name,
            value=config.value,
            read_only=config.read_only,
            config_source=config.config_source,
            is_sensitive=config.is_sensitive,
        )
        for config in describe_topic(
            services.image,
            services.node_id,
            services.static_configs,
            topic.name,
            overrides=overrides,
        )
    ]
    return answer


def _message(result: TopicResult) -> str | None:
    if not result.error_code:
        return None
    return result.error_message or ErrorCode(result.error_code).message


# -- DeleteTopics ----------------------------------------------------------------------------


async def handle_delete_topics(
    request: DeleteTopicsRequest, context: RequestContext, services: Services
) -> DeleteTopicsResponse:
    """Delete topics, each by itself. Needs DELETE on the topic."""
    references = [
        TopicReference(topic.name, topic.topic_id)
        async for topic in iterate_cooperatively(request.topics, context)
    ]
    if context.api_version < 6:
        references = [
            TopicReference(name)
            async for name in iterate_cooperatively(request.topic_names, context)
        ]
    results: dict[TopicReference, TopicResult] = {}
    is_too_large = len(references) > PARTITIONS_PER_COMMAND_MAX
    async for reference in iterate_cooperatively(references, context):
        refusal = _refuse_deletion(reference, context, services)
        if refusal is not None:
            results[reference] = refusal
        elif is_too_large:
            results[reference] = TopicResult(
                reference.name, _TOO_LARGE, topic_id=reference.topic_id
            )
    # The controller refuses what is named twice.
    allowed = () if is_too_large else tuple(each for each in references if each not in results)
    unique = tuple(dict.fromkeys(allowed))
    if allowed:
        try:
            client = services.client_quotas.mutating_client(context)
            command = DeleteTopics(allowed, client)
            reply = await services.controller.submit(command, request.timeout_ms)
            context.throttle_time_ms = reply.throttle_time_ms
            results.update(zip(unique, reply.results, strict=True))
        except ApiError as error:
            for key in unique:
                results[key] = TopicResult(
                    key.name, error.code, error.message, topic_id=key.topic_id
                )
    who = caller_fields(context)
    answers = []
    async for result in iterate_cooperatively(results.values(), context):
        log_deleted_topic(result, who)
        answers.append(_deleted(result, context.api_version))
    return DeleteTopicsResponse(responses=answers)


def _refuse_deletion(
    reference: TopicReference, context: RequestContext, services: Services
) -> TopicResult | None:
    name = reference.name
    if name is None:
        topic = services.image.topics_by_id.get(reference.topic_id)
        if topic is None:
            return None
        name = topic.name
        if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name):
            # The name is only for who may describe the topic.
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return TopicResult(None, denied, topic_id=reference.topic_id)
    elif name not in services.image.topics_by_name and services.authorizer.is_topic_allowed(
        context, AclOperation.DESCRIBE, name
    ):
        return None
    if not services.authorizer.is_topic_allowed(context, AclOperation.DELETE, name):
        return TopicResult(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic_id=reference.topic_id)
    return None


def _deleted(result: TopicResult, version: int) -> DeletableTopicResult:
    code = result.error_code
    if code == ErrorCode.TOPIC_DELETION_DISABLED and version < 3:
        # v3 added the code TOPIC_DELETION_DISABLED.
        code = ErrorCode.INVALID_REQUEST
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=code,
        error_message=_message(result),
    )


# -- CreatePartitions ------------------------------------------------------------------------


async def handle_create_partitions(
    request: CreatePartitionsRequest, context: RequestContext, services: Services
) -> CreatePartitionsResponse:
    """Add partitions to topics, each by itself. Needs ALTER on the topic."""
    names: dict[str, None] = {}
    allowed = set()
    new = []
    is_too_large = len(request.topics) > PARTITIONS_PER_COMMAND_MAX
    async for topic in iterate_cooperatively(request.topics, context):
        names[topic.name] = None
        if not is_too_large and services.authorizer.is_topic_allowed(
            context, AclOperation.ALTER, topic.name
        ):
            allowed.add(topic.name)
            new.append(
                NewPartitions(
                    topic.name,
                    topic.count,
                    None
                    if topic.assignments is None
                    else tuple(tuple(each.broker_ids) for each in topic.assignments),
                )
            )
    results = await _submit(
        CreatePartitions(
            tuple(new), request.validate_only, services.client_quotas.mutating_client(context)
        ),
        names,
        allowed,
        request.timeout_ms,
        context,
        services,
        refusal=_TOO_LARGE if is_too_large else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=name,
                error_code=results[name].error_code,
                error_message=_message(results[name]),
            )
            async for name in iterate_cooperatively(names, context)
        ]
    )


# -- DeleteRecords ---------------------------------------------------------------------------


async def handle_delete_records(
    request: DeleteRecordsRequest, context: RequestContext, services: Services
) -> DeleteRecordsResponse:
    """Move log start offsets forward. Needs DELETE on the topic. Partitions run in parallel."""
    pace = LoopYielder(context)
    topics = []
    in_flight: deque[tuple[DeleteRecordsPartitionResult, Reply[DeleteRecordsReply]]] = deque()

    async def settle(count_max: int) -> None:
        while len(in_flight) > count_max:
            await pace.step()
            answer, reply = in_flight.popleft()
            deleted = await reply
            answer.error_code = deleted.error_code
            if isinstance(deleted, RecordsDeleted):
                answer.low_watermark = deleted.low_watermark
                context.worker_ns += deleted.work_ns

    for topic in request.topics:
        await pace.step()
        answers = []
        for wanted in topic.partitions:
            await pace.step()
            await settle(DELETIONS_IN_FLIGHT_MAX)
            answer = DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=-1
            )
            location = _location_to_delete(topic.name, wanted, context, services)
            if isinstance(location, ErrorCode):
                answer.error_code = location
            else:
                message = DeleteRecords(UNSENT, *location, wanted.offset, request.timeout_ms)
                in_flight.append((answer, services.worker_client.send(message)))
            answers.append(answer)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=answers))
    await settle(0)
    return DeleteRecordsResponse(topics=topics)


def _location_to_delete(
    name: str, wanted: PartitionOffset, context: RequestContext, services: Services
) -> tuple[int, int] | ErrorCode:
    """The store and number of the partition, or the error."""
    if not services.authorizer.is_topic_allowed(context, AclOperation.DELETE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = services.image.topics_by_name.get(name)
    index = wanted.partition_index
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    settings = services.metadata.topic_settings(name)
    if "delete" not in settings.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION
    if wanted.offset < HIGH_WATERMARK:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    location = services.logs.locate(topic.topic_id, index)
    if topic.partitions[index].leader != services.node_id or location is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return location
