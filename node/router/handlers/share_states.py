"""The durable state of share groups: InitializeShareGroupState (83), ReadShareGroupState (84),
WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

WriteShareGroupState and ReadShareGroupStateSummary 0-1: v1 counts completed deliveries (KIP-1226).
Nodes of the cluster ask each other these (node/router/share/persister.py); others need
CLUSTER_ACTION. What becomes of a share-partition is decided in coordinator.share; here stand who
may ask, and how an answer looks. The partitions of a request are asked for without waiting for each
other, very many in turns of the loop.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from odradek.coordinator.share.requests import (
    DeleteShareState,
    InitializeShareState,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    ShareStateError,
    ShareStateRequest,
    ShareStateSummary,
    SummarizeShareState,
    WriteShareState,
)
from odradek.coordinator.share.state_batches import batches_of, messages_of
from odradek.node.bus.reply import Reply
from odradek.node.router.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages


class _Result(Protocol):
    """What an answer says of a partition, whatever else it says."""

    error_code: int
    error_message: str | None


R = TypeVar("R", bound=_Result)


async def handle_initialize_share_group_state(
    request: messages.InitializeShareGroupStateRequest, context: RequestContext, services: Services
) -> messages.InitializeShareGroupStateResponse:
    """Begin with partitions, or begin anew."""
    asking = _Asking[messages.InitializeShareGroupStatePartitionResult](context, services)
    results = [
        messages.InitializeStateResult(
            topic_id=topic.topic_id,
            partitions=[
                await asking.ask(
                    InitializeShareState(
                        ShareKey(request.group_id, topic.topic_id, asked.partition),
                        asked.state_epoch,
                        asked.start_offset,
                    ),
                    messages.InitializeShareGroupStatePartitionResult(partition=asked.partition),
                )
                for asked in topic.partitions
            ],
        )
        async for topic in iterate_cooperatively(request.topics)
    ]
    await asking.answered()
    return messages.InitializeShareGroupStateResponse(results=results)


async def handle_read_share_group_state(
    request: messages.ReadShareGroupStateRequest, context: RequestContext, services: Services
) -> messages.ReadShareGroupStateResponse:
    """What leaders need to go on."""
    asking = _Asking[messages.ReadShareGroupStatePartitionResult](context, services)
    results = [
        messages.ReadStateResult(
            topic_id=topic.topic_id,
            partitions=[
                await asking.ask(
                    ReadShareState(
                        ShareKey(request.group_id, topic.topic_id, asked.partition),
                        asked.leader_epoch,
                    ),
                    messages.ReadShareGroupStatePartitionResult(partition=asked.partition),
                    _fill_read,
                )
                for asked in topic.partitions
            ],
        )
        async for topic in iterate_cooperatively(request.topics)
    ]
    await asking.answered()
    return messages.ReadShareGroupStateResponse(results=results)


def _fill_read(result: messages.ReadShareGroupStatePartitionResult, found: object) -> None:
    assert isinstance(found, PersistedShareState)
    result.state_epoch = found.state_epoch
    result.start_offset = found.start_offset
    result.state_batches = messages_of(found.batches)


async def handle_write_share_group_state(
    request: messages.WriteShareGroupStateRequest, context: RequestContext, services: Services
) -> messages.WriteShareGroupStateResponse:
    """What leaders have decided."""
    asking = _Asking[messages.WriteShareGroupStatePartitionResult](context, services)
    results = [
        messages.WriteStateResult(
            topic_id=topic.topic_id,
            partitions=[
                await asking.ask(
                    WriteShareState(
                        ShareKey(request.group_id, topic.topic_id, asked.partition),
                        asked.state_epoch,
                        asked.leader_epoch,
                        asked.start_offset,
                        asked.delivery_complete_count,
                        batches_of(asked.state_batches),
                    ),
                    messages.WriteShareGroupStatePartitionResult(partition=asked.partition),
                )
                for asked in topic.partitions
            ],
        )
        async for topic in iterate_cooperatively(request.topics)
    ]
    await asking.answered()
    return messages.WriteShareGroupStateResponse(results=results)


async def handle_delete_share_group_state(
    request: messages.DeleteShareGroupStateRequest, context: RequestContext, services: Services
) -> messages.DeleteShareGroupStateResponse:
    """Forget partitions."""
    asking = _Asking[messages.DeleteShareGroupStatePartitionResult](context, services)
    results = [
        messages.DeleteStateResult(
            topic_id=topic.topic_id,
            partitions=[
                await asking.ask(
                    DeleteShareState(ShareKey(request.group_id, topic.topic_id, asked.partition)),
                    messages.DeleteShareGroupStatePartitionResult(partition=asked.partition),
                )
                for asked in topic.partitions
            ],
        )
        async for topic in iterate_cooperatively(request.topics)
    ]
    await asking.answered()
    return messages.DeleteShareGroupStateResponse(results=results)


async def handle_read_share_group_state_summary(
    request: messages.ReadShareGroupStateSummaryRequest, context: RequestContext, services: Services
) -> messages.ReadShareGroupStateSummaryResponse:
    """How far partitions are."""
    asking = _Asking[messages.ReadShareGroupStateSummaryPartitionResult](context, services)
    results = [
        messages.ReadStateSummaryResult(
            topic_id=topic.topic_id,
            partitions=[
                await asking.ask(
                    SummarizeShareState(
                        ShareKey(request.group_id, topic.topic_id, asked.partition)
                    ),
                    messages.ReadShareGroupStateSummaryPartitionResult(partition=asked.partition),
                    _fill_summary,
                )
                for asked in topic.partitions
            ],
        )
        async for topic in iterate_cooperatively(request.topics)
    ]
    await asking.answered()
    return messages.ReadShareGroupStateSummaryResponse(results=results)


def _fill_summary(
    result: messages.ReadShareGroupStateSummaryPartitionResult, found: object
) -> None:
    assert isinstance(found, ShareStateSummary)
    result.state_epoch = found.state_epoch
    result.leader_epoch = found.leader_epoch
    result.start_offset = found.start_offset
    result.delivery_complete_count = found.delivery_complete_count


# -- for all of them ------------------------------------------------------------------------------


def _nothing(_result: object, _found: object) -> None:
    """An answer that says no more than that it went well."""


class _Asking(list[tuple[R, Reply[object], Callable[[R, object], None]]]):
    """The partitions of one request that shards have been asked about."""

    def __init__(self, context: RequestContext, services: Services) -> None:
        super().__init__()
        self._context = context
        self._services = services
        self._pace = LoopYielder()
        self._is_allowed = services.authorizer.is_allowed(
            context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    async def ask(
        self, asked: ShareStateRequest, result: R, fill: Callable[[R, object], None] = _nothing
    ) -> R:
        """Ask a shard; `fill` puts what it says into the result, which is returned."""
        await self._pace.step()
        if not self._is_allowed:
            _refuse(result, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return result
        shards = self._services.share_coordinator
        self.append((result, shards.call(asked.key.text, asked, self._context), fill))
        return result

    async def answered(self) -> None:
        """Wait until all results are filled."""
        async for result, reply, fill in iterate_cooperatively(self):
            try:
                found = await reply
            except ApiError as error:
                # What fits into no record never will.
                is_too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
                _refuse(result, ErrorCode.INVALID_REQUEST if is_too_large else error.code)
                continue
            if isinstance(found, ShareStateError):
                result.error_code, result.error_message = found
            else:
                fill(result, found)


def _refuse(result: _Result, code: ErrorCode) -> None:
    result.error_code, result.error_message = code, code.message
