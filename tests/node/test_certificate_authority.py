"""The authority of a hardened cluster: what clients verify, and what they refuse."""

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from odradek.node.certificate_authority import NODE_DAYS, CertificateAuthority, names_of

NOW = datetime.now(UTC)


def handshake(folder: Path, store: str, authority: str, name: str) -> None:
    """What a client does that verifies strictly, against a server with this store. Raises
    SSLError."""
    (folder / "store.pem").write_text(store)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "store.pem")
    client = ssl.create_default_context(cadata=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), server.wrap_socket(theirs, server_side=True):
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=name):
            pass
    finally:
        thread.join()


@pytest.mark.parametrize("name", ["broker.example", "10.0.0.1", "::1"])
def test_clients_accept_the_names_of_a_certificate(tmp_path: Path, name: str) -> None:
    authority = CertificateAuthority.create("test", NOW)
    store = authority.issue("node 0", ["broker.example", "10.0.0.1", "::1"], NOW)
    assert names_of(store) == ("node 0", ("broker.example", "10.0.0.1", "::1"))
    handshake(tmp_path, store, authority.certificate, name)


def test_clients_refuse_another_name_another_authority_and_an_expired_certificate(
    tmp_path: Path,
) -> None:
    authority, other = (CertificateAuthority.create("test", NOW) for _ in range(2))
    store = authority.issue("node 0", ["broker.example"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, store, authority.certificate, "other.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, store, other.certificate, "broker.example")
    old = authority.issue("node 0", ["broker.example"], NOW - timedelta(days=NODE_DAYS + 1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path, old, authority.certificate, "broker.example")


def test_a_node_cannot_issue_certificates(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("test", NOW)
    key, _, chain = authority.issue("node 0", ["a.example"], NOW).partition(
        "-----BEGIN CERTIFICATE"
    )
    own = "-----BEGIN CERTIFICATE" + chain.partition("-----END CERTIFICATE-----\n")[0]
    node = CertificateAuthority(own + "-----END CERTIFICATE-----\n", key)
    forged = node.issue("node 1", ["broker.example"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, forged, authority.certificate, "broker.example")


def test_a_name_that_no_certificate_can_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="A-label"):
        CertificateAuthority.create("test", NOW).issue("node 0", ["büro.example"], NOW)
