"""The persisted states of share partitions, on whichever broker they are kept (Kafka: Persister).

The leader of a partition and the coordinator of a group call the share coordinator here. Its shard
is on this broker or on another; the calls of one turn of the loop to one broker are sent in one
request.

A shard that is loading, moving or unreachable is called again with growing pauses, for TIMEOUT_S.
So a call may arrive twice, and late. That does no harm: a state epoch is initialized once, and of
two writes the later state of each record wins (coordinator/share). The errors that a shard returns,
such as a fenced leader epoch, are raised as ApiError.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from odradek.cluster.metadata.image import NO_LEADER
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
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.share.state_batches import batches_of, messages_of
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.backoff import exponential_backoff
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.protocol.types import Request, Uuid

log = get_logger(__name__)

R = TypeVar("R")

TIMEOUT_S: Final = 15.0
"""After this, a call to an unavailable shard fails. The failover of a node takes about one second,
and clients wait for thirty."""
RETRY_S_MIN: Final = 0.01
RETRY_S_MAX: Final = 0.25
_PARTITIONS_PER_REQUEST: Final = 500

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


@dataclass(slots=True)
class _PendingCall:
    request: ShareStateRequest
    reply: Reply[Any]
    deadline: float
    pauses: Iterator[float] = field(
        default_factory=partial(exponential_backoff, RETRY_S_MIN, RETRY_S_MAX)
    )


class SharePersister:
    """See the module's docstring. Replies fail with ApiError."""

    def __init__(
        self,
        metadata: MetadataCache,
        share_coordinator: CoordinatorService[ShareStateShard],
        inter_broker_client: InterBrokerClient,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._share_coordinator = share_coordinator
        self._inter_broker_client = inter_broker_client
        self._loop = loop
        self._outgoing: dict[tuple[int, type, str], list[_PendingCall]] = {}
        self._is_closed = False

    def call(self, request: Request[R | ShareStateError]) -> Reply[R]:
        """The response of the shard that keeps the state of `request.key`: a ShareStateRequest."""
        reply: Reply[Any] = Reply()
        self._dispatch(
            _PendingCall(cast("ShareStateRequest", request), reply, self._loop.time() + TIMEOUT_S)
        )
        return reply

    async def summaries(
        self, group_id: str, partitions: Iterable[tuple[Uuid, int]]
    ) -> dict[tuple[Uuid, int], ShareStateSummary | ErrorCode]:
        """The summary of each (topic id, partition), or the error; start offset -1 if the state is
        not initialized."""
        replies = {
            partition: self.call(SummarizeShareState(ShareKey(group_id, *partition)))
            for partition in dict.fromkeys(partitions)
        }
        summaries: dict[tuple[Uuid, int], ShareStateSummary | ErrorCode] = {}
        for key, reply in replies.items():
            try:
                summaries[key] = await reply
            except ApiError as error:
                summaries[key] = error.code
        return summaries

    def close(self) -> None:
        """Retry no more: pending calls fail with their next error."""
        self._is_closed = True

    # -- inside -----------------------------------------------------------------------------------

    def _dispatch(self, call: _PendingCall) -> None:
        coordinator = self._share_coordinator
        key = call.request.key.text
        if coordinator.shard_of(key) < 0:
            drive(coordinator.ensure_topic(), partial(self._on_topic, call))
            return
        node_id = coordinator.coordinator_of(key)
        if node_id == self._metadata.node_id:
            reply = coordinator.call(key, call.request)
            reply.on_done(partial(self._on_local_response, call, reply))
        elif node_id == NO_LEADER:
            self._retry(call, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            if not self._outgoing:
                self._loop.call_soon(self._send)
            destination = node_id, type(call.request), call.request.key.group_id
            self._outgoing.setdefault(destination, []).append(call)

    def _on_topic(self, call: _PendingCall, _done: None, error: BaseException | None) -> None:
        if error is None:
            self._dispatch(call)
        else:
            self._fail(call, error)

    def _on_local_response(self, call: _PendingCall, reply: Reply[Any]) -> None:
        try:
            value = reply.result()
        except ApiError as error:
            self._fail(call, error)
            return
        if isinstance(value, ShareStateError):
            self._fail(call, ApiError(value.code, value.message))
        else:
            call.reply.resolve(value)

    def _send(self) -> None:
        """Send this turn's calls to other brokers."""
        outgoing, self._outgoing = self._outgoing, {}
        for (node_id, request_type, _), calls in outgoing.items():
            # The results come topic by topic, as the request has them.
            calls.sort(key=lambda call: call.request.key.topic_id)
            for at in range(0, len(calls), _PARTITIONS_PER_REQUEST):
                part = calls[at : at + _PARTITIONS_PER_REQUEST]
                message = _message(_STATE_APIS[request_type], [call.request for call in part])
                reply = self._inter_broker_client.send(node_id, message)
                reply.on_done(partial(self._on_remote_response, part, reply))

    def _on_remote_response(self, calls: list[_PendingCall], reply: Reply[Any]) -> None:
        """The results are in the order of the calls."""
        try:
            topics = reply.result().results
        except ApiError as error:
            for call in calls:
                self._fail(call, error)
            return
        results = [(topic.topic_id, result) for topic in topics for result in topic.partitions]
        if len(results) != len(calls):
            log.error(
                "another broker has not answered all calls for share states",
                count=len(results),
                expected=len(calls),
            )
            for call in calls:
                self._retry(call, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        for call, (topic_id, result) in zip(calls, results, strict=True):
            key = call.request.key
            assert (topic_id, result.partition) == (key.topic_id, key.partition)
            if result.error_code:
                code = ErrorCode(result.error_code)
                self._fail(call, ApiError(code, result.error_message))
            else:
                call.reply.resolve(_STATE_APIS[type(call.request)].value(result))

    def _fail(self, call: _PendingCall, error: BaseException) -> None:
        """Retry if the error is retriable."""
        code = error.code if isinstance(error, ApiError) else None
        _, topic_id, index = call.request.key
        # The other broker's metadata may be behind.
        is_behind = (
            code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and self._metadata.image.partition(topic_id, index) is not None
        )
        if code in _RETRIABLE or is_behind:
            self._retry(call, error)
        elif code is ErrorCode.MESSAGE_TOO_LARGE:
            # What does not fit into a record never will.
            call.reply.fail(ApiError(ErrorCode.INVALID_REQUEST))
        else:
            call.reply.fail(error)

    def _retry(self, call: _PendingCall, error: BaseException) -> None:
        if self._is_closed or self._loop.time() >= call.deadline:
            call.reply.fail(error)
            return
        self._loop.call_later(next(call.pauses), self._dispatch, call)


# -- messages to other brokers --------------------------------------------------------------------


class _StateApi(NamedTuple):
    """How a request to a shard is sent to another broker. The types differ by API; each row of the
    table is consistent."""

    message: Callable[..., Request[Any]]
    topic: Callable[..., object]
    partition: Callable[[Any], object]
    value: Callable[[Any], object] = lambda _result: None
    """What the shard answered, from a partition's result."""


_STATE_APIS: Final[dict[type, _StateApi]] = {
    InitializeShareState: _StateApi(
        messages.InitializeShareGroupStateRequest,
        messages.InitializeStateData,
        lambda request: messages.InitializeShareGroupStatePartitionData(
            partition=request.key.partition,
            state_epoch=request.state_epoch,
            start_offset=request.start_offset,
        ),
    ),
    ReadShareState: _StateApi(
        messages.ReadShareGroupStateRequest,
        messages.ReadStateData,
        lambda request: messages.ReadShareGroupStatePartitionData(
            partition=request.key.partition, leader_epoch=request.leader_epoch
        ),
        lambda result: PersistedShareState(
            result.state_epoch, result.start_offset, batches_of(result.state_batches)
        ),
    ),
    WriteShareState: _StateApi(
        messages.WriteShareGroupStateRequest,
        messages.WriteStateData,
        lambda request: messages.WriteShareGroupStatePartitionData(
            partition=request.key.partition,
            state_epoch=request.state_epoch,
            leader_epoch=request.leader_epoch,
            start_offset=request.start_offset,
            delivery_complete_count=request.delivery_complete_count,
            state_batches=messages_of(request.batches),
        ),
    ),
    DeleteShareState: _StateApi(
        messages.DeleteShareGroupStateRequest,
        messages.DeleteStateData,
        lambda request: messages.DeleteShareGroupStatePartitionData(
            partition=request.key.partition
        ),
    ),
    SummarizeShareState: _StateApi(
        messages.ReadShareGroupStateSummaryRequest,
        messages.ReadStateData,
        lambda request: messages.ReadShareGroupStatePartitionData(
            partition=request.key.partition, leader_epoch=-1
        ),
        lambda result: ShareStateSummary(
            result.state_epoch,
            result.leader_epoch,
            result.start_offset,
            result.delivery_complete_count,
        ),
    ),
}


def _message(api: _StateApi, requests: Sequence[ShareStateRequest]) -> Request[Any]:
    """One message for requests of one group, which are sorted by topic."""
    topics: dict[Uuid, list[object]] = {}
    for request in requests:
        topics.setdefault(request.key.topic_id, []).append(api.partition(request))
    return api.message(
        group_id=requests[0].key.group_id,
        topics=[
            api.topic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )
