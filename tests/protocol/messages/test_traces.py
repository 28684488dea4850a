"""The bytes of private messages about traces. No other codec has them."""

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.traces import (
    TracedAttribute,
    TracedRequest,
    TracedStage,
    TraceRequestsRequest,
    TraceRequestsResponse,
)
from tests.support.message_samples import decode, encode

TRACES = APIS[ApiKey.TRACE_REQUESTS]


def test_a_question_has_these_bytes() -> None:
    request = TraceRequestsRequest(
        session_id=bytes(range(16)), lease_ms=1, api_keys=[0], topics=["t"], slower_than_us=2
    )
    body = (
        bytes(range(16))
        + b"\0\0\0\x01"
        + b"\0"
        + b"\x02\0\0"
        + b"\x02\x02t"
        + b"\xff\xff\xff\xff"
        + b"\0\0\0\0\0\0\0\x02"
        + b"\0\0\0\x01\0\0\0\x64"
        + b"\0"
    )
    assert encode(TRACES, "Request", 0, request) == body
    assert decode(TRACES, "Request", 0, body) == request


def test_requests_and_their_stages_come_back_as_they_were() -> None:
    stage = TracedStage(
        name="append",
        process="worker-0",
        parent_index=0,
        start_us=5,
        duration_us=7,
        attributes=[TracedAttribute(name="topic", value="t")],
    )
    response = TraceRequestsResponse(
        requests=[
            TracedRequest(
                trace_id=bytes(range(16)),
                received_us=1 << 50,
                duration_us=12,
                client_id=None,
                error_codes=[-1, 6],
                topics=["t"],
                is_answered=False,
                stages=[TracedStage(name="worker_request", duration_us=-1), stage],
            )
        ],
        omitted_count=3,
    )
    body = encode(TRACES, "Response", 0, response)
    assert decode(TRACES, "Response", 0, body) == response
