"""How long requests take, by API group and stage: histograms.

    queue     behind requests of the same connection that were read with it
    handler   decoding, the handler with all it waits for, encoding
    send      until the responses to earlier requests are there, and the connection is written to

and the whole time from the read to the write. The dispatcher chooses which requests are measured:
their slots have a `RequestTiming`, with times in nanoseconds of the monotonic clock. All others pay
for a look at one attribute. Read by router_metrics.py. Requests that are traced have one, too, and
their traces end here.
"""

from collections.abc import Iterator
from typing import Final

from odradek.node.bus.request_trace import RequestTrace
from odradek.node.metrics.histogram import DurationHistogram

GROUPS: Final = (
    "other",
    "produce",
    "fetch",
    "metadata",
    "group",
    "transaction",
    "share",
    "admin",
)
"""By the number of a group."""
STAGES: Final = ("queue", "handler", "send")
NOT_MEASURED: Final = -1
"""The group of a request that is only traced."""


class RequestTiming:
    """When the stages of a request began and ended."""

    __slots__ = ("done_ns", "group", "received_ns", "started_ns", "trace")

    def __init__(
        self, group: int, received_ns: int, started_ns: int, trace: RequestTrace | None = None
    ) -> None:
        self.group = group
        self.trace = trace
        self.received_ns = received_ns
        self.started_ns = self.done_ns = started_ns


class RequestTimes:
    """See the module's docstring."""

    __slots__ = ("_stages", "_totals")

    def __init__(self) -> None:
        self._totals = [DurationHistogram() for _ in GROUPS]
        self._stages = [[DurationHistogram() for _ in STAGES] for _ in GROUPS]

    def observe(self, timing: RequestTiming, sent_ns: int, response_bytes: int = 0) -> None:
        """The response is written."""
        trace = timing.trace
        if trace is not None:
            trace.response_bytes = response_bytes
            if trace.answered_ns:
                trace.add("encode", trace.answered_ns, timing.done_ns)
            trace.add("send", timing.done_ns, sent_ns)
            trace.finish(sent_ns, is_answered=True)
        if timing.group == NOT_MEASURED:
            return
        self._totals[timing.group].observe(sent_ns - timing.received_ns)
        queue, handler, send = self._stages[timing.group]
        queue.observe(timing.started_ns - timing.received_ns)
        handler.observe(timing.done_ns - timing.started_ns)
        send.observe(sent_ns - timing.done_ns)

    def abandon(self, timing: RequestTiming) -> None:
        """The connection was closed before there was a response."""
        if timing.trace is not None:
            timing.trace.finish(timing.done_ns, is_answered=False)

    def totals(self) -> Iterator[tuple[tuple[str, ...], DurationHistogram]]:
        """By group; those without requests are left out."""
        for group, histogram in zip(GROUPS, self._totals, strict=True):
            if histogram.count:
                yield (group,), histogram

    def stages(self) -> Iterator[tuple[tuple[str, ...], DurationHistogram]]:
        """By group and stage; those without requests are left out."""
        for group, histograms in zip(GROUPS, self._stages, strict=True):
            for stage, histogram in zip(STAGES, histograms, strict=True):
                if histogram.count:
                    yield (group, stage), histogram
