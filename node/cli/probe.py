"""Probes one address: name resolution, connection, and whether a Kafka broker answers.

Client libraries retry, and this must report each failure, so it sends its own requests
(blocking_client.py): ApiVersions, Metadata without topics, DescribeConfigSources, DescribeLogDirs.
"""

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field

import click

from odradek.node.blocking_client import (
    BlockingClient,
    ConnectionEndedError,
    NotABrokerError,
    TlsExpectedError,
)
from odradek.node.cli.connection import ClusterConnection
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.cluster import DescribeLogDirsRequest
from odradek.protocol.messages.configs import DescribeConfigSourcesRequest
from odradek.protocol.messages.diagnostics import ExplainTopicRequest
from odradek.protocol.messages.metadata import MetadataRequest


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class ProbeResult:
    """The result for one address. `failure` is empty if a broker answered.

    `failure` is a key of doctor.py's texts; `detail` is the operating system's message.
    """

    address: Address
    resolved: tuple[str, ...] = ()
    connected_ms: float | None = None
    failure: str = ""
    detail: str = ""
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    """The brokers of the cluster and their addresses, as this broker reports them."""
    file_problem: str = ""
    """Why the broker refuses its configuration file, as it is now; empty if it does not."""
    certificate_days: float | None = None
    """Until the certificate of the broker expires; None without TLS."""
    listener_problems: tuple[str, ...] = ()
    """What keeps clients from its listeners, or soon will."""
    settings_problem: str = ""
    """Why what is set for it through the cluster is not in effect; empty if it is."""
    restart_keys: tuple[str, ...] = ()
    """Settings that have changed in its configuration file and need a restart."""
    storage_problem: str = ""
    """The log directories that it cannot use, and why; empty if it can, or does not say."""
    secrets: tuple[str, ...] | None = None
    """Fingerprints of its cluster secrets; None if it does not say."""


def probe(address: Address, connection: ClusterConnection) -> ProbeResult:
    """Connect, fetch the brokers of the cluster, disconnect. Failures are part of the result."""
    found = ProbeResult(address)
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        found.failure, found.detail = "name", error.strerror or str(error)
        return found
    found.resolved = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
    began = time.monotonic()
    try:
        with connection.connect(address.host, address.port) as client:
            found.connected_ms = (time.monotonic() - began) * 1000
            if client.certificate_expires_s is not None:
                found.certificate_days = (client.certificate_expires_s - time.time()) / 86_400
            metadata = client.ask(MetadataRequest(topics=[]))
            # A broker of Kafka does not say.
            with suppress(OSError, NotABrokerError, ProtocolError):
                sources = client.ask(DescribeConfigSourcesRequest(keys=[]))
                found.file_problem = sources.file_problem or ""
                found.settings_problem = sources.settings_problem or ""
                found.restart_keys = tuple(sources.restart_keys)
                found.listener_problems = tuple(sources.listener_problems)
                found.secrets = None if sources.error_code else tuple(sources.secrets)
            with suppress(OSError, NotABrokerError, ProtocolError):
                found.storage_problem = _storage_problem(client)
    except (OSError, NotABrokerError, ProtocolError, click.ClickException) as error:
        found.failure = _failure_of(error, is_connected=found.connected_ms is not None)
        found.detail = str(error)
        if isinstance(error, click.ClickException):
            found.detail = error.message
        elif isinstance(error, TimeoutError):
            connected = "" if found.connected_ms is None else "connected, "
            found.detail = f"{connected}no answer within {connection.timeout_s:g} s"
        elif isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            found.detail = error.strerror or str(error)
    else:
        found.cluster_id = metadata.cluster_id
        found.controller_id = metadata.controller_id
        found.brokers = {
            broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers
        }
    return found


def _storage_problem(client: BlockingClient) -> str:
    results = client.ask(DescribeLogDirsRequest(topics=[])).results
    failed = [each.log_dir for each in results if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR]
    if not failed:
        return ""
    with suppress(OSError, NotABrokerError, ProtocolError):
        # Only Odradek's brokers tell the reason.
        told = client.ask(ExplainTopicRequest(topics=[])).storage_problem
        if told:
            return told
    return f"{', '.join(failed)} is offline"


def _failure_of(error: Exception, *, is_connected: bool) -> str:
    for kind, failure in (
        (click.ClickException, "login"),
        (TlsExpectedError, "tls"),
        (ssl.SSLCertVerificationError, "certificate"),
        (ssl.SSLError, "not_tls"),
        (ConnectionEndedError, "closed"),
        ((NotABrokerError, ProtocolError), "stranger"),
        (TimeoutError, "silent"),
        (ConnectionRefusedError, "refused"),
    ):
        if isinstance(error, kind):
            return failure
    return "closed" if is_connected else "unreachable"
