"""The listening sockets of a router, and the reaper of overdue connections.

A router has one `SocketServer` and one `Acceptor` per listener (router/client_listeners.py), which
it starts when it can answer requests; at the end it stops accepting and drains. A listener at its
limit accepts one connection more and lets it wait; the kernel queues `BACKLOG` behind it. One
invariant: after `drain` there is no connection.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from odradek.node.bus.reply import drive
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection import Connection, ConnectionServer
from odradek.node.wire.framing import host_and_port
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.proxy_protocol import Network, ProxyHeaderReader, is_trusted
from odradek.node.wire.tls_context import TlsListener
from odradek.node.wire.tls_transport import TlsTransport

log = get_logger(__name__)

BACKLOG = 1024
"""Connections that the kernel queues, so that many clients can reconnect at once."""
ACCEPTED_PER_TURN_MAX = 64
"""Connections accepted in one iteration of the loop."""
NO_DESCRIPTORS_S = 1.0
"""Until the next attempt when the process may open no more files."""


class Acceptor:
    """One named listener: accepts clients at `host:port`.

    With `proxies`, which gives networks, each connection begins with a header of the PROXY
    protocol; None is returned while it does not.
    """

    __slots__ = (
        "_is_accepting",
        "_listening",
        "_proxies",
        "_tls",
        "_waiting",
        "host",
        "listener",
        "port",
        "wire",
    )

    def __init__(
        self,
        wire: ConnectionServer,
        listener: ClientListener,
        *,
        host: str,
        port: int,
        tls: TlsListener | None = None,
        proxies: Callable[[], tuple[Network, ...] | None] = lambda: None,
    ) -> None:
        assert listener.is_tls == (tls is not None)
        self.wire = wire
        self.listener = listener
        self.host = host
        self.port = port
        """The configured port. After `start` the bound port (they differ for port 0)."""
        self._tls = tls
        self._proxies = proxies
        self._listening: socket.socket | None = None
        self._is_accepting = False
        self._waiting: tuple[socket.socket, float] | None = None
        """A connection that may not begin yet, and the loop's time before which it may not."""

    async def start(self, *, reuse_port: bool = False) -> None:
        """Bind and accept. With `reuse_port` several routers share the port.

        Raises OSError with a message that names the listener and what to change.
        """
        loop, name = self.wire.loop, self.listener.name
        self.accept_from(await bind(loop, name, self.host, self.port, reuse_port=reuse_port))

    def accept_from(self, listening: socket.socket) -> None:
        """Accept the connections of this socket, which `bind` made."""
        self.port = listening.getsockname()[1]
        self._listening = listening
        self._resume()

    def stop(self) -> None:
        """Accept no more clients. Existing connections stay."""
        listening = self.release()
        if listening is not None:
            listening.close()

    def release(self) -> socket.socket | None:
        """Accept no more clients; returns the socket, at which the kernel goes on queueing them."""
        self._pause()
        listening, self._listening = self._listening, None
        if self._waiting is not None:
            self._waiting[0].close()
            self._waiting = None
        return listening

    # -- accepting ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self._listening is not None and not self._is_accepting:
            self._is_accepting = True
            self.wire.loop.add_reader(self._listening.fileno(), self._accept)

    def _pause(self) -> None:
        if self._listening is not None and self._is_accepting:
            self._is_accepting = False
            self.wire.loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        """The kernel has connections for this listener."""
        quotas, name, loop = self.wire.connection_quotas, self.listener.name, self.wire.loop
        for _ in range(ACCEPTED_PER_TURN_MAX):
            if self._listening is None:
                return
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error(
                    "a listener cannot accept connections", listener=name, reason=error.strerror
                )
                self._pause()
                loop.call_later(NO_DESCRIPTORS_S, self._resume)
                return
            now_s = loop.time()
            delay_ms = quotas.delay_ms(name, int(now_s * 1000))
            if delay_ms or not quotas.has_slot(name):
                self.wire.counters.connections_delayed += 1
                self._waiting = (accepted, now_s + delay_ms / 1000)
                self._pause()
                self._begin_waiting()
                return
            self._begin(accepted)

    def _begin_waiting(self) -> None:
        """Begin the connection that waits, or wait for what it lacks: time or room."""
        if self._waiting is None:
            return
        loop, quotas = self.wire.loop, self.wire.connection_quotas
        accepted, not_before_s = self._waiting
        if loop.time() < not_before_s:
            loop.call_at(not_before_s, self._begin_waiting)
        elif quotas.has_slot(self.listener.name):
            self._waiting = None
            self._begin(accepted)
            self._resume()
        else:
            quotas.waiting.append(partial(loop.call_soon, self._begin_waiting))

    def _begin(self, accepted: socket.socket) -> None:
        wire, name = self.wire, self.listener.name
        connection = Connection(wire, self.listener)
        protocol: asyncio.BufferedProtocol = connection
        if self._tls is not None:
            if self._tls.current is None:
                wire.counters.connections_refused += 1
                accepted.close()
                return
            protocol = TlsTransport(connection, self._tls.current)
        networks = self._proxies()
        if networks is not None:
            host, _ = host_and_port(_peer(accepted))
            if not is_trusted(host, networks):
                connection.client_host = host
                connection.log_refusal("it is not in proxy.protocol.trusted.addresses")
                wire.counters.connections_refused += 1
                accepted.close()
                return
            protocol = ProxyHeaderReader(connection, protocol)
        wire.connection_quotas.accept(name)
        accepted.setblocking(False)

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                log.warning(
                    "a connection was lost before it was open", listener=name, reason=str(error)
                )
                wire.connection_quotas.release(name)
                accepted.close()

        drive(wire.loop.connect_accepted_socket(lambda: protocol, accepted), done)


async def bind(
    loop: asyncio.AbstractEventLoop, name: str, host: str, port: int, *, reuse_port: bool = False
) -> socket.socket:
    """A socket that listens at this address, for the listener of that name. It does not wait if the
    host is the number of an address.

    Raises OSError with a message that names the listener and what to change.
    """
    try:
        return _listen(await _addresses(loop, host, port), host, reuse_port=reuse_port)
    except OSError as error:
        raise OSError(
            error.errno,
            f"listener {name} cannot bind {host}:{port}: {error.strerror}. Choose another port, or"
            " stop the process that uses it.",
        ) from error


_Address = tuple[Any, ...]
"""What getaddrinfo returns for each."""


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[_Address]:
    passive = socket.AI_PASSIVE
    try:
        return list(
            socket.getaddrinfo(
                host or None,
                port,
                type=socket.SOCK_STREAM,
                flags=passive | socket.AI_NUMERICHOST,
            )
        )
    except socket.gaierror:
        return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive))


def _listen(found: list[_Address], host: str, *, reuse_port: bool) -> socket.socket:
    # "All addresses" means IPv6 with IPv4 mapped in, where there is IPv6.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET6 if not host else 0)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit both.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _peer(accepted: socket.socket) -> object:
    try:
        return accepted.getpeername()
    except OSError:
        return None  # it is gone already


class ConnectionReaper:
    """One timer for all connections: closes idle, half-open and stalled ones, trims the arena."""

    __slots__ = ("_period_s", "_timer", "_wire")

    def __init__(self, wire: ConnectionServer, *, period_s: float = 5.0) -> None:
        self._wire = wire
        self._period_s = period_s
        self._timer = wire.loop.call_later(period_s, self._reap)

    def stop(self) -> None:
        self._timer.cancel()

    def _reap(self) -> None:
        wire = self._wire
        # Events since the last check have its time. Compare with it, so that a connection that was
        # active since then does not count as idle.
        last_ms = wire.now_ms
        for connection in list(wire.connections.values()):
            reason = connection.overdue(last_ms)
            if reason is not None:
                self._close_overdue(connection, reason)
        self._close_excess()
        wire.now_ms = int(wire.loop.time() * 1000)
        wire.arena.trim()
        self._timer = wire.loop.call_later(self._period_s, self._reap)

    def _close_excess(self) -> None:
        """As in Kafka, the connections that have been idle longest go when max.connections was
        lowered below what there is."""
        wire = self._wire
        excess = wire.connection_quotas.count - wire.settings.connections_max
        if excess <= 0:
            return
        by_idleness = sorted(wire.connections.values(), key=Connection.idle_ms, reverse=True)
        for connection in by_idleness[:excess]:
            connection.log_refusal(f"max.connections is {wire.settings.connections_max}")
            connection.close()

    def _close_overdue(self, connection: Connection, reason: str) -> None:
        counters = self._wire.counters
        if reason == "idle":
            counters.connections_idle_closed += 1
            connection.close()
            return
        log.warning("closing the connection", **connection.log_fields(), reason=f"it is {reason}")
        if reason == "stalled":
            counters.connections_stalled_closed += 1
        else:
            counters.connections_half_open_closed += 1
        connection.abort()


async def finish_requests(wire: ConnectionServer, *, timeout_s: float) -> bool:
    """Read no more requests, and close each connection when its responses are sent. Returns whether
    all are closed within `timeout_s`."""
    for connection in list(wire.connections.values()):
        connection.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wire.wait_until_empty(), timeout_s)
    return not wire.connections


async def drain(wire: ConnectionServer, *, timeout_s: float) -> int:
    """Complete the requests in flight, then close all connections. Returns how many had to be
    aborted after `timeout_s`."""
    await finish_requests(wire, timeout_s=timeout_s)
    left = list(wire.connections.values())
    for connection in left:
        connection.abort()
    await wire.wait_until_empty()
    return len(left)
