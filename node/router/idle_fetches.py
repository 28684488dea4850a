"""Fetches that found nothing and are asked again with the same bytes.

A consumer that is at the end of its partitions repeats itself: but for the correlation id, and the
epoch of its fetch session, which counts up, its requests are the same bytes until there is
something to read. So the last one of a connection that ended without records is kept as an
`IdleFetch`, with its response. The next one waits in the purgatory at once: if nothing comes it is
answered with the same response, else it goes the way of all requests, for the rest of its time.
Thousands of idle consumers are neither decoded nor encoded. When it is repeated, its connection is
taken by idle_connections.py.

One invariant: an idle fetch is used only while the response would be the same: the metadata, the
authorizer's rules, who the client is, its session, the reader and its catalog, and the offsets of
each partition are as they were. Called by repeated_requests.py and idle_connections.py
(docs/adr/0026-repeated-requests.md).
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from time import perf_counter_ns
from typing import Final, TypeAlias

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.reply import Reply
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchSession
from odradek.node.router.logs import LocatedLog
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.router.single_fetches import WAIT_MS_MAX
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_response, encode_response_header
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from odradek.storage.status import OFFSETS

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
SAMPLE_MASK: Final = SAMPLE_MASK_OF_API[ApiKey.FETCH]
_NO_REPLICA: Final = -1
_EPOCH_BEHIND_WAIT: Final = 17
"""The session's epoch comes behind the time to wait, the smallest and largest size, the isolation
level and the session's id."""
_read_start = Struct(">ii").unpack_from
_pack_int32 = Struct(">i").pack
_write_int32 = Struct(">i").pack_into


_Log: TypeAlias = tuple[LocatedLog, bytes]
"""With the offsets that the response tells (StatusTable.consumer_offsets)."""


class IdleFetch:
    """A request that found nothing, and its response."""

    __slots__ = (
        "_epoch_at",
        "behind",
        "count_key",
        "epoch",
        "image_offset",
        "key_and_version",
        "locations",
        "logs",
        "principal",
        "repeat_count",
        "response",
        "rules",
        "session",
        "wait_at",
        "wait_ms",
    )

    def __init__(
        self,
        candidate: "IdleFetchCandidate",
        response: bytes,
        logs: list[_Log],
        session: FetchSession | None,
    ) -> None:
        request, context = candidate.request, candidate.context
        self.key_and_version, _ = _read_start(candidate.frame)
        self.behind = candidate.frame[_PREFIX_AT:]
        self.count_key = context.api_key, context.api_version
        self.image_offset = candidate.image_offset
        self.rules = candidate.rules
        self.principal = context.principal
        self.repeat_count = 0
        self.response = response
        self.wait_ms = request.max_wait_ms
        self.wait_at = candidate.wait_at
        self.locations = [(log.store, log.number) for log, _ in logs]
        self.logs = [
            (log.store, log.reader, log.reader.status.generation, log.number, offsets)
            for log, offsets in logs
        ]
        self.session = session
        self._epoch_at = candidate.wait_at + _EPOCH_BEHIND_WAIT - _PREFIX_AT
        self.epoch = FINAL_EPOCH
        """That the next request has, if it has a session."""
        self.expect_next()

    def expect_next(self) -> None:
        """The session is in its next epoch."""
        if self.session is not None:
            self.epoch, at = self.session.epoch, self._epoch_at
            self.behind = self.behind[:at] + _pack_int32(self.epoch) + self.behind[at + 4 :]

    def is_as_it_was(self) -> bool:
        """Whether no partition has changed."""
        for _, reader, _, number, offsets in self.logs:
            if reader.status.consumer_offsets(number) != offsets:
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

    `count_requests` is called with API key and version of requests that are answered here, and with
    their number, `begin_request` with those that found something.
    """

    def __init__(
        self,
        services: Services,
        count_requests: Callable[[tuple[int, int], int], None],
        begin_request: Begin,
    ) -> None:
        self._services = services
        self._authorizer = services.authorizer
        self._metadata = services.metadata
        self._sessions = services.fetch_sessions
        self.count_requests: Final = count_requests
        self._begin_request = begin_request
        self.consider_taking: Callable[[Connection, IdleFetch], None] | None = None
        """Called with each repeated fetch, while it begins to wait."""

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
        if not self.is_valid(idle, connection):
            connection.remembered = None
            return False
        services = self._services
        now_ms = services.now_ms()
        services.fetch_activity.repeat(connection.id, now_ms)
        if not correlation_id & SAMPLE_MASK:
            slot.timing = RequestTiming(ApiKey.FETCH, connection.received_ns, perf_counter_ns())
        waiting = services.fetch_purgatory.park(
            idle.locations, idle.wait_ms, idle.has_advanced, owner=connection.id
        )
        deadline_ms = now_ms + idle.wait_ms
        waiting.on_done(partial(self._end, idle, slot, correlation_id, deadline_ms, waiting))
        idle.repeat_count += 1
        if self.consider_taking is not None:
            self.consider_taking(connection, idle)
        return True

    def is_valid(self, idle: IdleFetch, client: Connection) -> bool:
        """Whether the response would be the same if the next request were decoded now."""
        return idle.principal == client.peer_principal and self.has_same_response(idle)

    def has_same_response(self, idle: IdleFetch) -> bool:
        """`is_valid` if the client is the one it was."""
        if (
            idle.image_offset != self._metadata.image.offset
            or idle.rules is not self._authorizer.rules
        ):
            return False
        session = idle.session
        if session is not None and (
            session.epoch != idle.epoch or self._sessions.get(session.session_id) is not session
        ):
            return False
        has_open = self._services.logs.has_open
        for store, reader, generation, number, offsets in idle.logs:
            status = reader.status
            if (
                status.generation != generation
                or status.consumer_offsets(number) != offsets
                or not has_open(store, reader)
            ):
                return False
        return True

    def advance_session(self, idle: IdleFetch) -> None:
        """A request is answered with the response that is kept. `is_valid` said so when it came."""
        session = idle.session
        if (
            session is not None
            and session.epoch == idle.epoch  # Another connection may have gone on with it.
            and self._sessions.get(session.session_id) is session
        ):
            self._sessions.advance(session, self._services.now_ms())
            idle.expect_next()

    def _end(
        self,
        idle: IdleFetch,
        slot: Slot,
        correlation_id: int,
        deadline_ms: int,
        waiting: Reply[bool],
    ) -> None:
        if not waiting.result():
            self.count_requests(idle.count_key, 1)
            self.advance_session(idle)
            slot.complete((_pack_int32(correlation_id), idle.response))
            return
        frame = bytearray(_pack_int32(idle.key_and_version))
        frame += _pack_int32(correlation_id)
        frame += idle.behind
        left_ms = max(0, deadline_ms - self._services.now_ms())
        _write_int32(frame, idle.wait_at, left_ms)
        self._begin_request(slot, memoryview(bytes(frame)))

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
                return  # it is a producer's connection, or has found something
            client.remembered = None
        if (
            image.offset != candidate.image_offset
            or self._authorizer.rules is not candidate.rules
            or response.error_code
            or response.session_id != candidate.request.session_id
            or response.throttle_time_ms
            or client.is_closed
        ):
            return
        session = None
        if response.session_id:
            session = self._sessions.get(response.session_id)
            logs = self._logs_of_session(session, image) if not response.responses else []
        else:
            logs = self._logs_of_response(response, image, version)
        if not 0 < len(logs) <= PARTITIONS_MAX:
            return
        header = encode_response_header(ApiKey.FETCH, version, 0)
        body = encode_response(ApiKey.FETCH, version, response)
        client.remembered = IdleFetch(candidate, b"".join((header, *body))[4:], logs, session)

    def _logs_of_session(self, session: FetchSession | None, image: MetadataImage) -> list[_Log]:
        """The logs of an incremental fetch that returned nothing, if its consumer is at the end of
        all; else none."""
        logs: list[_Log] = []
        partitions = () if session is None else session.partitions.values()
        if len(partitions) > PARTITIONS_MAX:
            return []
        for cached in partitions:
            topic = (
                image.topics_by_name.get(cached.topic)
                if isinstance(cached.topic, str)
                else image.topics_by_id.get(cached.topic)
            )
            log = topic and self._services.logs.open(topic.topic_id, cached.partition)
            end = cached.sent_high_watermark
            # Before its end there may be records that have become stable since it was read.
            told = OFFSETS.pack(cached.sent_log_start_offset, end, end)
            if (
                not log
                or cached.fetch_offset != end
                or cached.sent_error_code
                or cached.last_fetched_epoch >= 0
                or log.reader.status.consumer_offsets(log.number) != told
            ):
                return []
            logs.append((log, told))
        return logs

    def _logs_of_response(
        self, response: FetchResponse, image: MetadataImage, version: int
    ) -> list[_Log]:
        """The logs of a fetch that returned nothing of each; else none."""
        logs: list[_Log] = []
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
                told = OFFSETS.pack(
                    data.log_start_offset, data.last_stable_offset, data.high_watermark
                )
                if log is None or log.reader.status.consumer_offsets(log.number) != told:
                    return []
                logs.append((log, told))
        return logs


def _may_repeat(request: FetchRequest, version: int) -> bool:
    """Whether the response depends only on what an idle fetch compares."""
    has_session = version >= _SESSIONS_SINCE and request.session_epoch != FINAL_EPOCH
    if (
        version < _FORMAT_SINCE
        or (has_session and (request.session_epoch == INITIAL_EPOCH or request.topics))
        or has_session is not bool(request.session_id)
        or request.forgotten_topics_data
        or request.replica_id >= 0
        or request.rack_id
        or request.min_bytes <= 0
        or request.max_bytes <= 0
        or not 0 < request.max_wait_ms <= WAIT_MS_MAX
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
