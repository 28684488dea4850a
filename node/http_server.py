"""A very small HTTP server for probes and metrics, inside the supervisor's own loop.

One request per connection, GET only, nothing but a status and a text. Connections are few, short
and bounded in number, size and time, so that a bad client of this port cannot disturb the
supervisor: that is its one invariant. Not for anything else.
"""

import errno
import selectors
import socket
from collections.abc import Callable, Mapping

from odradek.node.config_sources import ConfigurationError

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 8 * 1024
EXCHANGE_S_MAX = 10.0

_REASONS: Mapping[int, str] = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

Respond = Callable[[int, str], None]
Route = Callable[[Respond], None]
"""Called with what takes the answer: `respond(status, text)`, once, now or later."""


class HttpServer:
    """Serves `routes` (path -> function) at `host:port`, driven by a selector of the owner."""

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
        self._exchanges: set[_Exchange] = set()
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
        """End the exchanges that took too long."""
        now = self._clock()
        for exchange in list(self._exchanges):
            if now > exchange.deadline:
                self._end(exchange)

    def close(self) -> None:
        """Stop listening and end every exchange."""
        for exchange in list(self._exchanges):
            self._end(exchange)
        self._selector.unregister(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE):
                raise
            return
        if len(self._exchanges) >= CONNECTIONS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        exchange = _Exchange(connection, self._clock() + EXCHANGE_S_MAX)
        self._exchanges.add(exchange)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(exchange))

    def _read(self, exchange: "_Exchange") -> None:
        try:
            received = exchange.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        exchange.request += received
        if not received or len(exchange.request) > REQUEST_BYTES_MAX:
            self._end(exchange)
        elif b"\r\n\r\n" in exchange.request and not exchange.is_asked:
            exchange.is_asked = True
            self._ask(exchange)

    def _ask(self, exchange: "_Exchange") -> None:
        def respond(status: int, text: str) -> None:
            if exchange in self._exchanges:
                body = text.encode()
                exchange.response = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
                    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                ).encode() + body
                self._write(exchange)

        words = exchange.request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            respond(400, "not an HTTP request\n")
            return
        if words[0] != b"GET":
            respond(405, "only GET is served here\n")
            return
        route = self._routes.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        if route is None:
            respond(404, f"try {' '.join(sorted(self._routes))}\n")
            return
        route(respond)

    def _write(self, exchange: "_Exchange") -> None:
        try:
            sent = exchange.connection.send(exchange.response)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(exchange)
            return
        exchange.response = exchange.response[sent:]
        if not exchange.response:
            self._end(exchange)
        else:
            self._selector.modify(
                exchange.connection, selectors.EVENT_WRITE, lambda: self._write(exchange)
            )

    def _end(self, exchange: "_Exchange") -> None:
        self._exchanges.discard(exchange)
        self._selector.unregister(exchange.connection)
        exchange.connection.close()


class _Exchange:
    """A connection with its one request and response."""

    __slots__ = ("connection", "deadline", "is_asked", "request", "response")

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.request = b""
        self.response = b""
        self.is_asked = False
