"""A visit to one address: does a name lead there, does somebody listen, is it a Kafka broker?

Client libraries try again where this must tell what happened, so it speaks the protocol itself:
ApiVersions 0 and then the newest Metadata both sides know, without topics. PLAINTEXT only; a
listener that wants TLS or a login is told as such as far as that can be seen.
"""

import socket
import time
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, TypeVar

from protocol.apis import APIS, ApiKey
from protocol.codec import (
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
)
from protocol.errors import ProtocolError
from protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

R = TypeVar("R")

_LENGTH: Final = Struct(">i")
_RESPONSE_BYTES_MAX: Final = 16 << 20
_TLS_ALERT: Final = b"\x15\x03"


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port as somebody named them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Visit:
    """What was found at an address. `trouble` is empty if a broker answered there.

    `trouble` is one of "name", "refused", "silent", "unreachable", "closed", "tls" and "stranger";
    `detail` says it in the system's words.
    """

    address: Address
    resolved: tuple[str, ...] = ()
    connected_ms: float | None = None
    trouble: str = ""
    detail: str = ""
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    """Who is in the cluster and where, as told at this address."""


class _Stranger(Exception):
    """Whoever answered speaks something else."""


def visit(address: Address, timeout_s: float) -> Visit:
    """Go there, ask who is in the cluster, leave. Never raises for what it meets."""
    found = Visit(address)
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        found.trouble, found.detail = "name", error.strerror or str(error)
        return found
    found.resolved = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
    began = time.monotonic()
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
    except ConnectionRefusedError as error:
        found.trouble, found.detail = "refused", error.strerror or str(error)
        return found
    except TimeoutError:
        found.trouble, found.detail = "silent", f"no answer within {timeout_s:g} s"
        return found
    except OSError as error:
        found.trouble, found.detail = "unreachable", error.strerror or str(error)
        return found
    found.connected_ms = (time.monotonic() - began) * 1000
    with connection:
        try:
            _ask_who_is_there(connection, found)
        except TimeoutError:
            found.trouble, found.detail = "silent", f"connected, no answer within {timeout_s:g} s"
        except (_Stranger, ProtocolError) as error:
            found.trouble = found.trouble or "stranger"
            found.detail = str(error)
        except OSError as error:
            found.trouble, found.detail = "closed", error.strerror or str(error)
    return found


def _ask_who_is_there(connection: socket.socket, found: Visit) -> None:
    versions = _ask(connection, found, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert isinstance(versions, ApiVersionsResponse)
    ours = APIS[ApiKey.METADATA]
    theirs = next((api for api in versions.api_keys if api.api_key == ApiKey.METADATA), None)
    if theirs is None or theirs.min_version > ours.max_version:
        raise _Stranger("it serves no Metadata request that we know")
    version = min(ours.max_version, theirs.max_version)
    metadata = _ask(connection, found, ApiKey.METADATA, version, MetadataRequest(topics=[]))
    assert isinstance(metadata, MetadataResponse)
    found.cluster_id = metadata.cluster_id
    found.controller_id = metadata.controller_id
    found.brokers = {
        broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers
    }


def _ask(
    connection: socket.socket, found: Visit, key: ApiKey, version: int, request: object
) -> object:
    header = encode_request_header(key, version, 0, "odradek-doctor")
    body = b"".join((header, *encode_request(key, version, request)))
    connection.sendall(_LENGTH.pack(len(body)) + body)
    start = _receive(connection, _LENGTH.size, found)
    if start.startswith(_TLS_ALERT):
        found.trouble = "tls"
        raise _Stranger("a TLS alert came back")
    (size,) = _LENGTH.unpack(start)
    if not 4 <= size <= _RESPONSE_BYTES_MAX:
        raise _Stranger(f"the answer begins with {start!r}")
    frame = memoryview(_receive(connection, size, found))
    correlation_id, at = decode_response_header(key, version, frame)
    if correlation_id != 0:
        raise _Stranger("the answer is to another request")
    return decode_response(key, version, frame, at)


def _receive(connection: socket.socket, size: int, found: Visit) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 16))
        if not piece:
            found.trouble = "closed"
            raise _Stranger("the connection was closed instead of an answer")
        data += piece
    return bytes(data)
