"""The authority of a hardened cluster: what clients verify, and what they refuse."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from odradek.node.certificate_authority import NODE_DAYS, CertificateAuthority, names_of
from tests.support.certificates import handshake

NOW = datetime.now(UTC)


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
