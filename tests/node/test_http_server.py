"""A port for probes that a bad client cannot disturb."""

import gzip
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from odradek.node.config_sources import ConfigurationError
from odradek.node.http_server import (
    CONNECTION_S_MAX,
    CONNECTIONS_MAX,
    HttpRequest,
    HttpServer,
    Respond,
)

TEXT = "odradek_connections 1\n" * 100


class Site:
    """A server on a selector that the test polls, with a manual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.selector = selectors.DefaultSelector()
        self.waiting: list[Respond] = []
        self.server = HttpServer(
            self.selector,
            host="127.0.0.1",
            port=0,
            routes={
                "/livez": lambda _request, respond: respond(200, "alive\n"),
                "/slow": lambda _request, respond: self.waiting.append(respond),
                "/shown": self.show,
                "/text": lambda _request, respond: respond(200, TEXT),
                "/big": lambda _request, respond: respond(200, "x" * (32 << 20)),
            },
            clock=lambda: self.now,
        )
        self.clients: list[socket.socket] = []

    def show(self, request: HttpRequest, respond: Respond) -> None:
        respond(200, f"{request.path}?{request.query} {request.accept}\n", "text/shown")

    def connect(self, request: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
        client.setblocking(False)
        client.sendall(request)
        self.clients.append(client)
        return client

    def turn(self) -> None:
        for key, _ in self.selector.select(0.005):
            key.data()
        self.server.sweep()

    def answer(self, client: socket.socket) -> bytes:
        """Turn until the server has closed the connection; what it said."""
        received = b""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self.turn()
            try:
                more = client.recv(1 << 20)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return received
            if not more:
                return received
            received += more
        raise AssertionError("the server did not close the connection")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    for client in site.clients:
        client.close()
    site.server.close()
    site.selector.close()


def test_a_probe_is_answered(site: Site) -> None:
    answer = site.answer(site.connect(b"GET /livez?verbose HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nalive\n")


def test_a_response_may_be_sent_after_the_client_has_closed(site: Site) -> None:
    client = site.connect(b"GET /slow HTTP/1.0\r\n\r\n")
    gone = site.connect(b"GET /slow HTTP/1.0\r\n\r\n")
    while len(site.waiting) < 2:
        site.turn()
    gone.close()
    site.turn()
    for respond in site.waiting:
        respond(503, "not yet\n")
    assert b"503 Service Unavailable" in site.answer(client)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"hello\r\n\r\n", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
    ],
)
def test_other_requests_get_an_error_status(site: Site, request_: bytes, status: bytes) -> None:
    assert site.answer(site.connect(request_)).startswith(b"HTTP/1.1 " + status)


def test_a_wrong_method_is_told_the_right_ones(site: Site) -> None:
    answer = site.answer(site.connect(b"POST /livez HTTP/1.1\r\n\r\n"))
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


def test_head_is_answered_as_get_without_the_text(site: Site) -> None:
    whole = site.answer(site.connect(b"GET /text HTTP/1.1\r\n\r\n"))
    head, _, text = whole.partition(b"\r\n\r\n")
    assert text.decode() == TEXT
    answer = site.answer(site.connect(b"HEAD /text HTTP/1.1\r\n\r\n"))
    assert answer == head + b"\r\n\r\n"
    assert b"Content-Length: %d" % len(TEXT) in answer


@pytest.mark.parametrize(
    ("path", "encodings", "is_compressed"),
    [
        (b"/text", b"gzip", True),
        (b"/text", b"deflate, GZIP;q=0.5", True),
        (b"/text", b"deflate, gzip;q=0.0", False),
        (b"/text", b"identity", False),
        (b"/livez", b"gzip", False),
    ],
)
def test_texts_are_compressed_for_those_who_take_it(
    site: Site, path: bytes, encodings: bytes, is_compressed: bool
) -> None:
    request = b"GET %s HTTP/1.1\r\nAccept-Encoding: %s\r\n\r\n" % (path, encodings)
    head, _, body = site.answer(site.connect(request)).partition(b"\r\n\r\n")
    assert (b"Content-Encoding: gzip" in head) == is_compressed
    assert b"Content-Length: %d" % len(body) in head
    if path == b"/text":
        assert (gzip.decompress(body) if is_compressed else body).decode() == TEXT


def test_a_request_without_an_end_is_cut_off(site: Site) -> None:
    assert site.answer(site.connect(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 9_000)) == b""


def test_an_idle_client_is_disconnected(site: Site) -> None:
    client = site.connect()
    site.turn()
    site.now += CONNECTION_S_MAX + 1
    assert site.answer(client) == b""


def test_a_client_that_does_not_read_is_disconnected(site: Site) -> None:
    client = site.connect(b"GET /big HTTP/1.1\r\n\r\n")
    for _ in range(20):
        site.turn()
    site.now += CONNECTION_S_MAX + 1
    site.turn()
    assert len(site.answer(client)) < 32 << 20


def test_a_large_answer_arrives_whole(site: Site) -> None:
    answer = site.answer(site.connect(b"GET /big HTTP/1.1\r\n\r\n"))
    assert len(answer.partition(b"\r\n\r\n")[2]) == 32 << 20


def test_more_connections_than_allowed_are_closed_at_once(site: Site) -> None:
    for _ in range(CONNECTIONS_MAX):
        site.connect()
        site.turn()
    assert site.answer(site.connect(b"GET /livez HTTP/1.1\r\n\r\n")) == b""


def test_a_taken_address_is_named(site: Site) -> None:
    with pytest.raises(ConfigurationError, match=rf"http\.listen=127\.0\.0\.1:{site.server.port}"):
        HttpServer(
            site.selector,
            host="127.0.0.1",
            port=site.server.port,
            routes={},
            clock=time.monotonic,
        )


def test_a_route_sees_query_and_accept_header_and_chooses_the_type(site: Site) -> None:
    request = (
        b"GET /shown?a=1 HTTP/1.1\r\nACCEPT: a/b\r\nX: y\r\naccept:c/d;q=0.5\r\n\r\naccept: no"
    )
    answer = site.answer(site.connect(request))
    assert b"Content-Type: text/shown\r\n" in answer
    assert answer.endswith(b"/shown?a=1 a/b, c/d;q=0.5\n")
