"""TxnOffsetCommit (28): versions 0 to 6. Offsets that count if a transaction commits.

v3 names the group's member and generation, which fences members of old generations (KIP-447); v5
lets the group take part by itself, older clients have said AddOffsetsToTxn before (KIP-890); v6
names topics by id.
"""

from typing import Final

from odradek.cluster.metadata.image import TopicImage
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.requests import CommitInTransaction, VerificationRequired
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.transactions.partition_verification import TransactionalProducer
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_TOPIC_IDS_SINCE: Final = 6
_IMPLICIT_ADD_SINCE: Final = 5
_ABORTABLE_SINCE: Final = 4
_VERIFICATIONS_MAX: Final = 3
"""How often a commit is verified anew because a transaction of its producer has ended meanwhile."""

_Codes = dict[tuple[int, int], int]
"""Error codes by (index of the topic in the request, partition)."""


async def handle_txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext, services: Services
) -> TxnOffsetCommitResponse:
    """Store positions that wait for the end of a transaction."""
    is_allowed = services.authorizer.is_allowed
    if not is_allowed(
        context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return _answer(request.topics, {}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not is_allowed(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _answer(request.topics, {}, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    codes: _Codes = {}
    valid: list[TxnOffsetCommitRequestTopic] = []
    valid_indexes: list[int] = []
    for at, topic in enumerate(request.topics):
        found, error = _resolve(topic, context, services)
        kept = []
        for partition in topic.partitions:
            index = partition.partition_index
            if found is not None and 0 <= index < len(found.partitions):
                kept.append(partition)
            else:
                codes[at, index] = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is not None and kept:
            valid.append(
                TxnOffsetCommitRequestTopic(
                    name=found.name, topic_id=found.topic_id, partitions=kept
                )
            )
            valid_indexes.append(at)
    if not valid:
        return _answer(request.topics, codes, ErrorCode.NONE)
    commit = TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=valid,
    )
    try:
        response = await _commit(commit, context, services)
    except ApiError as error:
        code = error.code
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return _answer(request.topics, codes, code)
    for at, done in zip(valid_indexes, response.topics, strict=True):
        for result in done.partitions:
            codes[at, result.partition_index] = result.error_code
    return _answer(request.topics, codes, ErrorCode.NONE)


def _resolve(
    topic: TxnOffsetCommitRequestTopic, context: RequestContext, services: Services
) -> tuple[TopicImage | None, ErrorCode]:
    """The topic that is meant, if it exists and the asker may read it."""
    image = services.image
    is_by_id = context.api_version >= _TOPIC_IDS_SINCE
    found = (
        image.topics_by_id.get(topic.topic_id) if is_by_id else image.topics_by_name.get(topic.name)
    )
    name = found.name if found is not None else topic.name
    if is_by_id and found is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    if not services.authorizer.is_allowed(context, AclOperation.READ, ResourceType.TOPIC, name):
        hidden = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return None, hidden
    return found, ErrorCode.NONE


async def _commit(
    commit: TxnOffsetCommitRequest, context: RequestContext, services: Services
) -> TxnOffsetCommitResponse:
    """Once the transaction's coordinator says that the group takes part. Raises ApiError."""
    groups = services.group_coordinator
    producer = TransactionalProducer(
        commit.transactional_id, commit.producer_id, commit.producer_epoch
    )
    partition = CONSUMER_OFFSETS, groups.shard_of(commit.group_id)
    if groups.coordinator_of(commit.group_id) != services.node_id:
        raise ApiError(ErrorCode.NOT_COORDINATOR)
    enlists = context.api_version >= _IMPLICIT_ADD_SINCE
    if enlists and not services.partition_verification.is_verified(producer, partition):
        _raise(
            await services.partition_verification.add_partitions(producer, frozenset((partition,))),
            context,
        )
    asked = CommitInTransaction(commit, is_verified=enlists)
    for _ in range(_VERIFICATIONS_MAX):
        response = await groups.call(commit.group_id, asked, context)
        if not isinstance(response, VerificationRequired):
            assert isinstance(response, TxnOffsetCommitResponse)
            return response
        _raise(await services.partition_verification.verify(producer, partition), context)
        asked = CommitInTransaction(commit, is_verified=False, guard=response.guard)
    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _raise(error: ErrorCode, context: RequestContext) -> None:
    """What a client is told when its transaction's coordinator did not confirm."""
    if error is ErrorCode.NONE:
        return
    if error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
        error = ErrorCode.INVALID_TXN_STATE
    elif error is ErrorCode.NOT_COORDINATOR:
        # Of the transaction, not of the group: the client has come to the right place.
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    raise ApiError(error)


def _answer(
    topics: list[TxnOffsetCommitRequestTopic], codes: _Codes, otherwise: ErrorCode
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get((at, partition.partition_index), otherwise),
                    )
                    for partition in topic.partitions
                ],
            )
            for at, topic in enumerate(topics)
        ]
    )
