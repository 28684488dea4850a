"""Versions, ciphers and client authentication, and how a certificate is replaced."""

import logging
import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.wire.key_stores import KeyStoreError
from odradek.node.wire.tls_context import TlsListener, make_tls_context, openssl_cipher
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_text


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path)


@pytest.fixture
def settings(authority: TestAuthority) -> TlsSettings:
    return TlsSettings(
        ssl_keystore_type="PEM", ssl_keystore_location=str(authority.issue("broker.pem"))
    )


def versions(settings: TlsSettings) -> tuple[str, str]:
    context = make_tls_context(settings).context
    return context.minimum_version.name, context.maximum_version.name


def test_the_versions_are_the_enabled_ones(settings: TlsSettings) -> None:
    assert versions(settings) == ("TLSv1_2", "TLSv1_3")
    only = replace(settings, ssl_enabled_protocols=("TLSv1.3",))
    assert versions(only) == ("TLSv1_3", "TLSv1_3")
    assert versions(replace(settings, ssl_protocol="TLSv1.2")) == ("TLSv1_2", "TLSv1_2")
    with pytest.raises(KeyStoreError, match="no version of TLS is left"):
        make_tls_context(replace(only, ssl_protocol="TLSv1.2"))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_have_two_names(name: str, ours: str) -> None:
    assert openssl_cipher(name) == ours
    if not ours.startswith("TLS_"):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(f"{ours}:@SECLEVEL=0")


def test_named_cipher_suites_are_the_only_ones(settings: TlsSettings) -> None:
    old = ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",)
    context = make_tls_context(replace(settings, ssl_cipher_suites=old)).context
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    older = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-RSA-AES256-GCM-SHA384"]
    new = replace(settings, ssl_cipher_suites=("TLS_AES_128_GCM_SHA256",))
    assert versions(new) == ("TLSv1_3", "TLSv1_3")
    assert versions(replace(new, ssl_cipher_suites=(*old, "TLS_AES_128_GCM_SHA256"))) == (
        "TLSv1_2",
        "TLSv1_3",
    )
    with pytest.raises(KeyStoreError, match="names no cipher suite"):
        make_tls_context(replace(settings, ssl_cipher_suites=("TLS_NULL_WITH_NULL",)))


def test_clients_have_to_authenticate_as_configured(
    settings: TlsSettings, authority: TestAuthority
) -> None:
    trusting = replace(
        settings,
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(authority.certificate),
    )
    for value, mode in (
        ("none", ssl.CERT_NONE),
        ("requested", ssl.CERT_OPTIONAL),
        ("required", ssl.CERT_REQUIRED),
    ):
        context = make_tls_context(replace(trusting, ssl_client_auth=value)).context
        assert context.verify_mode is mode
        assert bool(context.get_ca_certs()) == (value != "none")


def test_a_new_file_replaces_the_certificate_for_later_connections(
    settings: TlsSettings, authority: TestAuthority
) -> None:
    first = make_tls_context(settings)
    listener = TlsListener("SSL", first)
    assert not listener.is_outdated(settings)
    authority.issue("broker.pem", valid_s=7_200)
    assert listener.is_outdated(settings)
    listener.follow(settings)
    fresh = listener.current
    assert fresh is not None
    assert fresh.context is not first.context
    left_s = listener.seconds_left(first.certificate.not_after_s)
    assert left_s is not None
    assert left_s < 0
    assert (listener.reload_count, listener.problem) == (1, "")


@pytest.mark.parametrize(
    ("issue", "says", "allow"),
    [
        ({"common_name": "other"}, "DistinguishedName does not match", "ssl_allow_dn_changes"),
        ({"names": ("localhost",)}, "SubjectAltNames do not match", "ssl_allow_san_changes"),
        ({"valid_s": -60.0}, "the new certificate has expired", None),
    ],
)
def test_a_certificate_that_must_not_replace_is_refused(
    settings: TlsSettings,
    authority: TestAuthority,
    issue: dict[str, object],
    says: str,
    allow: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = TlsListener("SSL", make_tls_context(settings))
    first = listener.current
    names = issue.pop("names", ())
    assert isinstance(names, tuple)
    authority.issue("broker.pem", *names, **issue)  # type: ignore[arg-type]  # of the cases
    with caplog.at_level(logging.ERROR):
        listener.follow(settings)
    assert listener.current is first
    assert says in listener.problem
    assert says in log_text(caplog)
    assert listener.failure_count == 1
    assert not listener.is_outdated(settings), "it is tried once, not every few seconds"
    if allow is not None:
        listener.follow(replace(settings, **{allow: True}))  # type: ignore[arg-type]  # a flag
        assert (listener.current is first, listener.problem) == (False, "")


def test_a_file_that_is_gone_or_cut_short_changes_nothing(
    settings: TlsSettings, authority: TestAuthority
) -> None:
    listener = TlsListener("SSL", make_tls_context(settings))
    first = listener.current
    path = Path(settings.ssl_keystore_location or "")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    listener.follow(settings)
    assert listener.problem
    path.unlink()
    assert listener.is_outdated(settings)
    listener.follow(settings)
    assert "cannot be read" in listener.problem
    assert listener.current is first
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert listener.is_outdated(settings)
    listener.follow(settings)
    assert listener.problem == ""
