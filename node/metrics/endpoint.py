"""/metrics of a node: asks all processes for their metrics and answers with one text.

Requests that come while the processes are being asked get the same answer. A process that is not
ready, or does not answer in COLLECT_S, is left out, and the answer has the number of those. Part of
the supervisor's loop.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from odradek.node.http_server import HttpRequest, Respond
from odradek.node.metrics.exposition import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    exposition,
    prefers_openmetrics,
)
from odradek.node.metrics.registry import FamilyLines, Metrics

COLLECT_S: Final = 1.0


class MeasuredProcess(Protocol):
    """A process that can be asked for its metrics."""

    name: str

    def collect(self, on_metrics: Callable[[list[FamilyLines]], None]) -> bool:
        """Request the metrics; False if it is not ready."""


class MetricsEndpoint:
    """See the module's docstring. `own` are the supervisor's metrics."""

    def __init__(
        self,
        own: Metrics,
        processes: Callable[[], Iterable[MeasuredProcess]],
        clock: Callable[[], float],
    ) -> None:
        self._own = own
        self._processes = processes
        self._clock = clock
        self._waiting: list[tuple[bool, Respond]] = []
        """Who waits, and whether for OpenMetrics."""
        self._missing: set[str] = set()
        self._parts: list[FamilyLines] = []
        self._began_count = 0
        self._absent_count = 0
        """Processes that were not ready, or have ended since."""
        self.deadline = float("inf")
        """When those that wait are answered with what is there."""

    def serve(self, request: HttpRequest, respond: Respond) -> None:
        """A request for /metrics: answered by a later `tick`."""
        is_first = not self._waiting
        self._waiting.append((prefers_openmetrics(request.accept), respond))
        if is_first:
            self._begin()

    @property
    def missing_count(self) -> int:
        """Processes whose metrics are not in the answer that is being made."""
        return self._absent_count + len(self._missing)

    def on_exit(self, name: str) -> None:
        """A process has ended: its metrics will not come."""
        if name in self._missing:
            self._missing.discard(name)
            self._absent_count += 1

    def tick(self, now: float) -> None:
        """Answer if all metrics are there, or at the deadline."""
        if not self._waiting or (self._missing and now < self.deadline):
            return
        waiting, self._waiting = self._waiting, []
        parts, self._parts = [*self._own.collect(), *self._parts], []
        self.deadline = float("inf")
        for is_openmetrics in {each for each, _ in waiting}:
            text = exposition(parts, is_openmetrics=is_openmetrics)
            kind = OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE
            for wanted, respond in waiting:
                if wanted == is_openmetrics:
                    respond(200, text, kind)

    def _begin(self) -> None:
        self._began_count = number = self._began_count + 1
        self.deadline = self._clock() + COLLECT_S
        self._missing.clear()
        self._absent_count = 0
        self._parts = []
        for process in self._processes():

            def on_metrics(parts: list[FamilyLines], name: str = process.name) -> None:
                if number == self._began_count:
                    self._parts += parts
                    self._missing.discard(name)

            if process.collect(on_metrics):
                self._missing.add(process.name)
            else:
                self._absent_count += 1
