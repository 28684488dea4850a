"""A small HTTP server for probes and metrics, in the supervisor's loop.

One GET request for each connection, answered with a status and a text. Connections are bounded in
number, size and time. Invariant: no client of this port can disturb the supervisor.
"""

import errno
import selectors
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from odradek.node.config_sources import ConfigurationError

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 8 * 1024
CONNECTION_S_MAX = 10.0

Respond = Callable[[int, str], None]
Route = Callable[[Respond], None]
"""Gets `respond(status, text)`, which it calls once, now or later."""


class HttpServer:
    """Serves `routes` (path -> function) at `host:port`, driven by the owner's selector."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        clock: Callable[[], float],
    ) -> None:
        """Raises ConfigurationError if the address cannot be bound."""
        self._selector = selector
        self._routes = routes
        self._clock = clock
        self._connections: set[_HttpConnection] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind((host, port))
            self._listening.listen(CONNECTIONS_MAX)
        except OSError as error:
            self._listening.close()
            raise ConfigurationError(
                f"http.listen={host}:{port}: {error.strerror}; choose another address"
            ) from error
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def sweep(self) -> None:
        """Close the connections that took too long."""
        now = self._clock()
        for client in list(self._connections):
            if now > client.deadline:
                self._end(client)

    def close(self) -> None:
        """Stop listening and close every connection."""
        for client in list(self._connections):
            self._end(client)
        self._selector.unregister(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE):
                raise
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        client = _HttpConnection(connection, self._clock() + CONNECTION_S_MAX)
        self._connections.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: "_HttpConnection") -> None:
        try:
            received = client.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        client.request += received
        if not received or len(client.request) > REQUEST_BYTES_MAX:
            self._end(client)
        elif b"\r\n\r\n" in client.request and not client.is_asked:
            client.is_asked = True
            self._ask(client)

    def _ask(self, client: "_HttpConnection") -> None:
        def respond(status: int, text: str) -> None:
            if client in self._connections:
                body = text.encode()
                client.response = (
                    f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                ).encode() + body
                self._write(client)

        words = client.request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            respond(400, "Not an HTTP request.\n")
            return
        if words[0] != b"GET":
            respond(405, "Only GET is supported.\n")
            return
        route = self._routes.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        if route is None:
            respond(404, f"The paths are {' '.join(sorted(self._routes))}\n")
            return
        route(respond)

    def _write(self, client: "_HttpConnection") -> None:
        try:
            sent = client.connection.send(client.response)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(client)
            return
        client.response = client.response[sent:]
        if not client.response:
            self._end(client)
        else:
            self._selector.modify(
                client.connection, selectors.EVENT_WRITE, lambda: self._write(client)
            )

    def _end(self, client: "_HttpConnection") -> None:
        self._connections.discard(client)
        self._selector.unregister(client.connection)
        client.connection.close()


@dataclass(slots=True, eq=False)
class _HttpConnection:
    """A connection with its one request and response."""

    connection: socket.socket
    deadline: float
    request: bytes = b""
    response: bytes = b""
    is_asked: bool = False
