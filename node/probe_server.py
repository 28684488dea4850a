"""The probes and metrics of a node over HTTP: /livez, /readyz and /metrics.

Metrics are those of all processes: each is asked, and the answer is given when all have answered
or after a second. Owned by the supervisor, in whose loop it runs; `http.listen` may change while
the node runs. Invariant: no process that does not answer keeps a probe waiting.
"""

import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from odradek.node.child import Child, ChildState
from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.http_server import HttpServer, Respond, Route
from odradek.node.observability import Metrics, Sample, exposition

_METRICS_S = 1.0


class ProbeServer:
    """See the module's docstring."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        config: NodeConfig,
        *,
        children: Callable[[], Iterable[Child]],
        is_stopping: Callable[[], bool],
        hindrances: Callable[[], str],
        problems: Callable[[], str],
    ) -> None:
        """Both have lines for /readyz: `hindrances` keep the node from being ready, `problems` are
        only told. Raises ConfigurationError if http.listen cannot be bound."""
        self._selector = selector
        self._children = children
        self._is_stopping = is_stopping
        self._hindrances = hindrances
        self._problems = problems
        self._began_at = time.monotonic()
        self._scrapes: list[_Scrape] = []
        self.metrics = Metrics()
        """Of the supervisor itself."""
        self._register_metrics()
        self._http = self._serve(config)

    @property
    def port(self) -> int | None:
        """Where it listens; None if it does not."""
        return None if self._http is None else self._http.port

    @property
    def next_deadline(self) -> float:
        """When `turn` has something to do, at the latest."""
        return min((scrape.deadline for scrape in self._scrapes), default=float("inf"))

    def turn(self, now: float) -> None:
        """Answer requests for metrics that are complete or due; close old connections."""
        for scrape in list(self._scrapes):
            if not scrape.missing or now >= scrape.deadline:
                self._scrapes.remove(scrape)
                scrape.respond(200, exposition(scrape.samples))
        if self._http is not None:
            self._http.sweep()

    def on_exit(self, name: str) -> None:
        """A process has ended: nobody waits for its metrics."""
        for scrape in self._scrapes:
            scrape.missing.discard(name)

    def follow(self, before: NodeConfig, config: NodeConfig) -> bool:
        """Listen at the http.listen of `config`; whether it is another one than `before`. Raises
        ConfigurationError if it cannot be bound; then nothing has changed."""
        if (config.http_host, config.http_port) == (before.http_host, before.http_port):
            return False
        http = self._http
        if http is not None and config.http_port == before.http_port:
            # Two addresses with one port may exclude each other.
            http.close()
            self._http = None
        try:
            new_http = self._serve(config)
        except ConfigurationError:
            self._http = self._http or self._serve(before)
            raise
        if self._http is not None:
            self._http.close()
        self._http = new_http
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._http is not None:
            self._http.close()

    def _serve(self, config: NodeConfig) -> HttpServer | None:
        if config.http_port is None:
            return None
        routes: dict[str, Route] = {
            "/livez": lambda respond: respond(200, "alive\n"),
            "/readyz": self._readyz,
            "/metrics": self._scrape,
        }
        return HttpServer(
            self._selector,
            host=config.http_host,
            port=config.http_port,
            routes=routes,
            clock=time.monotonic,
        )

    def _readyz(self, respond: Respond) -> None:
        children = list(self._children())
        text = "".join(f"{child.name} {child.state.name.lower()}\n" for child in children)
        is_ready = not self._is_stopping() and all(
            child.state is ChildState.READY for child in children
        )
        hindrances = self._hindrances()
        is_ready = is_ready and not hindrances
        text += hindrances
        for child in children:
            is_ready = is_ready and child.listeners.is_serving
            text += "".join(f"{each}\n" for each in child.listeners.problems)
        text += self._problems()
        respond(200 if is_ready else 503, text)

    def _scrape(self, respond: Respond) -> None:
        scrape = _Scrape(
            respond, time.monotonic() + _METRICS_S, {"supervisor": self.metrics.collect()}
        )
        for child in self._children():

            def on_samples(samples: list[Sample], name: str = child.name) -> None:
                scrape.samples[name] = samples
                scrape.missing.discard(name)

            if child.collect(on_samples):
                scrape.missing.add(child.name)
        self._scrapes.append(scrape)

    def _register_metrics(self) -> None:
        self.metrics.gauge(
            "odradek_uptime_seconds",
            "Time since the node was started",
            lambda: time.monotonic() - self._began_at,
        )
        self.metrics.counter(
            "odradek_child_restarts",
            "How often the supervisor restarted this process",
            lambda: {child.name: child.restart_count for child in self._children()},
            label="child",
        )
        self.metrics.gauge(
            "odradek_child_ready",
            "1 if this process is ready",
            lambda: {child.name: child.state is ChildState.READY for child in self._children()},
            label="child",
        )


@dataclass(slots=True)
class _Scrape:
    """A request for metrics: answered when no process is `missing`, or at the deadline."""

    respond: Respond
    deadline: float
    samples: dict[str, list[Sample]]
    missing: set[str] = field(default_factory=set)
