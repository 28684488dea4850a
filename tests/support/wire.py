"""A minimal Kafka client: it sends exactly the given request, in the given version.

Conformance tests use it, because a real client library would correct their requests and hide
responses. One connection, blocking, with a deadline on everything: a broker that hangs is a failed
test and never a hung one.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct
from types import TracebackType
from typing import Final, Self, TypeVar

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


class WireClient:
    """One connection to a broker. Requests may be pipelined with `post` and `receive`."""

    def __init__(self, bootstrap: str, *, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self.socket: Final = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._expected: list[tuple[Api, int, int]] = []

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
        """Close the connection; a second call has no effect."""
        self.socket.close()

    def ask(self, request: object, version: int, response: type[R]) -> R:
        """The response to one request in that version."""
        self.post(request, version)
        return self.receive(response)

    def post(self, request: object, version: int, *, is_answered: bool = True) -> int:
        """Send a request without waiting; returns its correlation id."""
        self._correlation_id += 1
        if is_answered:
            self._expected.append((api_of(request), version, self._correlation_id))
        self.send_raw(frame_of(request, version, self._correlation_id))
        return self._correlation_id

    def receive(self, response: type[R]) -> R:
        """The response to the oldest pending request; responses must come in order."""
        api, version, expected_id = self._expected.pop(0)
        frame = self.receive_frame()
        correlation_id, at = decode_response_header(api.key, version, frame)
        assert correlation_id == expected_id, "responses must be in the order of the requests"
        message = decode_response(api.key, version, frame, at)
        assert isinstance(message, response)
        return message

    def send_raw(self, data: bytes | memoryview) -> None:
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
