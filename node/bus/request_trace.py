"""The trace of one request: its stages, in which process each was, and how long it took.

Times are nanoseconds of the monotonic clock (perf_counter_ns), which all processes of a machine
share. While a thread works for a traced request, `RequestTrace.current` is its trace, so that code
below the handler can add spans without an argument; it is None at all other times, and always while
nobody traces. Filled by dispatch.py and by those who send requests to other processes, read by
node/router/tracing/.
"""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import ClassVar, Final

SPANS_MAX: Final = 64
"""Of one trace; later ones are counted only."""
TOPICS_MAX: Final = 1_000
"""Topics of one request that are looked at."""
ROOT: Final = -1
"""The parent of a span that is a stage of the whole request."""


class Span:
    """One stage. `parent` is the index of the span that it is a part of, or ROOT. `end_ns` is 0
    until it ends."""

    __slots__ = ("attributes", "end_ns", "name", "parent", "process", "start_ns")

    def __init__(
        self, name: str, process: str, parent: int, start_ns: int, attributes: dict[str, str]
    ) -> None:
        self.name = name
        self.process = process
        """The process that did the work, such as `worker-0`; empty: the router."""
        self.parent = parent
        self.start_ns = start_ns
        self.end_ns = 0
        self.attributes = attributes


class RequestTrace:
    """See the module's docstring. `on_end` is called once, with the trace."""

    __slots__ = (
        "_on_end",
        "answered_ns",
        "end_ns",
        "error_codes",
        "has_waited",
        "is_answered",
        "omitted_count",
        "received_ns",
        "request_bytes",
        "response_bytes",
        "spans",
        "step_ns",
        "subject",
        "throttle_time_ms",
        "topics",
    )

    current: "ClassVar[RequestTrace | None]" = None
    """That of the request for which the thread works now."""

    def __init__(
        self, subject: object, received_ns: int, on_end: "Callable[[RequestTrace], None]"
    ) -> None:
        self.subject = subject
        """What the owner knows of the request."""
        self.received_ns = received_ns
        self.answered_ns = 0
        """When the handler had its response."""
        self.end_ns = 0
        self.step_ns = 0
        """When the handler was started or resumed last."""
        self.has_waited = False
        """Whether the handler has waited for another process, a timer or other requests."""
        self.is_answered = False
        """Whether the response was written; False if the connection was closed before that."""
        self.omitted_count = 0
        """Spans above SPANS_MAX."""
        self.request_bytes = self.response_bytes = self.throttle_time_ms = 0
        self.error_codes: frozenset[int] = frozenset()
        self.topics: set[str | bytes] = set()
        """Names and ids, as they are in the request."""
        self.spans: list[Span] = []
        self._on_end = on_end

    def begin(
        self,
        name: str,
        *,
        process: str = "",
        parent: int = ROOT,
        attributes: Mapping[str, str] | None = None,
    ) -> int:
        """The index of a span that begins now; ROOT if the trace has no room for it."""
        return self._add(
            Span(name, process, parent, perf_counter_ns(), dict(attributes) if attributes else {})
        )

    def end(self, index: int) -> None:
        """The span ends now."""
        if index != ROOT:
            self.spans[index].end_ns = perf_counter_ns()

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        process: str = "",
        parent: int = ROOT,
        attributes: Mapping[str, str] | None = None,
    ) -> int:
        """A span that has ended: [start_ns, end_ns). Its index, or ROOT without room for it."""
        span = Span(name, process, parent, start_ns, dict(attributes) if attributes else {})
        span.end_ns = max(start_ns, end_ns)
        return self._add(span)

    def add_topics(self, topics: Iterable[str | bytes]) -> None:
        """Topics of the request, as names or ids."""
        for topic in topics:
            if len(self.topics) >= TOPICS_MAX:
                return
            if topic:
                self.topics.add(topic)

    def finish(self, end_ns: int, *, is_answered: bool) -> None:
        """The response was written, or the connection was closed before that."""
        if not self.end_ns:
            self.end_ns = end_ns
            self.is_answered = is_answered
            self._on_end(self)

    def _add(self, span: Span) -> int:
        if len(self.spans) >= SPANS_MAX or self.end_ns:
            self.omitted_count += 1
            return ROOT
        self.spans.append(span)
        return len(self.spans) - 1
