"""Produce (0): versions 0 to 13.

v0-2 carry message sets (magic 0 and 1), which are converted up here; v3 record batches of magic 2
only; v7 zstd; v8 errors per record (KIP-467); v10 who leads instead (KIP-951); v13 topic ids
(KIP-516). Batches stay in the arena: the worker that owns the partition appends the very bytes that
the kernel delivered.

Transactional batches wait until the transaction's coordinator knows of their partition
(transactions/partition_verification.py): clients of v12 and later leave that to us, others are
verified (KIP-890).
"""

from struct import Struct

from odradek.cluster.metadata.image import TopicImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS
from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.bus.messages import Appended
from odradek.node.bus.reply import Reply
from odradek.node.router.addresses import endpoints_of, leader_for_clients
from odradek.node.router.authorizer import AclOperation
from odradek.node.router.context import CLUSTER_PRINCIPAL, RequestContext, Services
from odradek.node.router.transactions.partition_verification import (
    TRANSACTION_V2_MIN_VERSION,
    TransactionalProducer,
)
from odradek.node.router.worker_client import Answer
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.legacy_records import up_convert
from odradek.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceLeaderIdAndEpoch,
    ProduceNodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.records import HEADER_BYTES, TRANSACTIONAL

_MAGIC_AT = 16
_TRANSACTIONAL_AT = 22
_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")
_BATCH_BYTES_MIN = 17
_ADMINISTRATORS_CLIENT_ID = "__admin_client"
"""As in Kafka, the one client that may write to the coordinators' topics, to repair them."""


async def handle_produce(
    request: ProduceRequest, context: RequestContext, services: Services
) -> ProduceResponse | None:
    """Append every partition's batches; answers when the last one is answered, not at all for
    acks=0."""
    acks = request.acks
    version = context.api_version
    by_id = version >= 13
    refusal = ErrorCode.NONE if acks in (-1, 0, 1) else ErrorCode.INVALID_REQUIRED_ACKS
    if refusal is ErrorCode.NONE and request.transactional_id is not None:
        refusal = _transactional_id_error(request.transactional_id, context, services)
    context.retain()
    waiting: list[tuple[PartitionProduceResponse, Reply[Answer]]] = []
    stores: list[int] = []
    responses: list[TopicProduceResponse] = []
    for topic_data in request.topic_data:
        image = services.image
        topic = (
            image.topics_by_id.get(topic_data.topic_id)
            if by_id
            else image.topics_by_name.get(topic_data.name)
        )
        error = refusal or _topic_error(topic, topic_data.name, by_id, context, services)
        partitions: list[PartitionProduceResponse] = []
        for data in topic_data.partition_data:
            partition = PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1)
            partitions.append(partition)
            if error is ErrorCode.NONE and topic is not None:
                reply = _append(topic, data, request, context, services, stores)
                if isinstance(reply, ErrorCode):
                    partition.error_code = reply
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
        _set_result(partition, await reply)
    if acks == 0:
        if any(
            p.error_code for topic_response in responses for p in topic_response.partition_responses
        ):
            # There is no response to carry the error: losing the connection makes the client look
            # again.
            context.close()
        return None
    endpoints = _set_current_leaders(responses, context, services) if version >= 10 else []
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


def _transactional_id_error(
    transactional_id: str, context: RequestContext, services: Services
) -> ErrorCode:
    if services.authorizer.is_transactional_id_allowed(
        context, AclOperation.WRITE, transactional_id
    ):
        return ErrorCode.NONE
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _topic_error(
    topic: TopicImage | None,
    asked_name: str,
    by_id: bool,
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    name = topic.name if topic is not None else asked_name
    if not services.authorizer.is_topic_allowed(context, AclOperation.WRITE, name):
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name in INTERNAL_TOPICS and context.client_id != _ADMINISTRATORS_CLIENT_ID:
        # A record that no coordinator can read would keep its whole shard from loading.
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.NONE


def _append(
    topic: TopicImage,
    data: PartitionProduceData,
    request: ProduceRequest,
    context: RequestContext,
    services: Services,
    stores: list[int],
) -> Reply[Answer] | ErrorCode:
    """`stores`: where the partitions before this one in the frame went; it is added to."""
    if not 0 <= data.index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.partitions[data.index].leader != services.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    place = services.logs.locate(topic.topic_id, data.index)
    if place is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    records = data.records
    acks, timeout_ms = request.acks, request.timeout_ms
    version = context.api_version
    if records is None or len(records) < _BATCH_BYTES_MIN:
        return ErrorCode.INVALID_RECORD if version >= 3 else ErrorCode.CORRUPT_MESSAGE
    store, number = place
    if records[_MAGIC_AT] < 2:
        if version >= 3:
            return ErrorCode.INVALID_RECORD
        try:
            batches = b"".join(up_convert(records))
        except ApiError as error:
            return error.code
        except ProtocolError:
            return ErrorCode.CORRUPT_MESSAGE
        return services.worker_client.append_bytes(
            store=store,
            number=number,
            batches=batches,
            is_client=True,
            acks=acks,
            version=version,
            timeout_ms=timeout_ms,
        )
    if context.principal == CLUSTER_PRINCIPAL:
        # Another node's router asks: what it sends does not lie in the arena.
        return services.worker_client.append_bytes(
            store=store,
            number=number,
            batches=bytes(records),
            is_client=True,
            acks=acks,
            version=version,
            timeout_ms=timeout_ms,
        )
    # The bytes before ours may be the tail of the partition before: then whoever writes that one
    # must write ours too, and stores are what workers and their threads divide.
    has_headroom = not stores or store == stores[-1]
    stores.append(store)
    arena_offset, length = context.offset_of(records), len(records)
    if length < HEADER_BYTES or not records[_TRANSACTIONAL_AT] & TRANSACTIONAL:
        # Nearly all: nothing is made for these beyond the message itself.
        return services.worker_client.append_reference(
            store=store,
            number=number,
            arena_offset=arena_offset,
            length=length,
            acks=acks,
            version=version,
            has_headroom=has_headroom,
            timeout_ms=timeout_ms,
        )
    if request.transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def append(leader_epoch: int) -> Reply[Answer]:
        return services.worker_client.append_reference(
            store=store,
            number=number,
            arena_offset=arena_offset,
            length=length,
            acks=acks,
            version=version,
            has_headroom=has_headroom,
            timeout_ms=timeout_ms,
            leader_epoch=leader_epoch,
        )

    if version < TRANSACTION_V2_MIN_VERSION and not _is_verified(services):
        return append(ANY_EPOCH)
    producer_id, producer_epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    producer = TransactionalProducer(request.transactional_id, producer_id, producer_epoch)
    partition = topic.name, data.index
    return services.partition_verification.append(producer, partition, append, version, sequence)


def _is_verified(services: Services) -> bool:
    settings = broker_settings(services.image, services.node_id, services.static_configs)
    return settings.transaction_partition_verification_enable


def _set_result(partition: PartitionProduceResponse, answer: Answer) -> None:
    partition.error_code = answer.error_code
    if type(answer) is Appended:
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
) -> list[ProduceNodeEndpoint]:
    """Tell whoever asked the wrong broker who leads, and where the leaders are to be found."""
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
                partition.current_leader = ProduceLeaderIdAndEpoch(
                    leader_id=leader, leader_epoch=state.leader_epoch
                )
    return [
        ProduceNodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in endpoints_of(leaders, image, context, services.node_id)
    ]
