"""Metadata (3, versions 0 to 13), DescribeTopicPartitions (75, version 0), DescribeCluster (60, 0
to 2).

Metadata: in v0 an empty list means all topics, from v1 null does; v4 lets the client disable
automatic creation; v8 to v10 have authorized operations (KIP-430); v12 names topics by id
(KIP-516), for which v10 and v11 have unused fields. DescribeCluster: v1 distinguishes brokers and
controllers (KIP-919), v2 can list fenced brokers (KIP-1073). DescribeTopicPartitions (KIP-966)
returns pages, with a cursor.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.controller.topics import PARTITIONS_PER_COMMAND_MAX
from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import BrokerImage, PartitionImage, TopicImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_error
from odradek.node.router.addresses import address_of, leader_for_clients
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    iterate_cooperatively,
    sort_cooperatively,
)
from odradek.node.router.handlers.topics import can_create_topic, fresh_topic_id
from odradek.node.router.topic_log import caller_fields, log_created_topic
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.messages.responses import NodeEndpoint
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, ZERO_UUID, Uuid

RESPONSE_PARTITIONS_MAX = 2000
"""Partitions in one DescribeTopicPartitions response. Kafka's default of
max.request.partition.size.limit."""
_AUTO_CREATE_TIMEOUT_MS = 5_000
_BROKERS = 1
_CONTROLLERS = 2

T = TypeVar("T", MetadataResponseTopic, DescribeTopicPartitionsResponseTopic)
P = TypeVar("P", MetadataResponsePartition, DescribeTopicPartitionsResponsePartition)


# -- Metadata --------------------------------------------------------------------------------


async def handle_metadata(
    request: MetadataRequest, context: RequestContext, services: Services
) -> MetadataResponse:
    """Brokers and topics. Needs DESCRIBE on each topic; without it, topics that the request does
    not name are left out.
    """
    wanted = request.topics
    pace = LoopYielder(context)
    if wanted is None or (context.api_version == 0 and not wanted):
        topics = []
        for name, topic in services.image.topics_by_name.items():
            await pace.step()
            if services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name):
                topics.append(await _topic(topic, request, context, services, pace))
    else:
        topics = await _named_topics(wanted, request, context, services, pace)
    response = MetadataResponse(
        brokers=[
            NodeEndpoint(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)
            for broker, host, port in _reachable_brokers(context, services)
        ],
        cluster_id=services.cluster_id,
        controller_id=services.node_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(context, services)
    return response


def _cluster_operations(context: RequestContext, services: Services) -> int:
    """What the client may do with the cluster; 0 for a client that may not DESCRIBE it."""
    if not services.authorizer.is_cluster_allowed(context, AclOperation.DESCRIBE):
        return 0
    return services.authorizer.authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME)


def _reachable_brokers(
    context: RequestContext, services: Services
) -> Iterable[tuple[BrokerImage, str, int]]:
    """The unfenced brokers, and always this one: the client has reached it, and the response names
    it as the controller. librdkafka drops brokers that are not listed: when all were fenced for a
    moment, it closed its connections and stayed without them for minutes, with commits pending.
    """
    for broker in services.image.brokers.values():
        address = address_of(broker, context, services.node_id)
        if address is not None and (not broker.is_fenced or broker.broker_id == services.node_id):
            yield broker, *address


async def _named_topics(
    wanted: Sequence[MetadataRequestTopic],
    request: MetadataRequest,
    context: RequestContext,
    services: Services,
    pace: LoopYielder,
) -> list[MetadataResponseTopic]:
    requested: dict[tuple[str | None, Uuid], None] = {}
    for topic in wanted:
        await pace.step()
        # Kafka answers once for an id, whatever names come with it. v10 and v11 have no ids.
        is_by_id = topic.topic_id != ZERO_UUID and context.api_version >= 12
        requested[None if is_by_id else topic.name, topic.topic_id] = None
    failures: dict[str, ErrorCode] = {}
    if request.allow_auto_topic_creation:
        failures = await _create_missing(
            [name for name, topic_id in requested if name is not None and topic_id == ZERO_UUID],
            context,
            services,
            pace,
        )
    answers = []
    for name, topic_id in requested:
        await pace.step()
        if topic_id != ZERO_UUID or name is None:
            answers.append(await _topic_by_id(name, topic_id, request, context, services, pace))
        else:
            answers.append(await _topic_by_name(name, failures, request, context, services, pace))
    return answers


async def _topic_by_name(
    name: str,
    failures: dict[str, ErrorCode],
    request: MetadataRequest,
    context: RequestContext,
    services: Services,
    pace: LoopYielder,
) -> MetadataResponseTopic:
    if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name):
        return _failed(MetadataResponseTopic, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = services.image.topics_by_name.get(name)
    if topic is not None:
        return await _topic(topic, request, context, services, pace)
    if topic_name_error(name) is not None:
        return _failed(MetadataResponseTopic, name, ErrorCode.INVALID_TOPIC_EXCEPTION)
    code = failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer = _failed(MetadataResponseTopic, name, code)
    answer.topic_authorized_operations = _operations(name, request, context, services)
    return answer


async def _topic_by_id(
    name: str | None,
    topic_id: bytes,
    request: MetadataRequest,
    context: RequestContext,
    services: Services,
    pace: LoopYielder,
) -> MetadataResponseTopic:
    if context.api_version < 12 or topic_id == ZERO_UUID:
        # v10 and v11 have the fields, but Kafka does not allow their use (KAFKA-10774).
        return _failed(MetadataResponseTopic, name or "", ErrorCode.INVALID_REQUEST)
    topic = services.image.topics_by_id.get(topic_id)
    code = ErrorCode.NONE
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, topic.name):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None or code:
        return MetadataResponseTopic(error_code=code, name=None, topic_id=topic_id)
    return await _topic(topic, request, context, services, pace)


def _failed(topic_class: type[T], name: str, code: ErrorCode) -> T:
    return topic_class(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


async def _topic(
    topic: TopicImage,
    request: MetadataRequest,
    context: RequestContext,
    services: Services,
    pace: LoopYielder,
) -> MetadataResponseTopic:
    partitions = []
    for index, partition in enumerate(topic.partitions):
        await pace.step()
        partitions.append(_partition(MetadataResponsePartition, index, partition, services))
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=_operations(topic.name, request, context, services),
    )


def _partition(
    partition_class: type[P], index: int, partition: PartitionImage, services: Services
) -> P:
    leader = leader_for_clients(partition, services.controller.unreachable)
    brokers = services.image.brokers
    return partition_class(
        error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.in_sync_replicas),
        offline_replicas=[
            replica
            for replica in partition.replicas
            if (broker := brokers.get(replica)) is None
            or broker.is_fenced
            or (broker.offline_log_dirs and not broker.is_online(partition.directory_of(replica)))
        ],
    )


def _operations(
    name: str, request: MetadataRequest, context: RequestContext, services: Services
) -> int:
    if not request.include_topic_authorized_operations:
        return NO_AUTHORIZED_OPERATIONS
    return services.authorizer.authorized_operations(context, ResourceType.TOPIC, name)


async def _create_missing(
    names: Sequence[str], context: RequestContext, services: Services, pace: LoopYielder
) -> dict[str, ErrorCode]:
    """Create the topics that do not exist (auto.create.topics.enable), unless they are too many for
    one request. Returns the failures.

    Internal topics are not created here: their coordinators create them with their own configs.
    """
    image = services.image
    settings = broker_settings(image, services.node_id, services.static_configs)
    if not settings.auto_create_topics_enable:
        return {}
    missing = []
    for name in names:
        await pace.step()
        if (
            name not in image.topics_by_name
            and name not in INTERNAL_TOPICS
            and topic_name_error(name) is None
            and services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
        ):
            missing.append(name)
    if not missing or len(missing) > PARTITIONS_PER_COMMAND_MAX:
        return {}
    allowed = [name for name in missing if can_create_topic(name, context, services)]
    failures = dict.fromkeys(missing, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    # The topic is about to exist, even if the controller does not answer in time.
    failures.update(dict.fromkeys(allowed, ErrorCode.LEADER_NOT_AVAILABLE))
    if allowed:
        command = CreateTopics(
            tuple(NewTopic(name, fresh_topic_id()) for name in allowed),
            client=services.client_quotas.mutating_client(context),
        )
        try:
            reply = await services.controller.submit(command, _AUTO_CREATE_TIMEOUT_MS)
        except ApiError:
            return failures
        context.throttle_time_ms = reply.throttle_time_ms
        who = {**caller_fields(context), "cause": "a Metadata request"}
        for result in reply.results:
            log_created_topic(result, who)
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                failures[result.name or ""] = ErrorCode(result.error_code)
    return failures


# -- DescribeTopicPartitions -----------------------------------------------------------------


async def handle_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext, services: Services
) -> DescribeTopicPartitionsResponse:
    """Partitions of topics, ordered by topic name, from a cursor on and up to a limit. Needs
    DESCRIBE on each topic.
    """
    image = services.image
    pace = LoopYielder(context)
    requested = {topic.name async for topic in iterate_cooperatively(request.topics, context)}
    cursor = request.cursor
    is_cursor_lost = cursor is not None and requested and cursor.topic_name not in requested
    if is_cursor_lost or (cursor is not None and cursor.partition_index < 0):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=name
                )
                for name in await sort_cooperatively(list(requested), context)
            ]
        )
    room = max(1, min(request.response_partition_limit, RESPONSE_PARTITIONS_MAX))
    topics = []
    names = list(requested or image.topics_by_name)
    for name in await sort_cooperatively(names, context):
        await pace.step()
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        topic = image.topics_by_name.get(name)
        if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name):
            if requested:
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topics.append(_failed(DescribeTopicPartitionsResponseTopic, name, denied))
            continue
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic_name_error(name) is not None:
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            unknown = _failed(DescribeTopicPartitionsResponseTopic, name, code)
            unknown.topic_authorized_operations = services.authorizer.authorized_operations(
                context, ResourceType.TOPIC, name
            )
            topics.append(unknown)
            continue
        if first >= len(topic.partitions):
            continue
        if room == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=first)
            )
        end = min(len(topic.partitions), first + room)
        room -= end - first
        topics.append(await _described(topic, context, services, pace, first=first, end=end))
        if end < len(topic.partitions):
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=end)
            )
    return DescribeTopicPartitionsResponse(topics=topics)


async def _described(
    topic: TopicImage,
    context: RequestContext,
    services: Services,
    pace: LoopYielder,
    *,
    first: int,
    end: int,
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index, state in enumerate(topic.partitions[first:end], first):
        await pace.step()
        partition = _partition(DescribeTopicPartitionsResponsePartition, index, state, services)
        partition.eligible_leader_replicas = list(state.elr)
        partition.last_known_elr = list(state.last_known_elr)
        partitions.append(partition)
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=services.authorizer.authorized_operations(
            context, ResourceType.TOPIC, topic.name
        ),
    )


# -- DescribeCluster -------------------------------------------------------------------------


async def handle_describe_cluster(
    request: DescribeClusterRequest, context: RequestContext, services: Services
) -> DescribeClusterResponse:
    """The brokers of the cluster. Authorized operations need DESCRIBE on the cluster."""
    if request.endpoint_type != _BROKERS:
        is_known = request.endpoint_type == _CONTROLLERS
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(error_code=code, error_message=code.message)
    image = services.image
    brokers = []
    for broker in image.brokers.values():
        address = address_of(broker, context, services.node_id)
        if address is None or (broker.is_fenced and not request.include_fenced_brokers):
            continue
        brokers.append(
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=address[0],
                port=address[1],
                rack=broker.rack,
                is_fenced=broker.is_fenced,
            )
        )
    response = DescribeClusterResponse(
        cluster_id=services.cluster_id, controller_id=services.node_id, brokers=brokers
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(context, services)
    return response
