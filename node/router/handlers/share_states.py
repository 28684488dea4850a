"""The durable state of share groups: InitializeShareGroupState (83), ReadShareGroupState (84),
WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

WriteShareGroupState and ReadShareGroupStateSummary 0-1: v1 counts completed deliveries (KIP-1226).
Nodes of the cluster send these to each other (node/router/share/persister.py). Others need
CLUSTER_ACTION. The share coordinator's shard decides (coordinator.share). All five have the same
form, so they are one handler and a table. All partitions of a request are sent to their shards
before the first answer is awaited.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from odradek.cluster.metadata.acls import AclOperation
from odradek.coordinator.share.requests import (
    DeleteShareState,
    InitializeShareState,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    ShareStateError,
    ShareStateSummary,
    SummarizeShareState,
    WriteShareState,
)
from odradek.coordinator.share.state_batches import batches_of, messages_of
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.protocol.types import Request

R = TypeVar("R")


class _Result(Protocol):
    """What every answer about a partition has."""

    error_code: int
    error_message: str | None


def _fill_read(
    result: messages.ReadShareGroupStatePartitionResult, state: PersistedShareState
) -> None:
    result.state_epoch = state.state_epoch
    result.start_offset = state.start_offset
    result.state_batches = messages_of(state.batches)


def _fill_summary(
    result: messages.ReadShareGroupStateSummaryPartitionResult, summary: ShareStateSummary
) -> None:
    result.state_epoch = summary.state_epoch
    result.leader_epoch = summary.leader_epoch
    result.start_offset = summary.start_offset
    result.delivery_complete_count = summary.delivery_complete_count


@dataclass(frozen=True, slots=True)
class _StateApi:
    """One of the five APIs. The types differ by API; each row of the table is consistent.

    `command` makes the shard's request from the key and the partition of the request. `fill` puts
    the shard's answer into the result; an API without it answers only with an error code.
    """

    command: Callable[[ShareKey, Any], Request[object]]
    partition_result: type
    topic_result: type
    response: type
    fill: Callable[[Any, Any], None] | None = None


STATE_APIS: Mapping[type, _StateApi] = {
    messages.InitializeShareGroupStateRequest: _StateApi(
        lambda key, requested: InitializeShareState(
            key, state_epoch=requested.state_epoch, start_offset=requested.start_offset
        ),
        messages.ShareGroupStatePartitionResult,
        messages.ShareGroupStateResult,
        messages.ShareGroupStateResponse,
    ),
    messages.ReadShareGroupStateRequest: _StateApi(
        lambda key, requested: ReadShareState(key, requested.leader_epoch),
        messages.ReadShareGroupStatePartitionResult,
        messages.ReadStateResult,
        messages.ReadShareGroupStateResponse,
        _fill_read,
    ),
    messages.WriteShareGroupStateRequest: _StateApi(
        lambda key, requested: WriteShareState(
            key,
            state_epoch=requested.state_epoch,
            leader_epoch=requested.leader_epoch,
            start_offset=requested.start_offset,
            delivery_complete_count=requested.delivery_complete_count,
            batches=batches_of(requested.state_batches),
        ),
        messages.ShareGroupStatePartitionResult,
        messages.ShareGroupStateResult,
        messages.ShareGroupStateResponse,
    ),
    messages.DeleteShareGroupStateRequest: _StateApi(
        lambda key, _asked: DeleteShareState(key),
        messages.ShareGroupStatePartitionResult,
        messages.ShareGroupStateResult,
        messages.ShareGroupStateResponse,
    ),
    messages.ReadShareGroupStateSummaryRequest: _StateApi(
        lambda key, _asked: SummarizeShareState(key),
        messages.ReadShareGroupStateSummaryPartitionResult,
        messages.ReadStateSummaryResult,
        messages.ReadShareGroupStateSummaryResponse,
        _fill_summary,
    ),
}


async def handle_share_group_state(
    request: Request[R], context: RequestContext, services: Services
) -> R:
    """Each partition succeeds or fails by itself. `request` is of a class in the table."""
    api = STATE_APIS[type(request)]
    message = cast("Any", request)
    is_allowed = services.authorizer.is_cluster_allowed(context, AclOperation.CLUSTER_ACTION)
    yielder = LoopYielder(context)
    topics = []
    replies = []
    for topic in message.topics:
        await yielder.step()
        results = []
        for requested in topic.partitions:
            await yielder.step()
            result = api.partition_result(partition=requested.partition)
            results.append(result)
            if not is_allowed:
                _refuse(result, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                continue
            key = ShareKey(message.group_id, topic.topic_id, requested.partition)
            command = api.command(key, requested)
            replies.append((result, services.share_coordinator.call(key.text, command, context)))
        topics.append(api.topic_result(topic_id=topic.topic_id, partitions=results))
    async for result, reply in iterate_cooperatively(replies, context):
        try:
            answer = await reply
        except ApiError as error:
            # A retry of what does not fit into a record would fail again.
            is_too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
            _refuse(result, ErrorCode.INVALID_REQUEST if is_too_large else error.code)
            continue
        if isinstance(answer, ShareStateError):
            result.error_code, result.error_message = answer.code, answer.message
        elif api.fill is not None:
            api.fill(result, answer)
    return cast("R", api.response(results=topics))


def _refuse(result: _Result, code: ErrorCode) -> None:
    result.error_code, result.error_message = code, code.message
