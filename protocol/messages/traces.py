"""A private API: TraceRequests (20010), requests of one node and the stages that they passed.

Times are microseconds: `start_us` since the request was read, `received_us` since the Unix epoch by
the node's clock.
"""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import ZERO_UUID, Request, Uuid


@struct
class TraceRequestsRequest(Request["TraceRequestsResponse"]):
    """Begin or continue a trace session on this node, and take what it has collected.

    The session ends `lease_ms` after the last request with its id; 0 ends it at once. Requests are
    traced that match all of `client_ids`, `api_keys`, `topics` (one of each; null: any),
    `correlation_id` (-1: any) and took `slower_than_us` at least; of those that match client, API
    and correlation id one in `sample_every`, and `rate_max` a second at most. What is looked for is
    decided by the first request of a session.
    """

    session_id: Uuid = uuid(default=ZERO_UUID)
    lease_ms: int = int32()
    client_ids: list[str] | None = array(string, nullable_since=0, default=None)
    api_keys: list[int] | None = array(int16, nullable_since=0, default=None)
    topics: list[str] | None = array(string, nullable_since=0, default=None)
    correlation_id: int = int32(default=-1)
    slower_than_us: int = int64()
    sample_every: int = int32(default=1)
    rate_max: int = int32(default=100)


@struct
class TracedAttribute:
    """What a stage was about."""

    name: str = string()
    value: str = string()


@struct
class TracedStage:
    """A stage of a request. `parent_index` is that of the stage that it is a part of; -1: none.
    `duration_us` is -1 for a stage that had not ended."""

    name: str = string()
    process: str = string()
    parent_index: int = int32(default=-1)
    start_us: int = int64()
    duration_us: int = int64()
    attributes: list[TracedAttribute] = array(TracedAttribute)


@struct
class TracedRequest:
    """One request. `is_answered` is false if its connection was closed before the response was
    written. `omitted_stage_count` stages are above the limit of a trace."""

    trace_id: Uuid = uuid(default=ZERO_UUID)
    received_us: int = int64()
    duration_us: int = int64()
    request_api_key: int = int16()
    request_api_version: int = int16()
    correlation_id: int = int32()
    client_id: str | None = string(nullable_since=0, default=None)
    client_host: str = string()
    client_port: int = int32()
    connection_id: int = int64()
    listener: str = string()
    principal: str = string()
    topics: list[str] = array(string)
    error_codes: list[int] = array(int16)
    throttle_time_ms: int = int32()
    request_bytes: int = int32()
    response_bytes: int = int32()
    is_answered: bool = boolean(default=True)
    omitted_stage_count: int = int32()
    stages: list[TracedStage] = array(TracedStage)


@struct
class TraceRequestsResponse(ErrorMessageResponse):
    """Requests in the order in which they ended. `omitted_count` more have matched since the last
    response: above the rate, or above what a session keeps."""

    requests: list[TracedRequest] = array(TracedRequest)
    omitted_count: int = int32()
