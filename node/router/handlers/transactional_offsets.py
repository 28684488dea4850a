"""TxnOffsetCommit (28): versions 0 to 6. Offsets that become valid when a transaction commits.

v3 adds member and generation, which fences members of old generations (KIP-447). v5 adds the
group's partition to the transaction implicitly; older clients send AddOffsetsToTxn first (KIP-890).
v6 names topics by id.
"""

from typing import Final

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.offsets.committed_offsets import (
    CommitResponse,
    refuse_commit_in_slices,
)
from odradek.coordinator.group.requests import CommitInTransaction, VerificationRequired
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import run_in_slices
from odradek.node.router.handlers.group_offsets import commit_offsets
from odradek.node.router.transactions.partition_verification import TransactionalProducer
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_TOPIC_IDS_SINCE: Final = 6
_IMPLICIT_ADD_SINCE: Final = 5
_ABORTABLE_SINCE: Final = 4


async def handle_txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext, services: Services
) -> CommitResponse:
    """Store offsets that become valid when the transaction commits."""
    if not services.authorizer.is_transactional_id_allowed(
        context, AclOperation.WRITE, request.transactional_id
    ):
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return await run_in_slices(refuse_commit_in_slices(request, refusal))
    return await commit_offsets(
        request,
        lambda: _commit(request, context, services),
        context,
        services,
        is_by_id=context.api_version >= _TOPIC_IDS_SINCE,
    )


async def _commit(
    commit: TxnOffsetCommitRequest, context: RequestContext, services: Services
) -> TxnOffsetCommitResponse:
    """Commit once the transaction coordinator has confirmed that the offsets partition is part of
    the transaction (KIP-890). Raises ApiError.

    A confirmation that the end of a transaction overtakes is worth nothing: the request may be of
    the transaction that has ended, and an older client's next one has the same epoch. It is refused
    with a retriable error, because only a client that still waits for the answer sends it again.
    """
    if not commit.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    groups = services.group_coordinator
    producer = TransactionalProducer(
        commit.transactional_id, commit.producer_id, commit.producer_epoch
    )
    partition = CONSUMER_OFFSETS, groups.shard_of(commit.group_id)
    if groups.coordinator_of(commit.group_id) != services.node_id:
        raise ApiError(ErrorCode.NOT_COORDINATOR)
    adds_partition = context.api_version >= _IMPLICIT_ADD_SINCE
    if adds_partition and not services.partition_verification.is_verified(producer, partition):
        _raise(
            await services.partition_verification.add_partitions(producer, frozenset((partition,))),
            context,
        )
    requested = CommitInTransaction(commit, is_verified=adds_partition)
    response = await groups.call(commit.group_id, requested, context)
    if isinstance(response, VerificationRequired):
        _raise(await services.partition_verification.verify(producer, partition), context)
        requested = CommitInTransaction(commit, is_verified=False, guard=response.guard)
        response = await groups.call(commit.group_id, requested, context)
        if isinstance(response, VerificationRequired):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return response


def _raise(error: ErrorCode, context: RequestContext) -> None:
    """Raise the error for the client if the transaction coordinator did not confirm."""
    if error is ErrorCode.NONE:
        return
    if error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
        error = ErrorCode.INVALID_TXN_STATE
    elif error is ErrorCode.NOT_COORDINATOR:
        # Not the coordinator of the transaction. The client did find its group's coordinator.
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    raise ApiError(error)
