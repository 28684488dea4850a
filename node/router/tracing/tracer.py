"""Traces of requests, for those who ask for them: sessions with a filter and a lease.

A session begins with the first TraceRequests that names it and ends when its lease does, so that
tracing ends with the tool that wanted it, however that ends. What a session has collected is
bounded; what is over that, or over its rate, is counted. Without a session `is_active` is False,
and that is all that a request is asked. Called by dispatch.py for each request while it is active,
and by handlers/traces.py.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final, NamedTuple

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.request_trace import RequestTrace, Span
from odradek.node.router.tracing.trace_filter import TraceFilter, topic_names
from odradek.node.structured_log import get_logger
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.traces import TracedAttribute, TracedRequest, TracedStage

log = get_logger(__name__)

SESSIONS_MAX: Final = 4
"""At a time."""
REQUESTS_MAX: Final = 256
"""That a session keeps until they are taken."""
LEASE_MS_MAX: Final = 60_000
TOPICS_SHOWN_MAX: Final = 16
_NAME_LENGTH_MAX: Final = 256
ROUTER: Final = "router-0"
"""A node has one router."""


class TracedClient(NamedTuple):
    """Who sent a request, and how."""

    host: str
    port: int
    connection_id: int
    listener: str
    principal: str


class _Subject(NamedTuple):
    """A request that is traced, and for whom."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client: TracedClient
    sessions: "tuple[TraceSession, ...]"


@dataclass(slots=True, eq=False)
class TraceSession:
    """One who asks. `omitted_count` requests have matched and were not kept."""

    session_id: bytes
    principal: str
    wanted: TraceFilter
    lease: asyncio.TimerHandle | None = None
    requests: deque[TracedRequest] = field(default_factory=deque)
    omitted_count: int = 0
    seen_count: int = 0
    second: int = 0
    kept_count: int = 0
    """In that second."""

    def take(self) -> tuple[list[TracedRequest], int]:
        """What has been collected and omitted since the last time."""
        taken, omitted = list(self.requests), self.omitted_count
        self.requests.clear()
        self.omitted_count = 0
        return taken, omitted

    def is_sampled(self) -> bool:
        """Whether the next request that may match is traced."""
        self.seen_count += 1
        return self.seen_count % self.wanted.sample_every == 0

    def keep(self, request: TracedRequest, second: int) -> None:
        """A request that matches has ended in this second."""
        if second != self.second:
            self.second, self.kept_count = second, 0
        if self.kept_count >= self.wanted.rate_max or len(self.requests) >= REQUESTS_MAX:
            self.omitted_count += 1
            return
        self.kept_count += 1
        self.requests.append(request)


class Tracer:
    """See the module's docstring."""

    def __init__(self, loop: asyncio.AbstractEventLoop, image: Callable[[], MetadataImage]) -> None:
        self._loop = loop
        self._image = image
        self._sessions: dict[bytes, TraceSession] = {}
        self.is_active = False
        """Whether anybody wants requests traced."""

    # -- sessions ----------------------------------------------------------------------------------

    def renew(
        self, session_id: bytes, principal: str, wanted: TraceFilter, lease_ms: int
    ) -> TraceSession:
        """The session, which ends in `lease_ms`. Begins it if there is none.

        ApiError(INVALID_REQUEST) if there are SESSIONS_MAX others.
        """
        session = self._sessions.get(session_id)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"{SESSIONS_MAX} trace sessions are open on this node; more are not allowed.",
                )
            session = self._sessions[session_id] = TraceSession(session_id, principal, wanted)
            self.is_active = True
            log.info("a trace of requests begins", principal=principal, names=_text(wanted))
        if session.lease is not None:
            session.lease.cancel()
        lease_s = min(lease_ms, LEASE_MS_MAX) / 1000
        session.lease = self._loop.call_later(lease_s, self.end, session_id)
        return session

    def end(self, session_id: bytes) -> TraceSession | None:
        """End a session and forget what it has collected; None if there is none."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        self.is_active = bool(self._sessions)
        if session.lease is not None:
            session.lease.cancel()
        log.info("a trace of requests has ended", principal=session.principal)
        return session

    def close(self) -> None:
        """The router stops."""
        for session_id in list(self._sessions):
            self.end(session_id)

    # -- requests ----------------------------------------------------------------------------------

    def begin(
        self,
        *,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client: TracedClient,
        received_ns: int,
    ) -> RequestTrace | None:
        """The trace of a request, if a session may want it."""
        if api_key == ApiKey.TRACE_REQUESTS:
            return None
        sessions = tuple(
            session
            for session in self._sessions.values()
            if session.wanted.may_match(api_key, client_id, correlation_id) and session.is_sampled()
        )
        if not sessions:
            return None
        subject = _Subject(api_key, api_version, correlation_id, client_id, client, sessions)
        return RequestTrace(subject, received_ns, self._on_end)

    def _on_end(self, trace: RequestTrace) -> None:
        subject = trace.subject
        assert isinstance(subject, _Subject)
        topics = topic_names(trace.topics, self._image())
        duration_ns = trace.end_ns - trace.received_ns
        wanting = [
            session
            for session in subject.sessions
            if session.wanted.matches(topics, duration_ns) and session.session_id in self._sessions
        ]
        if wanting:
            request = _traced_request(trace, subject, topics)
            second = int(self._loop.time())
            for session in wanting:
                session.keep(request, second)


def _traced_request(trace: RequestTrace, subject: _Subject, topics: list[str]) -> TracedRequest:
    since_ns = perf_counter_ns() - trace.received_ns
    client, client_id = subject.client, subject.client_id
    return TracedRequest(
        trace_id=os.urandom(16),
        received_us=(time.time_ns() - since_ns) // 1000,
        duration_us=(trace.end_ns - trace.received_ns) // 1000,
        request_api_key=subject.api_key,
        request_api_version=subject.api_version,
        correlation_id=subject.correlation_id,
        client_id=None if client_id is None else client_id[:_NAME_LENGTH_MAX],
        client_host=client.host,
        client_port=client.port,
        connection_id=client.connection_id,
        listener=client.listener,
        principal=client.principal,
        topics=topics[:TOPICS_SHOWN_MAX],
        error_codes=sorted(trace.error_codes),
        throttle_time_ms=trace.throttle_time_ms,
        request_bytes=trace.request_bytes,
        response_bytes=trace.response_bytes,
        is_answered=trace.is_answered,
        omitted_stage_count=trace.omitted_count,
        stages=[_stage(span, trace.received_ns) for span in trace.spans],
    )


def _stage(span: Span, received_ns: int) -> TracedStage:
    return TracedStage(
        name=span.name,
        process=span.process or ROUTER,
        parent_index=span.parent,
        start_us=(span.start_ns - received_ns) // 1000,
        duration_us=(span.end_ns - span.start_ns) // 1000 if span.end_ns else -1,
        attributes=[
            TracedAttribute(name=name, value=value) for name, value in span.attributes.items()
        ],
    )


def _text(wanted: TraceFilter) -> str:
    """A filter, for the log."""
    conditions = []
    if wanted.client_ids is not None:
        conditions.append(f"client ids {', '.join(sorted(wanted.client_ids))}")
    if wanted.api_keys is not None:
        names = (APIS[key].name if key in APIS else str(key) for key in sorted(wanted.api_keys))
        conditions.append(f"APIs {', '.join(names)}")
    if wanted.topics is not None:
        conditions.append(f"topics {', '.join(sorted(wanted.topics))}")
    if wanted.correlation_id is not None:
        conditions.append(f"correlation id {wanted.correlation_id}")
    if wanted.slower_than_ns:
        conditions.append(f"{wanted.slower_than_ns / 1e6:g} ms or longer")
    conditions.append(f"one in {wanted.sample_every}, at most {wanted.rate_max} a second")
    return "; ".join(conditions)
