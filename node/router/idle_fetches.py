"""Fetches that found nothing and are asked again with the same bytes.

A consumer without a fetch session that is at the end of its partitions repeats itself: but for the
correlation id its requests are the same bytes until there is something to read. So the last one of
a connection that ended without records is kept as an `IdleFetch`, with its response. The next one
waits in the purgatory at once: if nothing comes it is answered with the same response, else it goes
the way of all requests, for the rest of its time. Thousands of idle consumers are neither decoded
nor encoded.

One invariant: an idle fetch is used only while the response would be the same: the metadata, the
authorizer's rules, who the client is, the reader and its catalog, and the offsets of each partition
are as they were. Called by repeated_requests.py (docs/adr/0026-repeated-requests.md).
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from time import perf_counter_ns
from typing import Final

from odradek.node.bus.reply import Reply
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import FINAL_EPOCH
from odradek.node.router.logs import LocatedLog
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_response, encode_response_header
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

FRAME_BYTES_MAX: Final = 1024
"""Of a request that is kept."""
PARTITIONS_MAX: Final = 16
"""Of a request that is kept: their offsets are compared with each request."""

_FORMAT_SINCE: Final = 4
_SESSIONS_SINCE: Final = 7
_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_CORRELATION_ID_AT: Final = 4
_PREFIX_AT: Final = 8
_SAMPLE_MASK: Final = SAMPLE_MASK_OF_API[ApiKey.FETCH]
_NO_REPLICA: Final = -1
_read_start = Struct(">ii").unpack_from
_pack_int32 = Struct(">i").pack
_write_int32 = Struct(">i").pack_into


class IdleFetch:
    """A request that found nothing, and its response."""

    __slots__ = (
        "behind",
        "count_key",
        "ends",
        "generations",
        "image_offset",
        "key_and_version",
        "locations",
        "principal",
        "response",
        "rules",
        "wait_at",
        "wait_ms",
    )

    def __init__(
        self, candidate: "IdleFetchCandidate", response: bytes, logs: list[LocatedLog]
    ) -> None:
        request, context = candidate.request, candidate.context
        self.key_and_version, _ = _read_start(candidate.frame)
        self.behind = candidate.frame[_PREFIX_AT:]
        self.count_key = context.api_key, context.api_version
        self.image_offset = candidate.image_offset
        self.rules = candidate.rules
        self.principal = context.principal
        self.response = response
        self.wait_ms = request.max_wait_ms
        self.wait_at = candidate.wait_at
        self.locations = [(log.store, log.number) for log in logs]
        self.generations = [log.reader.status.generation for log in logs]
        self.ends = [(log, _offsets_of(log)) for log in logs]

    def is_as_it_was(self) -> bool:
        """Whether no partition has changed."""
        for log, offsets in self.ends:  # noqa: SIM110 - a generator costs more than the rest
            if _offsets_of(log) != offsets:
                return False
        return True

    def has_advanced(self) -> bool:
        return not self.is_as_it_was()


class IdleFetchCandidate:
    """A fetch that may be kept, with what it was authorized and resolved."""

    __slots__ = ("context", "frame", "image_offset", "request", "rules", "wait_at")

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        frame: bytes,
        body_offset: int,
        image_offset: int,
        rules: object,
    ) -> None:
        self.request = request
        self.context = context
        self.frame = frame
        # Behind the id of the replica, which is in front up to version 14.
        self.wait_at = body_offset + (4 if context.api_version < _REPLICA_STATE_SINCE else 0)
        self.image_offset = image_offset
        self.rules = rules


Begin = Callable[[Slot, memoryview], None]
"""Starts a request in the way of all."""


class IdleFetches:
    """Those of all connections of a router.

    `count_request` is called with API key and version of each request that is answered here,
    `begin_request` with those that found something.
    """

    def __init__(
        self,
        services: Services,
        count_request: Callable[[tuple[int, int]], None],
        begin_request: Begin,
    ) -> None:
        self._services = services
        self._authorizer = services.authorizer
        self._metadata = services.metadata
        self._count_request = count_request
        self._begin_request = begin_request

    def begin(self, idle: IdleFetch, slot: Slot, frame: memoryview) -> bool:
        """Let the request wait if it is the idle one again. The slot is completed then. False if it
        has to be decoded."""
        behind = idle.behind
        if len(frame) - _PREFIX_AT != len(behind):
            return False
        key_and_version, correlation_id = _read_start(frame)
        if key_and_version != idle.key_and_version or bytes(frame[_PREFIX_AT:]) != behind:
            return False
        connection = slot.connection
        if (
            idle.image_offset != self._metadata.image.offset
            or idle.rules is not self._authorizer.rules
            or idle.principal != connection.peer_principal
            or not self._has_same_logs(idle)
            or not idle.is_as_it_was()
        ):
            connection.remembered = None
            return False
        services = self._services
        now_ms = services.now_ms()
        services.fetch_activity.repeat(connection.id, now_ms)
        if not correlation_id & _SAMPLE_MASK:
            slot.timing = RequestTiming(ApiKey.FETCH, connection.received_ns, perf_counter_ns())
        waiting = services.fetch_purgatory.park(
            idle.locations, idle.wait_ms, idle.has_advanced, owner=connection.id
        )
        deadline_ms = now_ms + idle.wait_ms
        waiting.on_done(partial(self._end, idle, slot, correlation_id, deadline_ms, waiting))
        return True

    def _end(
        self,
        idle: IdleFetch,
        slot: Slot,
        correlation_id: int,
        deadline_ms: int,
        waiting: Reply[bool],
    ) -> None:
        if not waiting.result():
            self._count_request(idle.count_key)
            slot.complete((_pack_int32(correlation_id), idle.response))
            return
        frame = bytearray(_pack_int32(idle.key_and_version))
        frame += _pack_int32(correlation_id)
        frame += idle.behind
        left_ms = max(0, deadline_ms - self._services.now_ms())
        _write_int32(frame, idle.wait_at, left_ms)
        self._begin_request(slot, memoryview(bytes(frame)))

    def _has_same_logs(self, idle: IdleFetch) -> bool:
        logs = self._services.logs
        for (log, _), generation in zip(idle.ends, idle.generations, strict=True):
            if log.reader.status.generation != generation or not logs.has_open(
                log.store, log.reader
            ):
                return False
        return True

    def candidate(
        self, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> IdleFetchCandidate | None:
        """What may be kept when the request ends without records; None if it cannot. To be called
        before the request is authorized."""
        frame = context.frame
        if len(frame) > FRAME_BYTES_MAX or not _may_repeat(request, context.api_version):
            return None
        return IdleFetchCandidate(
            request,
            context,
            bytes(frame),
            body_offset,
            self._metadata.image.offset,
            self._authorizer.rules,
        )

    def note(
        self, client: Connection, candidate: IdleFetchCandidate, response: FetchResponse
    ) -> None:
        """Keep the request if it found nothing."""
        version = candidate.context.api_version
        image = self._metadata.image
        if client.remembered is not None:
            if type(client.remembered) is not IdleFetch:
                return  # it is a producer's connection
            client.remembered = None
        if (
            image.offset != candidate.image_offset
            or self._authorizer.rules is not candidate.rules
            or response.error_code
            or response.session_id
            or response.throttle_time_ms
            or client.is_closed
        ):
            return
        logs: list[LocatedLog] = []
        for answered in response.responses:
            topic = (
                image.topics_by_id.get(answered.topic_id)
                if version >= _TOPIC_IDS_SINCE
                else image.topics_by_name.get(answered.topic)
            )
            for data in answered.partitions:
                log = (
                    None
                    if topic is None or not _found_nothing(data)
                    else self._services.logs.open(topic.topic_id, data.partition_index)
                )
                told = data.high_watermark, data.last_stable_offset, data.log_start_offset
                if log is None or _offsets_of(log) != told:
                    return
                logs.append(log)
        if not 0 < len(logs) <= PARTITIONS_MAX:
            return
        header = encode_response_header(ApiKey.FETCH, version, 0)
        body = encode_response(ApiKey.FETCH, version, response)
        client.remembered = IdleFetch(candidate, b"".join((header, *body))[4:], logs)


def _offsets_of(log: LocatedLog) -> tuple[int, int, int]:
    """What a response says of a partition: high watermark, last stable offset, log start."""
    reader, _, number = log
    status = reader.status
    return (
        status.high_watermark(number),
        status.last_stable_offset(number),
        status.log_start_offset(number),
    )


def _may_repeat(request: FetchRequest, version: int) -> bool:
    """Whether the response depends only on what an idle fetch compares."""
    if (
        version < _FORMAT_SINCE
        or (version >= _SESSIONS_SINCE and request.session_epoch != FINAL_EPOCH)
        or request.session_id
        or request.forgotten_topics_data
        or request.replica_id >= 0
        or request.rack_id
        or request.min_bytes <= 0
        or request.max_bytes <= 0
        or request.max_wait_ms <= 0
    ):
        return False
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return False
    return all(
        partition.last_fetched_epoch < 0
        for topic in request.topics
        for partition in topic.partitions
    )


def _found_nothing(data: PartitionData) -> bool:
    return not (
        data.error_code
        or data.records
        or data.diverging_epoch is not None
        or data.preferred_read_replica != _NO_REPLICA
    )
