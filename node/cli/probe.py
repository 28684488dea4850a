"""A visit to one address: does a name lead there, does somebody listen, is it a Kafka broker?

Client libraries try again where this must tell what happened, so it speaks the protocol itself
(blocking_client.py): ApiVersions, and Metadata without topics. PLAINTEXT only; a listener that
wants TLS or a login is told as such as far as that can be seen.
"""

import socket
import time
from dataclasses import dataclass, field

from odradek.node.blocking_client import (
    BlockingClient,
    ConnectionEndedError,
    NotABrokerError,
    TlsExpectedError,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port as somebody named them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class ProbeResult:
    """What was found at an address. `failure` is empty if a broker answered there.

    `failure` is one of "name", "refused", "silent", "unreachable", "closed", "tls" and "stranger";
    `detail` says it in the system's words.
    """

    address: Address
    resolved: tuple[str, ...] = ()
    connected_ms: float | None = None
    failure: str = ""
    detail: str = ""
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    """Who is in the cluster and where, as told at this address."""


def probe(address: Address, timeout_s: float) -> ProbeResult:
    """Go there, ask who is in the cluster, leave. Never raises for what it meets."""
    found = ProbeResult(address)
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        found.failure, found.detail = "name", error.strerror or str(error)
        return found
    found.resolved = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
    began = time.monotonic()
    try:
        asker = BlockingClient(address.host, address.port, timeout_s)
    except ConnectionRefusedError as error:
        found.failure, found.detail = "refused", error.strerror or str(error)
        return found
    except TimeoutError:
        found.failure, found.detail = "silent", f"no answer within {timeout_s:g} s"
        return found
    except OSError as error:
        found.failure, found.detail = "unreachable", error.strerror or str(error)
        return found
    found.connected_ms = (time.monotonic() - began) * 1000
    with asker:
        try:
            metadata = asker.ask(MetadataRequest(topics=[]), MetadataResponse)
        except TimeoutError:
            found.failure, found.detail = "silent", f"connected, no answer within {timeout_s:g} s"
        except (NotABrokerError, ProtocolError) as error:
            found.failure, found.detail = _failure_of(error), str(error)
        except OSError as error:
            found.failure, found.detail = "closed", error.strerror or str(error)
        else:
            found.cluster_id = metadata.cluster_id
            found.controller_id = metadata.controller_id
            found.brokers = {
                broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers
            }
    return found


def _failure_of(error: Exception) -> str:
    if isinstance(error, TlsExpectedError):
        return "tls"
    return "closed" if isinstance(error, ConnectionEndedError) else "stranger"
