"""`odradek trace`: requests of clients and the stages that they pass, on all brokers.

Each broker traces its own requests for as long as it is asked again and again (TraceRequests,
20010). It stops when the command says so at its end, or LEASE_MS after the last it heard of it.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error, with_client
from odradek.node.cli.not_found import nearest_name
from odradek.node.cli.output import Output
from odradek.node.cli.parameters import duration
from odradek.node.cli.trace_export import Traced, TraceExporter, collector_url
from odradek.node.cli.trace_text import trace_document, trace_line, trace_lines
from odradek.protocol.apis import APIS
from odradek.protocol.messages.traces import TraceRequestsRequest

LEASE_MS: Final = 15_000
"""After this a broker does not trace any more for a command that was killed."""
POLL_S: Final = 0.2
_METADATA_S: Final = 5.0
"""Between two looks for brokers that are new or back."""


@dataclass(slots=True)
class _Following:
    """What the command has seen so far."""

    request: TraceRequestsRequest
    is_stopped: bool = False
    tracing: set[int] = field(default_factory=set)
    """The brokers that have answered."""
    silent: set[int] = field(default_factory=set)
    """Those that have not; they are asked again with the next metadata."""
    omitted: dict[int, int] = field(default_factory=dict)

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_stopped = True


@dataclass(frozen=True, slots=True)
class _Shown:
    """Where traced requests go."""

    output: Output
    detail: bool
    exporter: TraceExporter | None

    def show(self, found: Sequence[Traced]) -> None:
        """Print them, and send them to the collector."""
        for broker, request in found:
            if self.output.is_json:
                self.output.json_line(trace_document(broker, request))
                continue
            lines: Iterable[str] = (trace_line(broker, request),)
            if self.detail:
                lines = trace_lines(broker, request)
            for line in lines:
                click.echo(line)
        if self.exporter is not None:
            self.exporter.export(found)

    def raise_if_lost(self) -> None:
        """ClickException if the collector did not take all."""
        if self.exporter is not None and (lost := self.exporter.lost_count):
            raise click.ClickException(f"{lost} requests were not exported")


def api_key(value: str) -> int:
    """The name of an API in any spelling (`Produce`, `list-offsets`), or its number."""
    wanted = value.lower().replace("-", "").replace("_", "")
    names = {api.name.lower(): key for key, api in APIS.items()}
    if wanted in names:
        return names[wanted]
    if value.isdecimal() and int(value) in APIS:
        return int(value)
    nearest = nearest_name(value, (api.name for api in APIS.values()))
    hint = f"; did you mean {nearest}?" if nearest is not None else ""
    raise click.BadParameter(f"{value!r} is no API{hint}")


@click.command(short_help="Show requests and the stages they pass.")
@click.option("--client-id", "client_ids", multiple=True, help="Of this client; repeatable.")
@click.option("--api", "apis", multiple=True, type=api_key, help="Of this API; repeatable.")
@click.option("--topic", "topics", multiple=True, help="About this topic; repeatable.")
@click.option("--correlation-id", type=click.IntRange(0, 2**31 - 1), help="With this one.")
@click.option(
    "--slower-than", type=click.FloatRange(min=0), metavar="MS", help="That took so long at least."
)
@click.option(
    "--sample",
    type=click.IntRange(1, 2**31 - 1),
    default=1,
    show_default=True,
    metavar="N",
    help="One in N of them.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000),
    default=100,
    show_default=True,
    help="At most so many a second on each broker.",
)
@click.option("--for", "period_ms", type=duration, metavar="DURATION", help="Stop after, e.g. 30s.")
@click.option("--max-requests", "-n", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--detail", "-d", is_flag=True, help="Show the stages of each request.")
@click.option(
    "--export",
    "collector",
    default="",
    callback=collector_url,
    metavar="URL",
    help="Send them to an OpenTelemetry collector as well (OTLP over HTTP).",
)
@with_client
def trace(
    client_ids: tuple[str, ...],
    apis: tuple[int, ...],
    topics: tuple[str, ...],
    correlation_id: int | None,
    slower_than: float | None,
    sample: int,
    rate: int,
    period_ms: int | None,
    max_requests: int | None,
    detail: bool,
    collector: str,
    client: ClusterClient,
    output: Output,
) -> None:
    """Show requests of clients as they end, and where their time went.

    All brokers trace requests that match all options while the command runs, until Ctrl-C, --for or
    --max-requests. Nothing is traced after that. Needs ALTER on the cluster.

    \b
    odradek trace --client-id my-app --detail
    odradek trace --api produce --topic orders --slower-than 50 --for 5m
    odradek trace --correlation-id 4711 -o json | jq .stages
    odradek trace --sample 100 --export http://localhost:4318
    """
    following = _Following(
        TraceRequestsRequest(
            session_id=os.urandom(16),
            lease_ms=LEASE_MS,
            client_ids=list(client_ids) or None,
            api_keys=list(apis) or None,
            topics=list(topics) or None,
            correlation_id=-1 if correlation_id is None else correlation_id,
            slower_than_us=int(1000 * (slower_than or 0)),
            sample_every=sample,
            rate_max=rate,
        )
    )
    client.time_each_answer()
    deadline = None if period_ms is None else time.monotonic() + period_ms / 1000
    left = max_requests
    shown = _Shown(output, detail, TraceExporter(collector) if collector else None)
    with _stopped_by_signals(following):
        try:
            for found in _polls(following, client, output, deadline):
                shown.show(found[:left])
                if left is not None:
                    left = max(0, left - len(found))
                    if not left:
                        break
        finally:
            last = _end(following, client)
        shown.show(last[:left])
    for broker, count in sorted(following.omitted.items()):
        text = f"broker {broker}: {count} more requests matched; --rate and --sample choose fewer"
        click.echo(text, err=True)
    shown.raise_if_lost()


def _polls(
    following: _Following, client: ClusterClient, output: Output, deadline: float | None
) -> Iterator[list[Traced]]:
    """What the brokers have traced since the last time, in the order of arrival, until the end."""
    metadata_due = 0.0
    while not following.is_stopped:
        now = time.monotonic()
        if now >= metadata_due:
            client.metadata()
            following.silent.clear()
            metadata_due = now + _METADATA_S
        yield _poll(following, client, output)
        if deadline is not None and now >= deadline:
            return
        time.sleep(POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - now)))


def _poll(following: _Following, client: ClusterClient, output: Output) -> list[Traced]:
    found: list[Traced] = []
    began = len(following.tracing)
    for broker in client.broker_ids:
        if broker in following.silent or following.is_stopped:
            continue
        answer = client.ask_node(broker, following.request)
        if answer is None:
            following.silent.add(broker)
            if broker in following.tracing or not following.tracing:
                click.echo(f"{client.silence(broker)}: its requests are missing", err=True)
                following.tracing.discard(broker)
            continue
        if answer.error_code and following.tracing:
            click.echo(f"broker {broker}: {error_text(answer)}", err=True)
            following.silent.add(broker)
            continue
        raise_on_error(answer, f"broker {broker}")
        following.tracing.add(broker)
        if answer.omitted_count:
            following.omitted[broker] = following.omitted.get(broker, 0) + answer.omitted_count
        found += [(broker, request) for request in answer.requests]
    if not following.tracing and not following.is_stopped:
        raise click.ClickException(
            "no broker traces requests: only Odradek's do, from this release"
        )
    if len(following.tracing) > began:
        names = ", ".join(map(str, sorted(following.tracing)))
        output.hint(f"Tracing on brokers {names}. Ctrl-C ends it.")
    return sorted(found, key=_received)


def _end(following: _Following, client: ClusterClient) -> list[Traced]:
    """Tell the brokers that nobody follows any more; what they have traced since the last time."""
    following.request.lease_ms = 0
    found: list[Traced] = []
    for broker in sorted(following.tracing - following.silent):
        answer = client.ask_node(broker, following.request)
        if answer is not None and not answer.error_code:
            found += [(broker, request) for request in answer.requests]
    return sorted(found, key=_received)


def _received(found: Traced) -> int:
    return found[1].received_us


@contextmanager
def _stopped_by_signals(following: _Following) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the command in order; the next one at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        following.stop(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
