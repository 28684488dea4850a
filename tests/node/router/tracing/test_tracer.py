"""Sessions: what they keep, and when they end."""

import asyncio
import logging
from collections.abc import Iterator
from time import perf_counter_ns

import pytest

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.node.router.tracing.tracer import REQUESTS_MAX, SESSIONS_MAX, TracedClient, Tracer
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.log_lines import log_lines
from tests.support.waiting import wait_until

CLIENT = TracedClient("10.0.0.7", 4711, 3, "PLAINTEXT", "User:alice")
LEASE_MS = 30_000


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    loop = asyncio.new_event_loop()
    tracer = Tracer(loop, MetadataImage.empty)
    yield tracer
    tracer.close()
    loop.close()


def begin(
    tracer: Tracer, *, client_id: str = "app", api_key: int = ApiKey.PRODUCE
) -> RequestTrace | None:
    return tracer.begin(
        api_key=api_key,
        api_version=9,
        correlation_id=5,
        client_id=client_id,
        client=CLIENT,
        received_ns=perf_counter_ns(),
    )


def run(tracer: Tracer, *, client_id: str = "app", duration_ns: int = 1_000_000) -> None:
    trace = begin(tracer, client_id=client_id)
    if trace is not None:
        trace.add_topics(["orders"])
        span = trace.add("append", trace.received_ns + 1_000, trace.received_ns + 5_000)
        trace.add("commit", trace.received_ns + 2_000, trace.received_ns + 4_000, parent=span)
        trace.finish(trace.received_ns + duration_ns, is_answered=True)


def test_a_session_gets_the_requests_that_it_wants(tracer: Tracer) -> None:
    active = [tracer.is_active]
    session = tracer.renew(
        b"s" * 16, "User:admin", TraceFilter(client_ids=frozenset({"app"})), LEASE_MS
    )
    assert [*active, tracer.is_active] == [False, True]
    run(tracer)
    run(tracer, client_id="other")
    [request], omitted = session.take()
    assert omitted == 0
    assert (request.client_id, request.correlation_id, request.topics) == ("app", 5, ["orders"])
    assert (request.principal, request.client_host) == ("User:alice", "10.0.0.7")
    assert request.duration_us == 1_000
    assert [(each.name, each.parent_index, each.start_us) for each in request.stages] == [
        ("append", -1, 1),
        ("commit", 0, 2),
    ]
    assert session.take() == ([], 0)


def test_questions_for_traces_are_not_traced(tracer: Tracer) -> None:
    tracer.renew(b"s" * 16, "User:admin", TraceFilter(), LEASE_MS)
    assert begin(tracer, api_key=ApiKey.TRACE_REQUESTS) is None


def test_one_in_so_many_is_traced(tracer: Tracer) -> None:
    session = tracer.renew(b"s" * 16, "User:admin", TraceFilter(sample_every=10), LEASE_MS)
    for _ in range(40):
        run(tracer)
    assert len(session.take()[0]) == 4


def test_what_is_over_the_rate_or_the_size_of_a_session_is_counted(tracer: Tracer) -> None:
    slow = tracer.renew(
        b"s" * 16, "User:admin", TraceFilter(slower_than_ns=2_000_000, rate_max=1_000), LEASE_MS
    )
    few = tracer.renew(b"t" * 16, "User:admin", TraceFilter(rate_max=3), LEASE_MS)
    for _ in range(REQUESTS_MAX + 10):
        run(tracer, duration_ns=2_000_000)
        run(tracer)
    requests, omitted = slow.take()
    assert (len(requests), omitted) == (REQUESTS_MAX, 10)
    requests, omitted = few.take()
    # The test may run across the end of a second.
    assert len(requests) in (3, 6)
    assert len(requests) + omitted == 2 * (REQUESTS_MAX + 10)


def test_a_session_ends_with_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    tracer = Tracer(loop, MetadataImage.empty)

    def has_ended() -> bool:
        loop.run_until_complete(asyncio.sleep(0))
        return not tracer.is_active

    with caplog.at_level(logging.INFO):
        tracer.renew(b"s" * 16, "User:admin", TraceFilter(topics=frozenset({"orders"})), 1)
        tracer.renew(b"s" * 16, "User:admin", TraceFilter(), 30)
        trace = begin(tracer)
        assert trace is not None
        wait_until(has_ended, what="the lease ends")
        trace.finish(trace.received_ns, is_answered=True)
        assert begin(tracer) is None
    loop.close()
    assert [each for each in log_lines(caplog) if each.startswith("a trace")] == [
        "a trace of requests begins principal=User:admin"
        " names='topics orders; one in 1, at most 100 a second'",
        "a trace of requests has ended principal=User:admin",
    ]


def test_the_number_of_sessions_is_limited(tracer: Tracer) -> None:
    for at in range(SESSIONS_MAX):
        tracer.renew(bytes([at + 1]) * 16, "User:admin", TraceFilter(), LEASE_MS)
    with pytest.raises(ApiError) as refused:
        tracer.renew(b"s" * 16, "User:admin", TraceFilter(), LEASE_MS)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert tracer.end(bytes([1]) * 16) is not None
    tracer.renew(b"s" * 16, "User:admin", TraceFilter(), LEASE_MS)
