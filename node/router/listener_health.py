"""What keeps clients from connecting to a listener or from logging in, or soon will.

Looks every `LOOK_S` at certificates, at stores that were refused, and at the keys of access tokens,
which it has fetched before a client needs them. The supervisor gets each change, for readiness;
metrics, DescribeConfigSources and the log have the problems as well. One invariant: a problem is
logged once. Called by process.py.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS
from odradek.cluster.security.oauthbearer_server import OAUTHBEARER
from odradek.node.metrics.registry import Metrics
from odradek.node.observability import ListenerReport
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.router.token_verification import TokenVerifiers
from odradek.node.structured_log import get_logger
from odradek.node.wire.listeners import ClientListener

log = get_logger(__name__)

LOOK_S: Final = 5.0
WARNING_DAYS: Final = 30
"""A certificate that is valid for fewer days is a problem."""
_DAY_S: Final = 86_400


class ListenerProblem(NamedTuple):
    """A problem of one listener; with `is_blocking` no client can use it."""

    listener: str
    kind: str
    text: str
    is_blocking: bool = False


class ListenerHealth:
    """The problems of this router's listeners."""

    def __init__(
        self,
        metadata: MetadataCache,
        tls: TlsListeners,
        tokens: TokenVerifiers,
        report: Callable[[ListenerReport], None],
    ) -> None:
        self.problems: tuple[ListenerProblem, ...] = ()
        self._metadata = metadata
        self._tls = tls
        self._tokens = tokens
        self._report = report
        self._listeners: tuple[ClientListener, ...] = ()
        self._reported: ListenerReport | None = None
        self._timer: asyncio.TimerHandle | None = None
        tokens.on_changed = self.look

    @property
    def texts(self) -> list[str]:
        """A sentence for each problem."""
        return [f"listener {each.listener}: {each.text}" for each in self.problems]

    def start(self, listeners: Iterable[ClientListener], loop: asyncio.AbstractEventLoop) -> None:
        """Look now and from now on."""
        self._listeners = tuple(listeners)
        self._look(loop)

    def follow(self, listeners: Iterable[ClientListener]) -> None:
        """There are other listeners now."""
        self._listeners = tuple(listeners)
        self.look()

    def close(self) -> None:
        """Look no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Find the problems of this moment, have old keys fetched, and tell what has changed."""
        known = {(each.listener, each.kind) for each in self.problems}
        self.problems = tuple(self._found())
        for each in self.problems:
            # The others are logged where they are noticed.
            if each.kind.startswith("certificate") and (each.listener, each.kind) not in known:
                log.warning("a listener has a problem", listener=each.listener, reason=each.text)
        blocked = {each.listener for each in self.problems if each.is_blocking}
        is_serving = any(each.name not in blocked for each in self._listeners)
        report = ListenerReport(self.texts, is_serving)
        if report != self._reported:
            self._reported = report
            self._report(report)

    def register_metrics(self, metrics: Metrics) -> None:
        """The metrics of the listeners' problems."""
        metrics.read("odradek_listener_problems", self._counts)

    def _counts(self) -> dict[str, int]:
        return {
            listener.name: sum(each.listener == listener.name for each in self.problems)
            for listener in self._listeners
        }

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LOOK_S, self._look, loop)
        self.look()

    def _found(self) -> Iterator[ListenerProblem]:
        seconds_left = self._tls.seconds_left()
        for listener in self._listeners:
            name = listener.name
            left_s = seconds_left.get(name)
            if left_s is not None and left_s < 0:
                text = "its certificate has expired, and clients refuse it"
                yield ListenerProblem(name, "certificate expired", text, is_blocking=True)
            elif left_s is not None and left_s < WARNING_DAYS * _DAY_S:
                text = f"its certificate expires in {left_s // _DAY_S:.0f} days"
                yield ListenerProblem(name, "certificate expires", text)
            secured = self._tls.get(name)
            if secured is not None and secured.problem:
                is_blocking = secured.current is None
                what = "it has no usable key or trust store, and accepts nobody"
                if not is_blocking:
                    what = "its newest key or trust store is not in use"
                yield ListenerProblem(name, "store", f"{what}: {secured.problem}", is_blocking)
            if listener.is_sasl:
                yield from self._token_problems(name)

    def _token_problems(self, name: str) -> Iterator[ListenerProblem]:
        settings = self._metadata.sasl_settings(name, OAUTHBEARER)
        mechanisms = settings.sasl_enabled_mechanisms
        if OAUTHBEARER not in mechanisms:
            return
        if settings.sasl_server_callback_handler_class == UNSECURED_TOKENS:
            return
        self._tokens.refresh(settings)
        text, has_no_keys = self._tokens.problem(settings)
        if text:
            is_blocking = has_no_keys and set(mechanisms) == {OAUTHBEARER}
            yield ListenerProblem(name, "tokens", text, is_blocking)
