"""Traced requests as `odradek trace` prints them: a line, a waterfall of stages, a JSON object."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from odradek.node.cli.output import Json
from odradek.protocol.apis import APIS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.traces import TracedRequest, TracedStage

_BAR_WIDTH: Final = 32
_NAME_WIDTH: Final = 24


def trace_line(broker: int, request: TracedRequest) -> str:
    """One line. The time is local."""
    at = datetime.fromtimestamp(request.received_us / 1e6, UTC).astimezone()
    parts = [
        at.strftime("%H:%M:%S.%f"),
        f"broker {broker}",
        f"{api_name(request)} v{request.request_api_version}",
        f"{_ms(request.duration_us)} ms",
        f"client {_shown(request.client_id or '-')}",
        f"correlation {request.correlation_id}",
    ]
    if request.topics:
        parts.append(f"topics {', '.join(map(_shown, request.topics))}")
    if request.error_codes:
        parts.append(f"errors {', '.join(map(error_name, request.error_codes))}")
    if request.throttle_time_ms:
        parts.append(f"throttled {request.throttle_time_ms} ms")
    if not request.is_answered:
        parts.append("not answered: the connection was closed")
    return "  ".join(parts)


def trace_lines(broker: int, request: TracedRequest) -> Iterator[str]:
    """The line, who sent it, and a line for each stage: when it began and how long it took."""
    yield trace_line(broker, request)
    yield (
        f"    {_shown(request.principal)} at {request.client_host}:{request.client_port}, listener"
        f" {request.listener}, connection {request.connection_id}, trace {request.trace_id.hex()};"
        f" request {request.request_bytes} bytes, response {request.response_bytes} bytes"
    )
    for depth, stage in _in_order(request.stages):
        name = f"{'  ' * depth}{stage.name}"
        took = _ms(stage.duration_us) if stage.duration_us >= 0 else "-"
        about = " ".join(f"{each.name}={_shown(each.value)}" for each in stage.attributes)
        text = (
            f"    {name:<{_NAME_WIDTH}} {stage.process:<10} {_ms(stage.start_us):>10} {took:>10}"
            f"  |{_bar(stage, request.duration_us)}|  {about}"
        )
        yield text.rstrip()
    if request.omitted_stage_count:
        yield f"    and {request.omitted_stage_count} more stages"


def trace_document(broker: int, request: TracedRequest) -> dict[str, Json]:
    """A JSON object; times are microseconds."""
    stages: list[Json] = [
        {
            "name": stage.name,
            "process": stage.process,
            "parent_index": stage.parent_index,
            "start_us": stage.start_us,
            "duration_us": stage.duration_us if stage.duration_us >= 0 else None,
            "attributes": {each.name: each.value for each in stage.attributes},
        }
        for stage in request.stages
    ]
    return {
        "trace_id": request.trace_id.hex(),
        "broker": broker,
        "received_us": request.received_us,
        "duration_us": request.duration_us,
        "api": api_name(request),
        "api_version": request.request_api_version,
        "correlation_id": request.correlation_id,
        "client_id": request.client_id,
        "client_host": request.client_host,
        "client_port": request.client_port,
        "connection_id": request.connection_id,
        "listener": request.listener,
        "principal": request.principal,
        "topics": list(request.topics),
        "errors": [error_name(code) for code in request.error_codes],
        "throttle_time_ms": request.throttle_time_ms,
        "request_bytes": request.request_bytes,
        "response_bytes": request.response_bytes,
        "is_answered": request.is_answered,
        "omitted_stages": request.omitted_stage_count,
        "stages": stages,
    }


def _in_order(stages: Sequence[TracedStage]) -> Iterator[tuple[int, TracedStage]]:
    """Each stage after the one that it is a part of, otherwise by time; with its depth."""
    children: dict[int, list[int]] = {}
    for at, stage in enumerate(stages):
        # A stage is always after the one that it is a part of.
        parent = stage.parent_index if -1 <= stage.parent_index < at else -1
        children.setdefault(parent, []).append(at)
    rest = [(0, at) for at in _by_start(children.get(-1, []), stages)]
    while rest:
        depth, at = rest.pop()
        yield depth, stages[at]
        rest += [(depth + 1, child) for child in _by_start(children.get(at, []), stages)]


def _by_start(some: Sequence[int], stages: Sequence[TracedStage]) -> list[int]:
    """The last one first: they are taken from the end."""
    return sorted(some, key=lambda at: (stages[at].start_us, at), reverse=True)


def _bar(stage: TracedStage, total_us: int) -> str:
    """Where in the request's time the stage is."""
    total = max(total_us, 1)
    start = min(max(_BAR_WIDTH * stage.start_us // total, 0), _BAR_WIDTH - 1)
    length = max(1, round(_BAR_WIDTH * max(stage.duration_us, 0) / total))
    return (" " * start + "=" * length)[:_BAR_WIDTH].ljust(_BAR_WIDTH)


def api_name(request: TracedRequest) -> str:
    """That of its API, or the number of one that this release does not know."""
    api = APIS.get(request.request_api_key)
    return str(request.request_api_key) if api is None else api.name


def error_name(code: int) -> str:
    """That of an error code, or its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _ms(duration_us: int) -> str:
    return f"{duration_us / 1000:.3f}"


def _shown(text: str) -> str:
    """What a client has chosen, without what a terminal would carry out."""
    return "".join(each if each.isprintable() else "?" for each in text)
