"""A minimal Kafka client: it sends exactly the given request, in the given version.

Conformance tests use it, because a real client library would correct their requests and hide
responses. One connection, blocking, with a deadline on everything: a broker that hangs is a failed
test and never a hung one.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from socket import socket as Socket
from struct import Struct
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from odradek.protocol.apis import APIS, Api, ApiKey
from odradek.protocol.codec import (
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse

R = TypeVar("R")

TIMEOUT_S: Final = 30.0
CLIENT_ID: Final = "conformance"
_LENGTH: Final = Struct(">i")


class ClosedByPeer(Exception):
    """The broker has closed the connection."""


_BY_REQUEST: Final = {api.request: api for api in APIS.values()}


def api_of(request: object) -> Api:
    """The API of a request."""
    return _BY_REQUEST[type(request)]


def frame_of(
    request: object, version: int, correlation_id: int, client_id: str | None = CLIENT_ID
) -> bytes:
    """A whole request frame, with its length prefix."""
    key = api_of(request).key
    header = encode_request_header(key, version, correlation_id, client_id)
    body = b"".join((header, *encode_request(key, version, request)))
    return _LENGTH.pack(len(body)) + body


class NodeConnection:
    """One connection to one node: bytes and frames, each read and write with a time limit."""

    def __init__(self, address: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        self.address: Final = address
        self.socket: Final = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        self.socket.close()

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes as they are."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedByPeer from error

    def receive_frame(self) -> memoryview:
        """The next response without its length; ClosedByPeer if the connection is closed."""
        (size,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        assert size >= 0
        return memoryview(self._receive_exactly(size))

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self.socket.recv_into(view)
            except ConnectionResetError as error:
                raise ClosedByPeer from error
            if count == 0:
                raise ClosedByPeer
            view = view[count:]
        return data


class Router(Protocol):
    """Knows the cluster: which node a request belongs to, as a client library does."""

    def address_of(self, request: object, attempt: int) -> str | None:
        """The node that must be asked, as HOST:PORT; None if any node will do. After an attempt
        that failed, any node is another one."""

    def parts_of(self, request: object) -> Sequence[tuple[object, str | None]]:
        """The requests that a client sends instead of this one, each to one node: to that address,
        or to where `address_of` says."""

    def merged(self, request: object, answers: Sequence[R]) -> R:
        """One answer to the request from those to its parts."""

    def is_repeated(self, request: object, answer: object, attempt: int) -> bool:
        """Whether a client would send this again after that answer (or ClosedByPeer or OSError);
        waits before it says so."""


@dataclass(frozen=True, slots=True)
class _Pending:
    request: object
    version: int
    correlation_id: int
    connection: NodeConnection
    address: str | None


class WireClient:
    """One connection to a broker. Requests may be pipelined with `post` and `receive`.

    With a router, each request goes over a connection to the node that it belongs to; a request
    for any node, and raw bytes, over the one that was used last.
    """

    def __init__(
        self, bootstrap: str, *, timeout_s: float = TIMEOUT_S, router: Router | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._router = router
        self._current = NodeConnection(bootstrap.split(",")[0], timeout_s)
        self._connections = {self._current.address: self._current}
        self._correlation_id = 0
        self._pending: list[_Pending] = []

    @property
    def socket(self) -> Socket:
        """The socket of the connection that was used last."""
        return self._current.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a second call has no effect."""
        for connection in self._connections.values():
            connection.close()

    def ask(self, request: object, version: int, response: type[R]) -> R:
        """The response to one request in that version."""
        if self._router is None:
            self.post(request, version)
            return self.receive(response)
        answers = []
        for part, address in self._router.parts_of(request):
            self.post(part, version, address=address)
            answers.append(self.receive(response))
        return answers[0] if len(answers) == 1 else self._router.merged(request, answers)

    def post(
        self,
        request: object,
        version: int,
        *,
        is_answered: bool = True,
        address: str | None = None,
    ) -> int:
        """Send a request without waiting, if told so to the node at `address`; returns its
        correlation id."""
        self._correlation_id += 1
        attempt = 0
        while True:
            try:
                self._turn_to(address or self._address_of(request, attempt))
                self._send(frame_of(request, version, self._correlation_id))
            except (OSError, ClosedByPeer) as error:
                if not self._is_repeated(request, error, attempt):
                    raise
                attempt += 1
            else:
                break
        if is_answered:
            self._pending.append(
                _Pending(request, version, self._correlation_id, self._current, address)
            )
        return self._correlation_id

    def receive(self, response: type[R]) -> R:
        """The response to the oldest pending request; responses must come in order."""
        pending = self._pending.pop(0)
        attempt = 0
        while True:
            outcome: object
            try:
                outcome = self._receive(pending)
            except (OSError, ClosedByPeer) as error:
                outcome = error
                self._drop(pending.connection)
            if not self._is_repeated(pending.request, outcome, attempt):
                break
            attempt += 1
            self.post(pending.request, pending.version, address=pending.address)
            pending = self._pending.pop()
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, response)
        return outcome

    def _is_repeated(self, request: object, outcome: object, attempt: int) -> bool:
        if self._router is None or isinstance(outcome, TimeoutError):
            return False
        return self._router.is_repeated(request, outcome, attempt)

    def _receive(self, pending: _Pending) -> object:
        api = api_of(pending.request)
        frame = pending.connection.receive_frame()
        correlation_id, at = decode_response_header(api.key, pending.version, frame)
        assert correlation_id == pending.correlation_id, (
            "responses must be in the order of the requests"
        )
        return decode_response(api.key, pending.version, frame, at)

    def _address_of(self, request: object, attempt: int) -> str:
        address = self._router.address_of(request, attempt) if self._router else None
        return address or self._current.address

    def _turn_to(self, address: str) -> None:
        """Use the connection to that node from now on."""
        if address not in self._connections:
            time_limit = self._current.socket.gettimeout()
            self._connections[address] = NodeConnection(address, self._timeout_s)
            self._connections[address].socket.settimeout(time_limit)
        self._current = self._connections[address]

    def _send(self, frame: bytes) -> None:
        try:
            self._current.send(frame)
        except (OSError, ClosedByPeer):
            self._drop(self._current)
            raise

    def _drop(self, connection: NodeConnection) -> None:
        if self._router is not None:
            connection.close()
            self._connections.pop(connection.address, None)

    def send_raw(self, data: bytes | memoryview) -> None:
        """Send bytes as they are."""
        self._current.send(data)

    def receive_frame(self) -> memoryview:
        """The next response without its length; ClosedByPeer if the connection is closed."""
        return self._current.receive_frame()

    def is_silent(self, timeout_s: float) -> bool:
        """Whether nothing arrives for that long; bytes that arrive stay unread."""
        with self.deadline(timeout_s):
            try:
                self.socket.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                return True
        return False

    def wait_until_closed(self) -> None:
        """Wait until the broker closes the connection; AssertionError if it sends anything."""
        try:
            data = self.socket.recv(1)
        except ConnectionResetError:
            return
        assert data == b"", f"a response instead of a closed connection: {data!r}"

    @contextmanager
    def deadline(self, timeout_s: float) -> Iterator[None]:
        """Use another time limit for the reads and writes of a block."""
        before = self.socket.gettimeout()
        self.socket.settimeout(timeout_s)
        try:
            yield
        finally:
            self.socket.settimeout(before)


@cache
def versions_of(bootstrap: str) -> dict[int, range]:
    """The APIs of a broker's ApiVersions response: API key to versions."""
    with WireClient(bootstrap) as wire:
        answer = wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    return {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}


def is_kafka_4(bootstrap: str) -> bool:
    """Whether the broker has dropped the old versions, as Kafka 4 has.

    Found by Fetch, because Produce is listed from 0 there, though 0 to 2 are refused (KAFKA-18659).
    """
    return versions_of(bootstrap)[ApiKey.FETCH].start > 0
