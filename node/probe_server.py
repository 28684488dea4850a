"""The probes and metrics of a node over HTTP: /livez, /readyz and /metrics.

Metrics are those of all processes (metrics/endpoint.py). Owned by the supervisor, in whose loop it
runs; `http.listen` may change while the node runs. Invariant: no process that does not answer keeps
a probe waiting.
"""

import platform
import selectors
import time
from collections.abc import Callable, Iterable

from odradek import __version__
from odradek.node.child import Child, ChildState
from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.http_server import HttpRequest, HttpServer, Respond, Route
from odradek.node.metrics.endpoint import MetricsEndpoint
from odradek.node.metrics.process_metrics import register_process_metrics
from odradek.node.metrics.registry import Metrics


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
        self.metrics = Metrics("supervisor")
        """Of the supervisor itself."""
        self._register_metrics()
        self._endpoint = MetricsEndpoint(self.metrics, children, time.monotonic)
        self._http = self._serve(config)

    @property
    def port(self) -> int | None:
        """Where it listens; None if it does not."""
        return None if self._http is None else self._http.port

    @property
    def next_deadline(self) -> float:
        """When `turn` has something to do, at the latest."""
        return self._endpoint.deadline

    def turn(self, now: float) -> None:
        """Answer requests for metrics that are complete or due; close old connections."""
        self._endpoint.tick(now)
        if self._http is not None:
            self._http.sweep()

    def on_exit(self, name: str) -> None:
        """A process has ended: nobody waits for its metrics."""
        self._endpoint.on_exit(name)

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
            "/livez": lambda _request, respond: respond(200, "alive\n"),
            "/readyz": self._readyz,
            "/metrics": self._endpoint.serve,
        }
        return HttpServer(
            self._selector,
            host=config.http_host,
            port=config.http_port,
            routes=routes,
            clock=time.monotonic,
        )

    def _readyz(self, _request: HttpRequest, respond: Respond) -> None:
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
            if child.catching_up:
                is_ready = False
                text += f"{child.catching_up}\n"
        text += self._problems()
        respond(200 if is_ready else 503, text)

    def _register_metrics(self) -> None:
        metrics = self.metrics
        register_process_metrics(metrics)
        build = __version__, platform.python_version()
        metrics.read("odradek_build_info", lambda: {build: 1})
        metrics.read("odradek_uptime_seconds", lambda: time.monotonic() - self._began_at)
        metrics.read("odradek_processes_not_scraped", lambda: self._endpoint.missing_count)
        metrics.read(
            "odradek_process_restarts_total",
            lambda: {child.name: child.restart_count for child in self._children()},
        )
        metrics.read(
            "odradek_process_ready",
            lambda: {child.name: child.state is ChildState.READY for child in self._children()},
        )
