"""The listening sockets of a router, and the reaper of overdue connections.

A router has one `SocketServer` and one `Acceptor` per configured listener. The router's process
starts them when it can answer requests; at the end it stops accepting and drains. One invariant:
after `drain` there is no connection.
"""

import asyncio
import contextlib
import logging
import socket

from odradek.node.wire.connection import Connection, SocketServer
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.tls_context import TlsListener
from odradek.node.wire.tls_transport import TlsTransport

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel queues, so that many clients can reconnect at once."""


class Acceptor:
    """One named listener: accepts clients at `host:port`."""

    __slots__ = ("_server", "_tls", "host", "listener", "port", "wire")

    def __init__(
        self,
        wire: SocketServer,
        listener: ClientListener,
        *,
        host: str,
        port: int,
        tls: TlsListener | None = None,
    ) -> None:
        assert listener.is_tls == (tls is not None)
        self.wire = wire
        self.listener = listener
        self.host = host
        self.port = port
        """The configured port. After `start` the bound port (they differ for port 0)."""
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, *, reuse_port: bool = False) -> None:
        """Bind and accept. With `reuse_port` several routers share the port.

        Raises OSError with a message that names the listener and what to change.
        """
        try:
            listening = await self._bind(reuse_port=reuse_port)
        except OSError as error:
            raise OSError(
                error.errno,
                f"listener {self.listener.name} cannot bind {self.host}:{self.port}:"
                f" {error.strerror}. Choose another port, or stop the process that uses it.",
            ) from error
        self.port = listening.getsockname()[1]
        self._server = await self.wire.loop.create_server(
            self._new_connection, sock=listening, backlog=BACKLOG
        )

    def stop(self) -> None:
        """Accept no more clients. Existing connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _new_connection(self) -> asyncio.BufferedProtocol:
        connection = Connection(self.wire, self.listener)
        if self._tls is None:
            return connection
        return TlsTransport(connection, self._tls.current)

    async def _bind(self, *, reuse_port: bool) -> socket.socket:
        found = await self.wire.loop.getaddrinfo(
            self.host or None,
            self.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        # "All addresses" means IPv6 with IPv4 mapped in, where there is IPv6.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET6 if not self.host else 0)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            if family == socket.AF_INET6:
                listening.setsockopt(
                    socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not self.host else 1
                )
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Accepted sockets inherit both.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.setblocking(False)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
        return listening


class ConnectionReaper:
    """One timer for all connections: closes idle, half-open and stalled ones, trims the arena."""

    __slots__ = ("_period_s", "_timer", "_wire")

    def __init__(self, wire: SocketServer, *, period_s: float = 5.0) -> None:
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
        wire.now_ms = int(wire.loop.time() * 1000)
        wire.arena.trim()
        self._timer = wire.loop.call_later(self._period_s, self._reap)

    def _close_overdue(self, connection: Connection, reason: str) -> None:
        counters = self._wire.counters
        if reason == "idle":
            counters.connections_idle_closed += 1
            connection.close()
            return
        log.warning("closing the connection of %s: it is %s", connection, reason)
        if reason == "stalled":
            counters.connections_stalled_closed += 1
        else:
            counters.connections_half_open_closed += 1
        connection.abort()


async def finish_requests(wire: SocketServer, *, timeout_s: float) -> bool:
    """Read no more requests, and close each connection when its responses are sent. Returns whether
    all are closed within `timeout_s`."""
    for connection in list(wire.connections.values()):
        connection.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wire.wait_until_empty(), timeout_s)
    return not wire.connections


async def drain(wire: SocketServer, *, timeout_s: float) -> int:
    """Complete the requests in flight, then close all connections. Returns how many had to be
    aborted after `timeout_s`."""
    await finish_requests(wire, timeout_s=timeout_s)
    left = list(wire.connections.values())
    for connection in left:
        connection.abort()
    await wire.wait_until_empty()
    return len(left)
