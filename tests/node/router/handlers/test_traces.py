"""TraceRequests: sessions of a node, and who may have one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router.handlers.traces import RATE_MAX, handle_trace_requests
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.traces import TraceRequestsRequest, TraceRequestsResponse
from tests.support.router_harness import RouterHarness

SESSION = b"s" * 16


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def test_a_session_begins_with_its_first_request_and_ends_with_the_last(
    harness: RouterHarness,
) -> None:
    tracer = harness.services.tracer
    asked = TraceRequestsRequest(session_id=SESSION, lease_ms=30_000)
    assert harness.call(handle_trace_requests, asked) == TraceRequestsResponse()
    active = [tracer.is_active]
    ended = TraceRequestsRequest(session_id=SESSION)
    assert harness.call(handle_trace_requests, ended) == TraceRequestsResponse()
    assert [*active, tracer.is_active] == [True, False]
    assert harness.call(handle_trace_requests, ended) == TraceRequestsResponse()


@pytest.mark.parametrize(
    "request_",
    [
        TraceRequestsRequest(lease_ms=1),
        TraceRequestsRequest(session_id=SESSION, lease_ms=-1),
        TraceRequestsRequest(session_id=SESSION, lease_ms=1, rate_max=0),
        TraceRequestsRequest(session_id=SESSION, lease_ms=1, rate_max=RATE_MAX + 1),
        TraceRequestsRequest(session_id=SESSION, lease_ms=1, sample_every=0),
        TraceRequestsRequest(session_id=SESSION, lease_ms=1, topics=["t"] * 1_001),
    ],
)
def test_what_makes_no_sense_is_refused(
    harness: RouterHarness, request_: TraceRequestsRequest
) -> None:
    with pytest.raises(ApiError) as refused:
        harness.call(handle_trace_requests, request_)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert not harness.services.tracer.is_active


def test_it_needs_alter_on_the_cluster(harness: RouterHarness) -> None:
    harness.authorizer.denied.add((AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
    asked = TraceRequestsRequest(session_id=SESSION, lease_ms=30_000)
    with pytest.raises(ApiError) as refused:
        harness.call(handle_trace_requests, asked)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not harness.services.tracer.is_active
