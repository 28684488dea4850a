"""Traced requests for OpenTelemetry: a trace for each, sent to a collector in OTLP over HTTP.

The request is a server span, and each stage a span below the one that it is a part of. The encoding
is OTLP's JSON: ids in hexadecimal, 64-bit numbers as text. Span ids count up in their trace. Called
by trace.py.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import click

from odradek.node.cli.output import Json
from odradek.node.cli.trace_text import api_name, error_name
from odradek.protocol.messages.traces import TracedRequest, TracedStage

TIMEOUT_S: Final = 5.0
"""For the collector's answer: below the lease of a trace session, so that none ends of it."""
PATH: Final = "/v1/traces"
_INTERNAL, _SERVER = 1, 2
"""Kinds of spans."""
_ERROR: Final = 2
"""The status code of a span."""

Traced: TypeAlias = tuple[int, TracedRequest]
"""A broker, and a request that it traced."""


def collector_url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Where the collector takes traces, of its address with or without a path; BadParameter."""
    if not value:
        return ""
    parts = urllib.parse.urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.BadParameter(f"{value!r} is no URL; for example http://localhost:4318")
    return value.rstrip("/").removesuffix(PATH) + PATH


class TraceExporter:
    """Sends traces to a collector. What it does not take is counted, and the first reason said."""

    def __init__(self, url: str) -> None:
        self.lost_count = 0
        self._url = url

    def export(self, found: Sequence[Traced]) -> None:
        """Send these requests. Returns when they are taken, or lost."""
        if not found:
            return
        request = urllib.request.Request(
            self._url,
            json.dumps(otlp_document(found)).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                response.read()
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if not self.lost_count:
                click.echo(f"{self._url} does not take traces: {reason}", err=True)
            self.lost_count += len(found)


def otlp_document(found: Sequence[Traced]) -> dict[str, Json]:
    """An ExportTraceServiceRequest: the brokers are its resources."""
    spans: dict[int, list[Json]] = {}
    for broker, request in found:
        spans.setdefault(broker, []).extend(_spans(request))
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": _attributes(
                        {"service.name": "odradek", "service.instance.id": str(broker)}
                    )
                },
                "scopeSpans": [{"scope": {"name": "odradek"}, "spans": of_broker}],
            }
            for broker, of_broker in spans.items()
        ]
    }


def _spans(request: TracedRequest) -> list[Json]:
    errors = [error_name(code) for code in request.error_codes]
    root: dict[str, Json] = {
        **_span(request, 0, api_name(request)),
        **_times(request, 0, request.duration_us),
        "kind": _SERVER,
        "attributes": _attributes(
            {
                "messaging.system": "kafka",
                "messaging.client.id": request.client_id or "",
                "client.address": request.client_host,
                "client.port": request.client_port,
                "odradek.api.version": request.request_api_version,
                "odradek.correlation.id": request.correlation_id,
                "odradek.connection.id": request.connection_id,
                "odradek.listener": request.listener,
                "odradek.principal": request.principal,
                "odradek.topics": ",".join(request.topics),
                "odradek.throttle.time.ms": request.throttle_time_ms,
                "odradek.request.bytes": request.request_bytes,
                "odradek.response.bytes": request.response_bytes,
                "odradek.is_answered": request.is_answered,
                "odradek.omitted.stages": request.omitted_stage_count,
            }
        ),
        **({"status": {"code": _ERROR, "message": ", ".join(errors)}} if errors else {}),
    }
    stages = (_stage_span(request, at, stage) for at, stage in enumerate(request.stages))
    return [root, *stages]


def _stage_span(request: TracedRequest, at: int, stage: TracedStage) -> dict[str, Json]:
    is_ended = stage.duration_us >= 0
    # One that had not ended lasts as long as the request, at least.
    duration_us = stage.duration_us if is_ended else max(0, request.duration_us - stage.start_us)
    own: dict[str, Json] = {f"odradek.{each.name}": each.value for each in stage.attributes}
    return {
        **_span(request, at + 1, stage.name),
        **_times(request, stage.start_us, duration_us),
        "parentSpanId": _span_id(stage.parent_index + 1),
        "kind": _INTERNAL,
        "attributes": _attributes(
            {**own, "odradek.process": stage.process, "odradek.is_ended": is_ended}
        ),
    }


def _span(request: TracedRequest, index: int, name: str) -> dict[str, Json]:
    return {"traceId": request.trace_id.hex(), "spanId": _span_id(index), "name": name}


def _span_id(index: int) -> str:
    """That of the request has the index 0, those of the stages follow. Zero is no id."""
    return f"{index + 1:016x}"


def _times(request: TracedRequest, start_us: int, duration_us: int) -> dict[str, Json]:
    began_us = request.received_us + start_us
    return {
        "startTimeUnixNano": str(1000 * began_us),
        "endTimeUnixNano": str(1000 * (began_us + duration_us)),
    }


def _attributes(values: Mapping[str, Json]) -> list[Json]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def _any_value(value: Json) -> dict[str, Json]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}
