"""A small HTTP server for probes and metrics, in the supervisor's loop.

One GET or HEAD request for each connection, answered with a status and a text, compressed for
clients that take gzip. Connections are bounded in number, size and time. Invariant: no client of
this port can disturb the supervisor.
"""

import errno
import re
import selectors
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, Protocol

from odradek.node.config_sources import ConfigurationError

CONNECTIONS_MAX = 32
REQUEST_BYTES_MAX = 8 * 1024
CONNECTION_S_MAX = 10.0
COMPRESSED_BYTES = range(1024, 2 << 20)
"""The sizes of texts that are compressed: it takes 5 ms for each MiB."""
_GZIP_WINDOW_BITS = 31
_FASTEST = 1

TEXT_TYPE = "text/plain; charset=utf-8"


class HttpRequest(NamedTuple):
    """What a route may look at. `accept` is the Accept header, empty without one."""

    path: str
    query: str
    accept: str


class Respond(Protocol):
    """Answers a request, once."""

    def __call__(self, status: int, text: str, content_type: str = TEXT_TYPE) -> None:
        """Send the response."""


Route = Callable[[HttpRequest, Respond], None]
"""Gets a request, and `respond`, which it calls once, now or later."""


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
        def respond(status: int, text: str, content_type: str = TEXT_TYPE) -> None:
            if client in self._connections:
                client.response = _response(client.request, status, text, content_type)
                self._write(client)

        words = client.request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            respond(400, "Not an HTTP request.\n")
            return
        if words[0] not in (b"GET", b"HEAD"):
            respond(405, "Only GET and HEAD are supported.\n")
            return
        path, _, query = words[1].decode("latin-1").partition("?")
        route = self._routes.get(path)
        if route is None:
            respond(404, f"The paths are {' '.join(sorted(self._routes))}\n")
            return
        route(HttpRequest(path, query, _header(client.request, b"accept")), respond)

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


def _response(request: bytes, status: int, text: str, content_type: str) -> bytes:
    body = text.encode()
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        "Vary: Accept, Accept-Encoding",
        "Connection: close",
    ]
    if len(body) in COMPRESSED_BYTES and _takes_gzip(_header(request, b"accept-encoding")):
        body = zlib.compress(body, _FASTEST, _GZIP_WINDOW_BITS)
        lines.append("Content-Encoding: gzip")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    lines.append(f"Content-Length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
    return head if request.startswith(b"HEAD ") else head + body


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is among the encodings, and not with the weight 0."""
    for each in accept_encoding.lower().split(","):
        name, _, weight = each.replace(" ", "").partition(";")
        if name == "gzip":
            return not re.fullmatch(r"q=0(\.0*)?", weight)
    return False


def _header(request: bytes, name: bytes) -> str:
    """The value of a header; those of several with this name, in one."""
    found = []
    for line in request.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        title, _, value = line.partition(b":")
        if title.strip().lower() == name:
            found.append(value.strip().decode("latin-1"))
    return ", ".join(found)


@dataclass(slots=True, eq=False)
class _HttpConnection:
    """A connection with its one request and response."""

    connection: socket.socket
    deadline: float
    request: bytes = b""
    response: bytes = b""
    is_asked: bool = False
