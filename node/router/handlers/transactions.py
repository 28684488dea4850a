"""Transactions: InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
WriteTxnMarkers (27), DescribeTransactions (65), ListTransactions (66).

InitProducerId 0-5: v3 continues with a former id (KIP-360), v4 may return PRODUCER_FENCED. An
idempotent producer without a transactional id gets a new id at epoch 0 from any broker; the former
id in its request is ignored. AddPartitionsToTxn 0-5: v4 is for brokers, takes several transactions
and can verify (KIP-890). AddOffsetsToTxn 0-4, EndTxn 0-5: v5 returns the epoch of the next
transaction. WriteTxnMarkers 0-2: v2 adds the transaction version. ListTransactions 0-2: v1 filters
by age (KIP-994), v2 by a pattern (KIP-1152). TxnOffsetCommit (28) is in transactional_offsets.py.

The transaction's shard decides (coordinator.transaction). The handlers authorize and build error
responses.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.transaction.records import partitions_of
from odradek.coordinator.transaction.requests import (
    DescribeTransaction,
    EndTransaction,
    InitProducer,
)
from odradek.coordinator.transaction.transaction_metadata import (
    EPOCH_BUMPS_SINCE,
    Partition,
    is_epoch_exhausted,
)
from odradek.node.bus.reply import start_coroutine
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    gather_cooperatively,
    iterate_cooperatively,
    run_in_thread,
    unique_cooperatively,
)
from odradek.node.router.handlers.shard_requests import answer_of, ask_hosted_shards
from odradek.node.router.patterns import Pattern, compile_pattern
from odradek.node.router.transactions.partition_verification import (
    TRANSACTION_V1,
    TransactionalProducer,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import (
    PartitionResult,
    TopicPartitionResults,
    TopicPartitions,
)
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsTransactionState,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID

_BATCHED_SINCE: Final = 4
_FENCED_SINCE: Final = 2
_TRANSACTION_V2_SINCE: Final = 5
_MATCHING_S: Final = 0.002
_PAUSE_S: Final = 0.001
_STEPS_INLINE: Final = 50_000
"""Instructions of a pattern times characters of an id, at 10 to 20 ns each: what is matched in the
loop."""
_STEPS_MAX: Final = 500_000_000
"""The same for all ids together, unless the pattern has at most _SMALL_PROGRAM instructions."""
_SMALL_PROGRAM: Final = 100


# -- InitProducerId -------------------------------------------------------------------------------


async def handle_init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, services: Services
) -> InitProducerIdResponse:
    """A producer id. With a transactional id its coordinator assigns it, and aborts an open
    transaction of the previous producer. Without one it needs IDEMPOTENT_WRITE on the cluster, or
    WRITE on any topic (KIP-679)."""
    try:
        return await _init_producer_id(request, context, services)
    except ApiError as error:
        return InitProducerIdResponse(
            error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH
        )


async def _init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, services: Services
) -> InitProducerIdResponse:
    transactional_id = request.transactional_id
    if transactional_id is None:
        authorizer = services.authorizer
        if not authorizer.is_cluster_allowed(
            context, AclOperation.IDEMPOTENT_WRITE
        ) and not authorizer.is_any_allowed(context, AclOperation.WRITE, ResourceType.TOPIC):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        producer_id = await services.producer_ids.next_id()
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    _authorize(AclOperation.WRITE, transactional_id, context, services)
    if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_EPOCH):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if services.transaction_coordinator.coordinator_of(transactional_id) != services.node_id:
        raise ApiError(ErrorCode.NOT_COORDINATOR)
    command = InitProducer(request, await services.producer_ids.next_id())
    reply = services.transaction_coordinator.call(transactional_id, command, context)
    return await answer_of(reply, too_large=ErrorCode.INVALID_REQUEST)


def _authorize(
    operation: AclOperation, transactional_id: str, context: RequestContext, services: Services
) -> None:
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    services.authorizer.authorize(
        context, operation, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _known_to(error: ErrorCode, context: RequestContext) -> ErrorCode:
    """PRODUCER_FENCED exists since v2."""
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# -- AddPartitionsToTxn ---------------------------------------------------------------------------


async def handle_add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext, services: Services
) -> AddPartitionsToTxnResponse:
    """Up to v3 from clients, for one transaction. From v4 from brokers, for several."""
    if context.api_version < _BATCHED_SINCE:
        results = await _add_for_client(request, context, services)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    services.authorizer.authorize(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    waiting = [
        start_coroutine(_add_for_broker(transaction, context, services))
        for transaction in request.transactions
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=[await reply for reply in waiting])


async def _add_for_client(
    request: AddPartitionsToTxnRequest, context: RequestContext, services: Services
) -> list[TopicPartitionResults]:
    producer = TransactionalProducer(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
    )
    topics = request.v3_and_below_topics
    partitions = partitions_of(topics)
    try:
        services.authorizer.authorize(
            context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, producer.transactional_id
        )
        codes = _all_or_nothing(
            {
                partition: _partition_error(partition, context, services)
                async for partition in iterate_cooperatively(partitions, context)
            }
        ) or await services.partition_verification.add(producer, partitions)
    except ApiError as error:
        codes = dict.fromkeys(partitions, error.code)
    known = {key: _known_to(code, context) for key, code in codes.items()}
    return await _results(topics, known, context)


async def _add_for_broker(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext, services: Services
) -> AddPartitionsToTxnResult:
    producer = TransactionalProducer(
        transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    )
    partitions = partitions_of(transaction.topics)
    try:
        # A partition that does not exist could never get the marker.
        codes = _all_or_nothing(
            {
                partition: _existence_error(partition, services)
                async for partition in iterate_cooperatively(partitions, context)
            }
        ) or await services.partition_verification.decide_locally(
            producer, partitions, EPOCH_BUMPS_SINCE, verify_only=transaction.verify_only
        )
    except ApiError as error:
        codes = dict.fromkeys(partitions, error.code)
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=await _results(transaction.topics, codes, context),
    )


def _partition_error(
    partition: Partition, context: RequestContext, services: Services
) -> ErrorCode:
    name, _ = partition
    is_internal = name in (CONSUMER_OFFSETS, TRANSACTION_STATE)
    if is_internal or not services.authorizer.is_topic_allowed(context, AclOperation.WRITE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return _existence_error(partition, services)


def _existence_error(partition: Partition, services: Services) -> ErrorCode:
    exists = services.metadata.partition(*partition) is not None
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _all_or_nothing(errors: dict[Partition, ErrorCode]) -> dict[Partition, ErrorCode]:
    """If one partition cannot be added none is: the error codes then. Empty if all can."""
    if all(error is ErrorCode.NONE for error in errors.values()):
        return {}
    return {
        partition: ErrorCode.OPERATION_NOT_ATTEMPTED if error is ErrorCode.NONE else error
        for partition, error in errors.items()
    }


async def _results(
    topics: list[TopicPartitions], codes: dict[Partition, ErrorCode], context: RequestContext
) -> list[TopicPartitionResults]:
    return [
        TopicPartitionResults(
            name=topic.name,
            partitions=[
                PartitionResult(partition_index=index, error_code=codes[topic.name, index])
                async for index in iterate_cooperatively(topic.partitions, context)
            ],
        )
        async for topic in iterate_cooperatively(topics, context)
    ]


# -- AddOffsetsToTxn ------------------------------------------------------------------------------


async def handle_add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext, services: Services
) -> AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets` to the transaction."""
    authorize = services.authorizer.authorize
    authorize(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    authorize(context, AclOperation.READ, ResourceType.GROUP, request.group_id)
    producer = TransactionalProducer(
        request.transactional_id, request.producer_id, request.producer_epoch
    )
    groups = services.group_coordinator
    await groups.ensure_topic()
    partition = CONSUMER_OFFSETS, groups.shard_of(request.group_id)
    codes = await services.partition_verification.decide_locally(
        producer, frozenset((partition,)), TRANSACTION_V1, verify_only=False
    )
    return AddOffsetsToTxnResponse(error_code=_known_to(codes[partition], context))


# -- EndTxn ---------------------------------------------------------------------------------------


async def handle_end_txn(
    request: EndTxnRequest, context: RequestContext, services: Services
) -> EndTxnResponse:
    """Commit or abort. After a response without error the transaction is decided."""
    _authorize(AclOperation.WRITE, request.transactional_id, context, services)
    bumps_epoch = context.api_version >= _TRANSACTION_V2_SINCE
    new_id = NO_PRODUCER_ID
    if bumps_epoch and is_epoch_exhausted(request.producer_epoch):
        new_id = await services.producer_ids.next_id()
    version = EPOCH_BUMPS_SINCE if bumps_epoch else TRANSACTION_V1
    reply = services.transaction_coordinator.call(
        request.transactional_id, EndTransaction(request, version, new_id), context
    )
    return await answer_of(reply, too_large=ErrorCode.INVALID_REQUEST)


# -- WriteTxnMarkers ------------------------------------------------------------------------------


async def handle_write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext, services: Services
) -> WriteTxnMarkersResponse:
    """Write the markers of a coordinator on another node, or of an administrator who aborts a
    hanging transaction (KIP-664)."""
    refusal = ErrorCode.NONE
    if not services.authorizer.is_cluster_allowed(
        context, AclOperation.CLUSTER_ACTION
    ) and not services.authorizer.is_cluster_allowed(context, AclOperation.ALTER):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    appended: list[PartitionResult] = []
    appends: list[Coroutine[Any, Any, int]] = []
    results: list[WritableTxnMarkerResult] = []
    pace = LoopYielder(context)
    for requested in request.markers:
        marker = TransactionMarker(
            requested.producer_id,
            requested.producer_epoch,
            requested.coordinator_epoch,
            requested.transaction_result,
        )
        topics = []
        for topic in requested.topics:
            await pace.step()
            partitions = []
            for index in topic.partitions:
                await pace.step()
                error = refusal or _marker_error(topic.name, index, services)
                partition = PartitionResult(partition_index=index, error_code=error)
                partitions.append(partition)
                if not error:
                    appended.append(partition)
                    appends.append(
                        services.markers.append(
                            topic.name, index, marker, requested.transaction_version
                        )
                    )
            topics.append(TopicPartitionResults(name=topic.name, partitions=partitions))
        results.append(WritableTxnMarkerResult(producer_id=requested.producer_id, topics=topics))
    codes = await gather_cooperatively(appends)
    for partition, code in zip(appended, codes, strict=True):
        partition.error_code = code
    return WriteTxnMarkersResponse(markers=results)


def _marker_error(name: str, index: int, services: Services) -> ErrorCode:
    partition = services.metadata.partition(name, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_leader = partition.leader == services.node_id
    return ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- DescribeTransactions, ListTransactions -------------------------------------------------------


async def handle_describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext, services: Services
) -> DescribeTransactionsResponse:
    """Transactions that this node coordinates. Each succeeds or fails by itself."""
    return DescribeTransactionsResponse(
        transaction_states=[
            await _describe(transactional_id, context, services)
            async for transactional_id in iterate_cooperatively(
                await unique_cooperatively(request.transactional_ids, context), context
            )
        ]
    )


async def _describe(
    transactional_id: str, context: RequestContext, services: Services
) -> DescribeTransactionsTransactionState:
    authorizer = services.authorizer
    command = DescribeTransaction(transactional_id)
    try:
        _authorize(AclOperation.DESCRIBE, transactional_id, context, services)
        state = await services.transaction_coordinator.call(transactional_id, command, context)
    except ApiError as error:
        return DescribeTransactionsTransactionState(
            error_code=error.code, transactional_id=transactional_id
        )
    state.topics = [
        topic
        for topic in state.topics
        if authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, topic.name)
    ]
    return state


async def handle_list_transactions(
    request: ListTransactionsRequest, context: RequestContext, services: Services
) -> ListTransactionsResponse:
    """The transactions of all shards hosted here that the client may describe."""
    pattern = None
    if request.transactional_id_pattern:
        pattern = compile_pattern(request.transactional_id_pattern, "TransactionalIdPattern")
    responses, is_loading = await ask_hosted_shards(
        request, services.transaction_coordinator, context
    )
    if is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    answer = ListTransactionsResponse()
    for response in responses:
        answer.unknown_state_filters = response.unknown_state_filters
        answer.transaction_states += (
            state
            for state in response.transaction_states
            if services.authorizer.is_transactional_id_allowed(
                context, AclOperation.DESCRIBE, state.transactional_id
            )
        )
    if pattern is not None:
        answer.transaction_states = await _matching(pattern, answer.transaction_states)
    return answer


async def _matching(
    pattern: Pattern, states: list[ListTransactionsTransactionState]
) -> list[ListTransactionsTransactionState]:
    """The transactions whose ids match. RE2 runs in linear time, but a hostile pattern can take
    20 ms per id: such an id is matched in a thread, which RE2 does without the GIL.
    ApiError(INVALID_REGULAR_EXPRESSION) if all of them would take many seconds."""
    size = pattern.programsize
    length = sum(len(state.transactional_id) for state in states)
    if size > _SMALL_PROGRAM and size * length > _STEPS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The pattern is too long to be matched with {len(states)} transactional ids.",
        )
    found = []
    pause_at = time.monotonic() + _MATCHING_S
    for state in states:
        name = state.transactional_id
        if size * len(name) > _STEPS_INLINE:
            match = await run_in_thread(pattern.fullmatch, name)
        else:
            match = pattern.fullmatch(name)
        if match is not None:
            found.append(state)
        if time.monotonic() >= pause_at:
            await asyncio.sleep(_PAUSE_S)
            pause_at = time.monotonic() + _MATCHING_S
    return found
