"""Produce (0): versions 0 to 13.

v0-2 carry message sets (magic 0 and 1), which the worker converts; v3 record batches of magic 2
only; v7 zstd; v8 errors per record (KIP-467); v10 the current leader (KIP-951); v13 topic ids
(KIP-516). Batches stay in the arena: the worker that owns the partition appends the bytes that were
received.

Transactional batches wait until the transaction coordinator has added or verified their partition
(transactions/partition_verification.py, KIP-890): clients of v12 and later rely on the broker to
add it, for others it is verified.
"""

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import TopicImage
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS
from odradek.node.bus.messages import UNSENT, Append, AppendBytes, Appended, AppendReply
from odradek.node.bus.reply import Reply
from odradek.node.router.addresses import endpoints_of, leader_for_clients
from odradek.node.router.authorizer import CLUSTER_PRINCIPAL
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.transactions.partition_verification import (
    TRANSACTION_V2_MIN_VERSION,
    TransactionalProducer,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.messages.responses import LeaderIdAndEpoch, NodeEndpoint
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
    unpack_header,
)

LEADERS_SINCE = 10
"""The first version whose responses name the leader where this broker is not it."""

TOPIC_ID_SINCE = 13
"""The first version with topic ids instead of names."""

_ATTRIBUTES_LOW_AT = ATTRIBUTES_AT + 1
_BATCH_BYTES_MIN = MAGIC_AT + 1
_ADMINISTRATORS_CLIENT_ID = "__admin_client"
"""As in Kafka, the only client id that may write to internal topics, to repair them."""


async def handle_produce(
    request: ProduceRequest, context: RequestContext, services: Services
) -> ProduceResponse | None:
    """Append every partition's batches. Responds when all are answered; never for acks=0."""
    acks = request.acks
    version = context.api_version
    by_id = version >= TOPIC_ID_SINCE
    transactional_id = request.transactional_id
    refusal = ErrorCode.NONE
    if acks not in (-1, 0, 1):
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    elif transactional_id is not None and not services.authorizer.is_transactional_id_allowed(
        context, AclOperation.WRITE, transactional_id
    ):
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    context.retain()
    context.may_have_errors = False
    waiting: list[tuple[PartitionProduceResponse, Reply[AppendReply]]] = []
    stores: list[int] = []
    responses: list[TopicProduceResponse] = []
    for topic_data in request.topic_data:
        image = services.metadata.image
        topic = (
            image.topics_by_id.get(topic_data.topic_id)
            if by_id
            else image.topics_by_name.get(topic_data.name)
        )
        error = refusal or _topic_error(topic, topic_data.name, by_id, context, services)
        if error:
            context.may_have_errors = True
        partitions: list[PartitionProduceResponse] = []
        for data in topic_data.partition_data:
            partition = PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1)
            partitions.append(partition)
            if error is ErrorCode.NONE and topic is not None:
                reply = _append(topic, data, request, context, services, stores)
                if isinstance(reply, ErrorCode):
                    partition.error_code = reply
                    context.may_have_errors = True
                else:
                    waiting.append((partition, reply))
        responses.append(
            TopicProduceResponse(
                name=topic_data.name,
                topic_id=topic_data.topic_id,
                partition_responses=partitions,
            )
        )
    for partition, reply in waiting:
        _set_result(partition, await reply, context)
    if acks == 0:
        if any(
            p.error_code for topic_response in responses for p in topic_response.partition_responses
        ):
            # There is no response for the error. As in Kafka, the closed connection makes the
            # client refresh its metadata.
            context.close()
        return None
    with_leaders = version >= LEADERS_SINCE
    endpoints = _set_current_leaders(responses, context, services) if with_leaders else []
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


def respond_to(
    answer: AppendReply,
    topic: TopicProduceResponse,
    index: int,
    context: RequestContext,
    services: Services,
) -> ProduceResponse:
    """The response to a request with a single batch, which the worker has answered. The topic's
    struct has no partition yet."""
    partition = PartitionProduceResponse(index=index, base_offset=-1)
    _set_result(partition, answer, context)
    topic.partition_responses = [partition]
    with_leaders = context.api_version >= LEADERS_SINCE
    endpoints = _set_current_leaders([topic], context, services) if with_leaders else []
    return ProduceResponse(responses=[topic], node_endpoints=endpoints)


def _topic_error(
    topic: TopicImage | None,
    asked_name: str,
    by_id: bool,
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    if topic is None and by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    name = topic.name if topic is not None else asked_name
    if not services.authorizer.is_allowed(context, AclOperation.WRITE, ResourceType.TOPIC, name):
        # Also by id, as in Kafka: a client that guesses 128 bits knows more than that.
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name in INTERNAL_TOPICS and context.client_id != _ADMINISTRATORS_CLIENT_ID:
        # A record that the coordinator cannot read would keep the shard from loading.
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.NONE


def _append(
    topic: TopicImage,
    data: PartitionProduceData,
    request: ProduceRequest,
    context: RequestContext,
    services: Services,
    stores: list[int],
) -> Reply[AppendReply] | ErrorCode:
    """`stores` has the stores of the partitions before this one in the frame; it is added to."""
    if not 0 <= data.index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    location = services.logs.locate(topic.topic_id, data.index)
    if topic.partitions[data.index].leader != services.metadata.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if location is None:
        return services.missing_log_error
    records = data.records
    version = context.api_version
    if records is None or len(records) < _BATCH_BYTES_MIN:
        return ErrorCode.INVALID_RECORD if version >= 3 else ErrorCode.CORRUPT_MESSAGE
    store, number = location
    is_old_format = records[MAGIC_AT] < MAGIC
    if is_old_format and version >= 3:
        return ErrorCode.INVALID_RECORD
    if context.principal == CLUSTER_PRINCIPAL:
        # Another node's router; the request is not in the arena.
        return services.worker_client.append_bytes(
            AppendBytes(
                UNSENT,
                store,
                number,
                bytes(records),
                is_client=True,
                acks=request.acks,
                version=version,
                timeout_ms=request.timeout_ms,
            )
        )
    # The bytes before this batch may be the tail of the previous partition's: then the worker that
    # appends that one must append this one too. A store belongs to one worker and thread.
    has_headroom = not stores or store == stores[-1]
    stores.append(store)
    message = Append(
        UNSENT,
        store,
        number,
        context.offset_of(records),
        len(records),
        acks=request.acks,
        version=version,
        has_headroom=has_headroom,
        timeout_ms=request.timeout_ms,
    )
    is_transactional = (
        len(records) >= HEADER_BYTES
        and not is_old_format
        and records[_ATTRIBUTES_LOW_AT] & TRANSACTIONAL
    )
    if not is_transactional:
        return services.worker_client.send(message)
    if request.transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    header = unpack_header(records)
    producer = TransactionalProducer(
        request.transactional_id, header.producer_id, header.producer_epoch
    )
    partition = topic.name, data.index
    return _append_in_transaction(message, producer, partition, header.base_sequence, services)


def _append_in_transaction(
    message: Append,
    producer: TransactionalProducer,
    partition: tuple[str, int],
    sequence: int,
    services: Services,
) -> Reply[AppendReply]:
    """Append once the partition is known to be part of the transaction (KIP-890)."""
    send, version = services.worker_client.send, message.version
    if version < TRANSACTION_V2_MIN_VERSION:
        settings = services.metadata.broker_settings()
        if not settings.transaction_partition_verification_enable:
            return send(message)

    def append(leader_epoch: int) -> Reply[AppendReply]:
        message.leader_epoch = leader_epoch
        return send(message)

    return services.partition_verification.append(
        producer, partition, append, version=version, sequence=sequence
    )


def _set_result(
    partition: PartitionProduceResponse, answer: AppendReply, context: RequestContext
) -> None:
    partition.error_code = answer.error_code
    if answer.error_code:
        context.may_have_errors = True
    if type(answer) is Appended:
        context.worker_ns += answer.work_ns
        partition.base_offset = answer.base_offset
        partition.log_append_time_ms = answer.log_append_time_ms
        partition.log_start_offset = answer.log_start_offset
        if answer.error_code:
            partition.error_message = answer.error_message
            partition.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in answer.record_errors
            ]


def _set_current_leaders(
    responses: list[TopicProduceResponse], context: RequestContext, services: Services
) -> list[NodeEndpoint]:
    """Name the current leader where this broker is not it. Returns the leaders' endpoints."""
    image = services.image
    leaders: set[int] = set()
    for response in responses:
        for partition in response.partition_responses:
            if partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            topic = image.topics_by_id.get(response.topic_id) or image.topics_by_name.get(
                response.name
            )
            if topic is not None and partition.index < len(topic.partitions):
                state = topic.partitions[partition.index]
                leader = leader_for_clients(state, services.controller.unreachable)
                leaders.add(leader)
                partition.current_leader = LeaderIdAndEpoch(
                    leader_id=leader, leader_epoch=state.leader_epoch
                )
    return endpoints_of(leaders, image, context, services.node_id)
