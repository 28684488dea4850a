"""How long requests take, by API and stage: histograms.

    queue     behind requests of the same connection that were read with it
    handler   decoding, the handler with all it waits for, encoding
    send      until the responses to earlier requests are there, and the connection is written to

and the whole time from the read to the write. The dispatcher chooses which requests are measured:
their slots have a `RequestTiming`, with times in nanoseconds of the monotonic clock. All others pay
for a look at one attribute. Read by router_metrics.py. Requests that are traced have one, too, and
their traces end here.
"""

from typing import Final

from odradek.node.bus.request_trace import RequestTrace
from odradek.node.metrics.histogram import DurationHistogram

STAGES: Final = ("queue", "handler", "send")
SAMPLE_MASK: Final = 15
"""Of frequent APIs those requests are measured whose correlation ids have none of these bits."""
NOT_MEASURED: Final = -1
"""The API key of a request that is only traced."""


class RequestTiming:
    """When the stages of a request began and ended."""

    __slots__ = ("api_key", "done_ns", "received_ns", "started_ns", "trace")

    def __init__(
        self, api_key: int, received_ns: int, started_ns: int, trace: RequestTrace | None = None
    ) -> None:
        self.api_key = api_key
        self.trace = trace
        self.received_ns = received_ns
        self.started_ns = self.done_ns = started_ns


class RequestTimes:
    """See the module's docstring."""

    __slots__ = ("_by_api",)

    def __init__(self) -> None:
        self._by_api: dict[int, tuple[DurationHistogram, ...]] = {}
        """By API key: of the whole time, and of each stage."""

    def observe(self, timing: RequestTiming, sent_ns: int, response_bytes: int = 0) -> None:
        """The response is written."""
        trace = timing.trace
        if trace is not None:
            trace.response_bytes = response_bytes
            if trace.answered_ns:
                trace.add("encode", trace.answered_ns, timing.done_ns)
            trace.add("send", timing.done_ns, sent_ns)
            trace.finish(sent_ns, is_answered=True)
        api_key = timing.api_key
        if api_key == NOT_MEASURED:
            return
        times = self._by_api.get(api_key)
        if times is None:
            times = self._by_api[api_key] = tuple(DurationHistogram() for _ in ("total", *STAGES))
        total, queue, handler, send = times
        total.observe(sent_ns - timing.received_ns)
        queue.observe(timing.started_ns - timing.received_ns)
        handler.observe(timing.done_ns - timing.started_ns)
        send.observe(sent_ns - timing.done_ns)

    def abandon(self, timing: RequestTiming) -> None:
        """The connection was closed before there was a response."""
        if timing.trace is not None:
            timing.trace.finish(timing.done_ns, is_answered=False)

    def totals(self) -> list[tuple[int, DurationHistogram]]:
        """By API key: of the APIs that were asked. A list, since they are rendered in slices, and
        requests of further APIs may end meanwhile."""
        return [(api_key, total) for api_key, (total, *_) in self._by_api.items()]

    def stages(self) -> list[tuple[int, str, DurationHistogram]]:
        """By API key and stage: of the APIs that were asked."""
        return [
            (api_key, stage, histogram)
            for api_key, (_, *histograms) in self._by_api.items()
            for stage, histogram in zip(STAGES, histograms, strict=True)
        ]
