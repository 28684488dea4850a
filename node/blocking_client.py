"""One request at a time to one broker, in the newest version that both sides support.

For the command line (node/cli), and for programs that have no client library (embedded.py). Speaks
PLAINTEXT, or TLS if it is given a context; node/cli/security.py authenticates with SASL.
"""

import socket
import ssl
from struct import Struct
from typing import Final, Self, TypeVar

from odradek.cluster.security.certificates import read_certificate
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.metadata import ApiVersionsRequest
from odradek.protocol.types import Request

R = TypeVar("R")

_LENGTH: Final = Struct(">i")
_RESPONSE_BYTES_MAX: Final = 64 << 20
_TLS_ALERT: Final = b"\x15\x03"
_KEY_OF: Final = {api.request: ApiKey(api.key) for api in APIS.values()}


class NotABrokerError(Exception):
    """The peer does not speak Kafka's protocol, or does not serve the request."""


class UnsupportedApiError(NotABrokerError):
    """The broker does not serve the API in any version that we support."""


class TlsExpectedError(NotABrokerError):
    """The response was a TLS alert."""


class ConnectionEndedError(NotABrokerError):
    """The connection was closed without a response."""


class UnencodableRequestError(ProtocolError):
    """The request has values that its format cannot encode. Do not retry."""


class BlockingClient:
    """A connection to a broker. Raises OSError, NotABrokerError and ProtocolError."""

    def __init__(
        self, host: str, port: int, timeout_s: float, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except OSError:
                self._socket.close()
                raise
        self._ranges: dict[int, tuple[int, int]] = {}

    @property
    def certificate_expires_s(self) -> int | None:
        """When the broker's certificate expires, since the epoch; None without TLS, or if it cannot
        be read."""
        certificate = self.certificate
        try:
            return None if certificate is None else read_certificate(certificate).not_after_s
        except ValueError:
            return None

    @property
    def certificate(self) -> bytes | None:
        """The broker's certificate in DER; None without TLS."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return None
        return self._socket.getpeercert(binary_form=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def wait(self, timeout_s: float) -> None:
        """Set the timeout of each response."""
        self._socket.settimeout(timeout_s)

    def serves(self, key: ApiKey) -> bool:
        """Whether the broker advertises the API in a supported version. Private APIs are never
        advertised."""
        if not self._ranges:
            versions = self._exchange(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            self._ranges = {
                api.api_key: (api.min_version, api.max_version) for api in versions.api_keys
            }
        low, high = self._ranges.get(key, (1, 0))
        return low <= high and low <= APIS[key].max_version

    def ask(self, request: Request[R]) -> R:
        """The response to one request. Raises UnsupportedApiError besides."""
        key = _KEY_OF[type(request)]
        api = APIS[key]
        if not api.is_private and not self.serves(key):
            raise UnsupportedApiError(f"the broker does not support {api.name} requests")
        version = api.max_version if api.is_private else min(api.max_version, self._ranges[key][1])
        try:
            return self._exchange(key, version, request)
        except ConnectionEndedError as error:
            if not api.is_private:
                raise
            # A broker closes the connection on a request that it does not know.
            raise UnsupportedApiError(
                f"the broker does not support {api.name} requests; only Odradek's brokers do"
            ) from error

    def _exchange(self, key: ApiKey, version: int, request: Request[R]) -> R:
        header = encode_request_header(key, version, 0, "odradek")
        try:
            body = b"".join((header, *encode_request(key, version, request)))
        except ProtocolError as error:
            raise UnencodableRequestError(str(error)) from error
        self._socket.sendall(_LENGTH.pack(len(body)) + body)
        start = self._receive(_LENGTH.size)
        if start.startswith(_TLS_ALERT):
            raise TlsExpectedError("the response is a TLS alert: the listener speaks TLS")
        (size,) = _LENGTH.unpack(start)
        if not 4 <= size <= _RESPONSE_BYTES_MAX:
            raise NotABrokerError(f"the response begins with {start!r}, which is not a length")
        frame = memoryview(self._receive(size))
        correlation_id, at = decode_response_header(key, version, frame)
        if correlation_id != 0:
            raise NotABrokerError("the response has the correlation id of another request")
        response: R = decode_response(key, version, frame, at)  # type: ignore[assignment]
        return response  # APIS pairs a request with its response

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 16))
            if not piece:
                raise ConnectionEndedError("the connection was closed without a response")
            data += piece
        return bytes(data)
