"""Traces as OpenTelemetry's own messages read them, and a collector that takes them or not."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from odradek.node.cli.trace_export import PATH, TraceExporter, collector_url, otlp_document
from odradek.protocol.messages.traces import TracedRequest
from tests.node.cli.conftest import Run
from tests.node.cli.test_trace import producing
from tests.node.cli.test_trace_text import traced
from tests.support.ports import free_port

TRACE_ID = bytes(range(16))


class Collector:
    """Takes traces over HTTP, as an OpenTelemetry collector does."""

    def __init__(self, status: int) -> None:
        self.taken: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == PATH
                assert self.headers["Content-Type"] == "application/json"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.taken.append(read(json.loads(body)))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.taken
            for of_broker in request.resource_spans
            for scope in of_broker.scope_spans
            for span in scope.spans
        ]


@contextmanager
def running_collector(status: int = 200) -> Iterator[Collector]:
    collector = Collector(status)
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


def read(document: Any) -> ExportTraceServiceRequest:  # noqa: ANN401 - JSON
    """The message. Ids are hexadecimal in OTLP's JSON, and base64 in protobuf's."""
    for of_broker in document["resourceSpans"]:
        for scope in of_broker["scopeSpans"]:
            for span in scope["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    message: ExportTraceServiceRequest = ParseDict(document, ExportTraceServiceRequest())
    return message


def request() -> TracedRequest:
    found = traced()
    found.trace_id = TRACE_ID
    return found


def attributes(span: Span) -> dict[str, str | int | bool]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "")
        for each in span.attributes
    }


def test_a_request_is_a_trace_and_its_stages_are_spans_below_it() -> None:
    message = read(otlp_document([(2, request()), (3, request()), (2, request())]))
    assert [
        (
            {each.key: each.value.string_value for each in of_broker.resource.attributes},
            len(of_broker.scope_spans[0].spans),
        )
        for of_broker in message.resource_spans
    ] == [
        ({"service.name": "odradek", "service.instance.id": "2"}, 10),
        ({"service.name": "odradek", "service.instance.id": "3"}, 5),
    ]
    root, *stages = message.resource_spans[1].scope_spans[0].spans
    assert {each.trace_id for each in (root, *stages)} == {TRACE_ID}
    assert len({each.span_id for each in (root, *stages)}) == 5
    assert all(any(each.span_id) and len(each.span_id) == 8 for each in (root, *stages))
    assert (root.name, root.kind, root.parent_span_id) == ("Produce", Span.SPAN_KIND_SERVER, b"")
    began = 1_700_000_000_123_456_000
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (began, began + 1_600_000)
    assert (root.status.code, root.status.message) == (
        Status.STATUS_CODE_ERROR,
        "NOT_LEADER_OR_FOLLOWER",
    )
    told = attributes(root)
    assert (told["client.address"], told["client.port"]) == ("10.0.0.7", 4711)
    assert (told["odradek.topics"], told["odradek.is_answered"]) == ("orders", True)

    assert [each.name for each in stages] == ["queue", "worker_request", "append", "send"]
    parents = [root.span_id, root.span_id, stages[1].span_id, root.span_id]
    assert [each.parent_span_id for each in stages] == parents
    append, send = stages[2:]
    assert append.start_time_unix_nano == began + 800_000
    assert append.end_time_unix_nano == began + 1_200_000
    assert attributes(append) == {
        "odradek.partition": "0",
        "odradek.process": "worker-0",
        "odradek.is_ended": True,
    }
    assert send.end_time_unix_nano == root.end_time_unix_nano, "it had not ended"
    assert attributes(send)["odradek.is_ended"] is False


def test_what_a_collector_does_not_take_is_counted_and_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_collector(status=503) as collector:
        exporter = TraceExporter(collector.url + PATH)
        exporter.export([])
        assert not collector.taken
        exporter.export([(0, request())])
        exporter.export([(0, request()), (1, request())])
        assert exporter.lost_count == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"{collector.url}{PATH} does not take traces: Service Unavailable"


def url_of(value: str) -> str:
    command = click.Command("trace")
    return collector_url(click.Context(command), click.Option(["--export"]), value)


def test_a_collector_is_named_by_its_address() -> None:
    assert url_of("") == ""
    for value in ("http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"):
        assert url_of(value) == "http://c:4318/v1/traces"
    for value in ("c:4318", "ftp://c", "http://"):
        with pytest.raises(click.BadParameter, match="for example http://localhost:4318"):
            url_of(value)


@pytest.mark.e2e
def test_requests_to_a_broker_arrive_at_a_collector(kafka: Run, bootstrap: str) -> None:
    with producing(bootstrap) as name:
        options = ("trace", "--client-id", name, "--api", "produce", "-n", "2", "-o", "json")
        with running_collector() as collector:
            documents = kafka(*options, "--export", collector.url).json_lines()
        refused = kafka(*options, "--export", f"http://127.0.0.1:{free_port()}")
    roots = [each for each in collector.spans() if not each.parent_span_id]
    assert [each.trace_id.hex() for each in roots] == [each["trace_id"] for each in documents]
    assert {each.name for each in roots} == {"Produce"}
    names = {each.name for each in collector.spans() if each.parent_span_id}
    assert names >= {"queue", "worker_request", "append", "send"}
    assert refused.exit_code == 1
    assert "Connection refused" in refused.stderr
    assert "2 requests were not exported" in refused.stderr
