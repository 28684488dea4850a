"""What share groups durably know of partitions, wherever in the cluster that is kept.

The leader of a partition and the coordinator of a group ask here, with a share-partition's name and
in terms of values; the shard that keeps it is on this node, or on another whose router is asked.
What is asked of another node in one turn of the loop travels in one request.

A shard that is loading, moving or away is asked again with growing pauses, for TIMEOUT_S at most.
So whatever is asked may arrive twice, and late; shards take no harm from that: a state epoch is
initialised once, and of two writes the later stage of each record wins (coordinator/share). What a
shard refuses, such as a leader that is fenced, is handed on as ApiError.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

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
from odradek.coordinator.share.state_batches import PersisterStateBatch, batches_of, messages_of
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.protocol.types import Request, Uuid

log = logging.getLogger(__name__)

R = TypeVar("R")

TIMEOUT_S: Final = 15.0
"""How long a shard may stay away before whoever asks is told so: a node's failure takes about one
second, and clients wait for thirty."""
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
    asked: ShareStateRequest
    reply: Reply[Any]
    deadline: float
    pause_s: float = RETRY_S_MIN


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

    def initialize(
        self, group_id: str, topic_id: Uuid, partition: int, state_epoch: int, start_offset: int
    ) -> Reply[None]:
        """Begin at `start_offset` (-1: the leader decides), in place of what is known of a lower
        state epoch. What is there of the same state epoch stays: asked again, with the same start
        offset or -1, this does nothing. FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION."""
        key = ShareKey(group_id, topic_id, partition)
        return self._start(InitializeShareState(key, state_epoch, start_offset))

    def read(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Reply[PersistedShareState]:
        """All that is known, for the partition's leader in `leader_epoch`: from now on writes of
        earlier leaders are fenced. -1 only looks. INVALID_REQUEST if nobody has initialised it,
        FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION."""
        return self._start(ReadShareState(ShareKey(group_id, topic_id, partition), leader_epoch))

    def write(
        self,
        group_id: str,
        topic_id: Uuid,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[PersisterStateBatch],
    ) -> Reply[None]:
        """Remember what the leader has decided; start offset and count -1: unchanged. Answered when
        it is committed. INVALID_REQUEST if nobody has initialised it, FENCED_LEADER_EPOCH,
        FENCED_STATE_EPOCH (read again: somebody has begun anew), UNKNOWN_TOPIC_OR_PARTITION."""
        return self._start(
            WriteShareState(
                ShareKey(group_id, topic_id, partition),
                state_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                tuple(batches),
            )
        )

    def delete(self, group_id: str, topic_id: Uuid, partition: int) -> Reply[None]:
        """Forget it, known or not."""
        return self._start(DeleteShareState(ShareKey(group_id, topic_id, partition)))

    def summaries(
        self, group_id: str, partitions: Iterable[tuple[Uuid, int]]
    ) -> Reply[dict[tuple[Uuid, int], ShareStateSummary | ErrorCode]]:
        """Where each of these (topic id, partition) stands, or why that cannot be said; start
        offset -1 if nobody has begun. Never fails as a whole."""
        asked = {
            (topic_id, partition): self._start(
                SummarizeShareState(ShareKey(group_id, topic_id, partition))
            )
            for topic_id, partition in dict.fromkeys(partitions)
        }
        return _collect(asked)

    def close(self) -> None:
        """Ask nobody any more: whoever still waits is told so when the next answer is bad."""
        self._is_closed = True

    # -- inside -----------------------------------------------------------------------------------

    def _start(self, asked: ShareStateRequest) -> Reply[Any]:
        reply: Reply[Any] = Reply()
        self._dispatch(_PendingCall(asked, reply, self._loop.time() + TIMEOUT_S))
        return reply

    def _dispatch(self, pending_call: _PendingCall) -> None:
        shards = self._share_coordinator
        key = pending_call.asked.key.text
        if shards.shard_of(key) < 0:
            drive(shards.ensure_topic(), partial(self._on_topic, pending_call))
            return
        node_id = shards.coordinator_of(key)
        if node_id == self._metadata.node_id:
            reply = shards.call(key, pending_call.asked)
            reply.on_done(partial(self._on_local_response, pending_call, reply))
        elif node_id == NO_LEADER:
            self._retry(pending_call, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            if not self._outgoing:
                self._loop.call_soon(self._send)
            named = node_id, type(pending_call.asked), pending_call.asked.key.group_id
            self._outgoing.setdefault(named, []).append(pending_call)

    def _on_topic(
        self, pending_call: _PendingCall, _done: None, error: BaseException | None
    ) -> None:
        if error is None:
            self._dispatch(pending_call)
        else:
            self._fail(pending_call, error)

    def _on_local_response(self, pending_call: _PendingCall, answer: Reply[Any]) -> None:
        try:
            found = answer.result()
        except ApiError as error:
            self._fail(pending_call, error)
            return
        self._complete(pending_call, found)

    def _send(self) -> None:
        """Ask other nodes what this turn wants to know."""
        outgoing, self._outgoing = self._outgoing, {}
        for (node_id, kind, _), pending_calls in outgoing.items():
            # As the request has them: topic by topic.
            pending_calls.sort(key=lambda pending_call: pending_call.asked.key.topic_id)
            for at in range(0, len(pending_calls), _PARTITIONS_PER_REQUEST):
                part = pending_calls[at : at + _PARTITIONS_PER_REQUEST]
                request = _REQUESTS[kind](part)
                answer = self._inter_broker_client.send(node_id, request)
                answer.on_done(partial(self._on_remote_response, part, answer))

    def _on_remote_response(
        self, pending_calls: list[_PendingCall], answer: "Reply[_Response]"
    ) -> None:
        """Another node's; its results are in the order of the questions."""
        try:
            response = answer.result()
        except ApiError as error:
            for pending_call in pending_calls:
                self._fail(pending_call, error)
            return
        results = [
            (topic.topic_id, result) for topic in response.results for result in topic.partitions
        ]
        if len(results) != len(pending_calls):
            log.error("another node answers %d of %d questions", len(results), len(pending_calls))
            results.clear()
        for at, pending_call in enumerate(pending_calls):
            if not results:
                self._retry(pending_call, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                continue
            topic_id, result = results[at]
            key = pending_call.asked.key
            assert (topic_id, result.partition) == (key.topic_id, key.partition)
            if result.error_code:
                code = ErrorCode(result.error_code)
                self._fail(pending_call, ApiError(code, result.error_message))
            else:
                self._complete(pending_call, _result_value(result))

    def _complete(self, pending_call: _PendingCall, found: object) -> None:
        if isinstance(found, ShareStateError):
            self._fail(pending_call, ApiError(found.code, found.message))
        else:
            pending_call.reply.resolve(found)

    def _fail(self, pending_call: _PendingCall, error: BaseException) -> None:
        """Ask again if that may help."""
        code = error.code if isinstance(error, ApiError) else None
        # The other node may not have heard of the partition yet.
        is_behind = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._is_known(pending_call)
        if code in _RETRIABLE or is_behind:
            self._retry(pending_call, error)
        elif code is ErrorCode.MESSAGE_TOO_LARGE:
            # What fits into no record never will.
            pending_call.reply.fail(ApiError(ErrorCode.INVALID_REQUEST))
        else:
            pending_call.reply.fail(error)

    def _is_known(self, pending_call: _PendingCall) -> bool:
        _, topic_id, partition = pending_call.asked.key
        return self._metadata.image.partition(topic_id, partition) is not None

    def _retry(self, pending_call: _PendingCall, error: BaseException) -> None:
        if self._is_closed or self._loop.time() >= pending_call.deadline:
            pending_call.reply.fail(error)
            return
        self._loop.call_later(pending_call.pause_s, self._dispatch, pending_call)
        pending_call.pause_s = min(2 * pending_call.pause_s, RETRY_S_MAX)


# -- requests to other nodes ----------------------------------------------------------------------


class _Result(Protocol):
    partition: int
    error_code: int
    error_message: str | None


class _TopicResult(Protocol):
    @property
    def topic_id(self) -> Uuid: ...

    @property
    def partitions(self) -> Sequence[_Result]: ...


class _Response(Protocol):
    @property
    def results(self) -> Sequence[_TopicResult]: ...


def _by_topic(pending_calls: Sequence[_PendingCall]) -> dict[Uuid, list[Any]]:
    """What is asked, in the order of the questions, which are sorted by topic."""
    topics: dict[Uuid, list[Any]] = {}
    for pending_call in pending_calls:
        topics.setdefault(pending_call.asked.key.topic_id, []).append(pending_call.asked)
    return topics


def _initialize_request(pending_calls: Sequence[_PendingCall]) -> Request[_Response]:
    return messages.InitializeShareGroupStateRequest(
        group_id=pending_calls[0].asked.key.group_id,
        topics=[
            messages.InitializeStateData(
                topic_id=topic_id,
                partitions=[
                    messages.InitializeShareGroupStatePartitionData(
                        partition=asked.key.partition,
                        state_epoch=asked.state_epoch,
                        start_offset=asked.start_offset,
                    )
                    for asked in all_asked
                ],
            )
            for topic_id, all_asked in _by_topic(pending_calls).items()
        ],
    )


def _read_request(pending_calls: Sequence[_PendingCall]) -> Request[_Response]:
    return messages.ReadShareGroupStateRequest(
        group_id=pending_calls[0].asked.key.group_id,
        topics=[
            messages.ReadStateData(
                topic_id=topic_id,
                partitions=[
                    messages.ReadShareGroupStatePartitionData(
                        partition=asked.key.partition, leader_epoch=asked.leader_epoch
                    )
                    for asked in all_asked
                ],
            )
            for topic_id, all_asked in _by_topic(pending_calls).items()
        ],
    )


def _write_request(pending_calls: Sequence[_PendingCall]) -> Request[_Response]:
    return messages.WriteShareGroupStateRequest(
        group_id=pending_calls[0].asked.key.group_id,
        topics=[
            messages.WriteStateData(
                topic_id=topic_id,
                partitions=[
                    messages.WriteShareGroupStatePartitionData(
                        partition=asked.key.partition,
                        state_epoch=asked.state_epoch,
                        leader_epoch=asked.leader_epoch,
                        start_offset=asked.start_offset,
                        delivery_complete_count=asked.delivery_complete_count,
                        state_batches=messages_of(asked.batches),
                    )
                    for asked in all_asked
                ],
            )
            for topic_id, all_asked in _by_topic(pending_calls).items()
        ],
    )


def _delete_request(pending_calls: Sequence[_PendingCall]) -> Request[_Response]:
    return messages.DeleteShareGroupStateRequest(
        group_id=pending_calls[0].asked.key.group_id,
        topics=[
            messages.DeleteStateData(
                topic_id=topic_id,
                partitions=[
                    messages.DeleteShareGroupStatePartitionData(partition=asked.key.partition)
                    for asked in all_asked
                ],
            )
            for topic_id, all_asked in _by_topic(pending_calls).items()
        ],
    )


def _summary_request(pending_calls: Sequence[_PendingCall]) -> Request[_Response]:
    return messages.ReadShareGroupStateSummaryRequest(
        group_id=pending_calls[0].asked.key.group_id,
        topics=[
            messages.ReadStateSummaryData(
                topic_id=topic_id,
                partitions=[
                    messages.ReadShareGroupStateSummaryPartitionData(
                        partition=asked.key.partition, leader_epoch=-1
                    )
                    for asked in all_asked
                ],
            )
            for topic_id, all_asked in _by_topic(pending_calls).items()
        ],
    )


_REQUESTS: Final[dict[type, Callable[[Sequence[_PendingCall]], Request[_Response]]]] = {
    InitializeShareState: _initialize_request,
    ReadShareState: _read_request,
    WriteShareState: _write_request,
    DeleteShareState: _delete_request,
    SummarizeShareState: _summary_request,
}


def _result_value(result: object) -> object:
    """What a partition's result says, as a shard says it."""
    if isinstance(result, messages.ReadShareGroupStatePartitionResult):
        return PersistedShareState(
            result.state_epoch, result.start_offset, batches_of(result.state_batches)
        )
    if isinstance(result, messages.ReadShareGroupStateSummaryPartitionResult):
        return ShareStateSummary(
            result.state_epoch,
            result.leader_epoch,
            result.start_offset,
            result.delivery_complete_count,
        )
    return None


def _collect(
    asked: dict[tuple[Uuid, int], Reply[ShareStateSummary]],
) -> Reply[dict[tuple[Uuid, int], ShareStateSummary | ErrorCode]]:
    """All answers together."""
    whole: Reply[dict[tuple[Uuid, int], ShareStateSummary | ErrorCode]] = Reply()
    found: dict[tuple[Uuid, int], ShareStateSummary | ErrorCode] = {}
    if not asked:
        whole.resolve(found)

    def on_one(partition: tuple[Uuid, int], reply: Reply[ShareStateSummary]) -> None:
        try:
            found[partition] = reply.result()
        except ApiError as error:
            found[partition] = error.code
        if len(found) == len(asked):
            whole.resolve(found)

    for partition, reply in asked.items():
        reply.on_done(partial(on_one, partition, reply))
    return whole
