"""Probes of addresses with a broker, without one, and with another server."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from odradek.node.cli.connection import ClusterConnection, split_address
from odradek.node.cli.probe import Address, ProbeResult
from odradek.node.cli.probe import probe as probe_address
from tests.support.ports import free_port

TIMEOUT_S = 5.0


def probe(address: Address, timeout_s: float, **properties: str) -> ProbeResult:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    connection = ClusterConnection(bootstrap="", timeout_s=timeout_s, properties=named)
    return probe_address(address, connection)


@contextmanager
def answering(reply: bytes | None) -> Iterator[Address]:
    """A server that answers every request with `reply`, or not at all if it is None."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                if reply is None:
                    client.recv(1)
                else:
                    client.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            thread.join(TIMEOUT_S)


@pytest.mark.e2e
def test_a_broker_reports_the_brokers_of_its_cluster(bootstrap: str) -> None:
    found = probe(Address(*split_address(bootstrap)), TIMEOUT_S)
    assert (found.failure, found.detail) == ("", "")
    assert found.cluster_id
    assert found.resolved == ("127.0.0.1",)
    assert found.connected_ms is not None
    assert found.brokers[found.controller_id] == found.address


def test_a_closed_port_refuses() -> None:
    assert probe(Address("127.0.0.1", free_port()), TIMEOUT_S).failure == "refused"


def test_a_name_that_does_not_resolve_is_a_failure() -> None:
    found = probe(Address("broker.invalid", 9092), TIMEOUT_S)
    assert (found.failure, found.resolved) == ("name", ())


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "stranger"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "tls"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63\x00\x00\x00\x00", "stranger"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x00\x00", "closed"),
        (b"\x7f\xff\xff\xff", "stranger"),
    ],
    ids=["closes", "http", "tls", "other-correlation-id", "cut", "two-gigabytes"],
)
def test_a_server_of_another_protocol_is_not_a_broker(reply: bytes, failure: str) -> None:
    with answering(reply) as address:
        assert probe(address, TIMEOUT_S).failure == failure


def test_a_plaintext_listener_does_not_speak_tls() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert probe(address, TIMEOUT_S, security_protocol="SSL").failure == "not_tls"


def test_silence_ends_with_the_timeout() -> None:
    with answering(None) as address:
        found = probe(address, 0.2)
    assert found.failure == "silent"
    assert "0.2 s" in found.detail


def test_addresses_are_written_as_in_a_setting() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 9092)) == "host:9092"
