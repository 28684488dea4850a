"""TraceRequests (20010, version 0): requests of this node and the stages that they passed.

A private API (protocol/messages/traces.py). Each node traces its own requests; the command line
asks all nodes again and again (node/cli/trace.py).
"""

from typing import Final

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.traces import TraceRequestsRequest, TraceRequestsResponse
from odradek.protocol.types import ZERO_UUID

RATE_MAX: Final = 1_000
"""Traces a second of one session."""
WANTED_MAX: Final = 1_000
"""Client ids, APIs and topics of a filter."""
_LONG_COUNT_MIN: Final = 16
"""Traces whose encoding takes more than a millisecond."""


async def handle_trace_requests(
    request: TraceRequestsRequest, context: RequestContext, services: Services
) -> TraceRequestsResponse:
    """Needs ALTER on the cluster: a trace names principals, and tracing costs time."""
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    _check(request)
    tracer = services.tracer
    if request.lease_ms:
        wanted = TraceFilter(
            client_ids=None if request.client_ids is None else frozenset(request.client_ids),
            api_keys=None if request.api_keys is None else frozenset(request.api_keys),
            topics=None if request.topics is None else frozenset(request.topics),
            correlation_id=request.correlation_id if request.correlation_id >= 0 else None,
            slower_than_ns=1000 * max(0, request.slower_than_us),
            sample_every=request.sample_every,
            rate_max=request.rate_max,
        )
        session = tracer.renew(request.session_id, context.principal, wanted, request.lease_ms)
    else:
        ended = tracer.end(request.session_id)
        if ended is None:
            return TraceRequestsResponse()
        session = ended
    requests, omitted_count = session.take()
    context.is_long = len(requests) >= _LONG_COUNT_MIN
    return TraceRequestsResponse(requests=requests, omitted_count=omitted_count)


def _check(request: TraceRequestsRequest) -> None:
    problem = ""
    if request.session_id == ZERO_UUID:
        problem = "A trace session needs an id."
    elif request.lease_ms < 0:
        problem = "The lease of a trace session is not negative."
    elif not 1 <= request.rate_max <= RATE_MAX:
        problem = f"The rate is between 1 and {RATE_MAX} requests a second."
    elif request.sample_every < 1:
        problem = "One in so many requests is traced: at least 1."
    elif any(
        wanted is not None and len(wanted) > WANTED_MAX
        for wanted in (request.client_ids, request.api_keys, request.topics)
    ):
        problem = f"A filter has at most {WANTED_MAX} client ids, APIs and topics."
    if problem:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
