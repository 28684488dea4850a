"""Key stores and trust stores in each form, and what is said of those that cannot be used."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.wire.key_stores import KeyStoreError, load_key_store, load_trust_store
from tests.support.certificates import TestAuthority, as_pkcs12, as_trust_store


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pem(authority: TestAuthority) -> Path:
    return authority.issue("broker.pem")


def is_usable(settings: TlsSettings) -> bool:
    store = load_key_store(settings)
    store.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    return b"PRIVATE KEY" in store.pem and store.certificate[:1] == b"\x30"


def encrypted(pem: Path, password: str) -> str:
    key = load_pem_private_key(pem.read_bytes(), None)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    ).decode()


def certificates_of(pem: Path) -> str:
    text = pem.read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


def test_a_pem_file_and_pem_in_the_configuration_are_key_stores(pem: Path) -> None:
    assert is_usable(TlsSettings(ssl_keystore_type="PEM", ssl_keystore_location=str(pem)))
    text = pem.read_text()
    key = text[: text.index("-----BEGIN CERTIFICATE")]
    inline = TlsSettings(
        ssl_keystore_type="PEM",
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=certificates_of(pem),
    )
    assert is_usable(inline)


def test_an_encrypted_key_needs_its_password(pem: Path) -> None:
    settings = TlsSettings(
        ssl_keystore_type="PEM",
        ssl_keystore_key=encrypted(pem, "secret"),
        ssl_keystore_certificate_chain=certificates_of(pem),
        ssl_key_password="secret",
    )
    assert is_usable(settings)
    for wrong in ("wrong", None):
        with pytest.raises(KeyStoreError, match=r"ssl\.key\.password is wrong") as error:
            is_usable(
                TlsSettings(
                    ssl_keystore_type="PEM",
                    ssl_keystore_key=settings.ssl_keystore_key,
                    ssl_keystore_certificate_chain=settings.ssl_keystore_certificate_chain,
                    ssl_key_password=wrong,
                )
            )
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_a_pkcs12_file_is_a_key_store_also_by_kafkas_default_type(
    authority: TestAuthority, pem: Path, kind: str
) -> None:
    path = as_pkcs12(pem, authority.folder / "broker.p12", "secret", authority.certificate)
    settings = TlsSettings(
        ssl_keystore_type=kind, ssl_keystore_location=str(path), ssl_keystore_password="secret"
    )
    assert is_usable(settings)
    assert len(load_key_store(settings).chain) == 2
    with pytest.raises(KeyStoreError, match=r"ssl\.keystore\.password is wrong"):
        load_key_store(
            TlsSettings(
                ssl_keystore_type=kind,
                ssl_keystore_location=str(path),
                ssl_keystore_password="wrong",
            )
        )


def test_trust_stores_are_read(authority: TestAuthority) -> None:
    location = str(authority.certificate)
    text = authority.certificate.read_text().strip()
    from_file = TlsSettings(ssl_truststore_type="PEM", ssl_truststore_location=location)
    inline = TlsSettings(ssl_truststore_type="PEM", ssl_truststore_certificates=text)
    path = as_trust_store(authority.folder / "trust.p12", "secret", authority.certificate)
    java = TlsSettings(ssl_truststore_location=str(path), ssl_truststore_password="secret")
    for settings in (from_file, inline, java):
        assert (load_trust_store(settings) or "").strip() == text
    assert load_trust_store(TlsSettings()) is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs a key store"),
        ({"ssl_keystore_location": "/nowhere"}, "ssl.keystore.location=/nowhere cannot be read"),
        ({"ssl_keystore_key": "k"}, "set ssl.keystore.type=PEM"),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_key": "k"}, "certificate chain is not spec"),
        (
            {"ssl_keystore_type": "PEM", "ssl_keystore_certificate_chain": "c"},
            "SSL certificate chain is specified, but private key is not specified.",
        ),
        (
            {"ssl_keystore_type": "PEM", "ssl_keystore_key": "k", "ssl_keystore_location": "/x"},
            "Both SSL key store location and separate private key are specified.",
        ),
    ],
)
def test_the_error_says_which_key_is_meant(values: dict[str, str], says: str) -> None:
    with pytest.raises(KeyStoreError) as error:
        load_key_store(TlsSettings(**values))  # type: ignore[arg-type]  # all are texts
    assert says in str(error.value)


def test_javas_own_format_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "broker.jks"
    store.write_bytes(bytes.fromhex("feedfeed00000002") + bytes(100))
    with pytest.raises(KeyStoreError, match="keytool -importkeystore"):
        load_key_store(TlsSettings(ssl_keystore_location=str(store)))


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe\x00"])
def test_files_that_are_no_stores_are_refused(tmp_path: Path, content: bytes) -> None:
    store = tmp_path / "store"
    store.write_bytes(content)
    for kind in ("PEM", "PKCS12", "JKS"):
        with pytest.raises(KeyStoreError):
            load_key_store(TlsSettings(ssl_keystore_type=kind, ssl_keystore_location=str(store)))
        with pytest.raises(KeyStoreError):
            load_trust_store(
                TlsSettings(ssl_truststore_type=kind, ssl_truststore_location=str(store))
            )
