"""Reads key stores and trust stores, PEM and PKCS#12, with Kafka's rules for what goes together.

What is read is PEM, whatever the file was. One invariant: a private key is never written to a disk,
and no error text has a part of a store or a password. Called by tls_context.py; PKCS#12 may take a
tenth of a second, so that it is read in a thread where clients would wait for it.
"""

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odradek.cluster.metadata.tls_settings import TlsSettings

_JKS_START = bytes.fromhex("feedfeed")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
STORE_BYTES_MAX = 16 << 20


class KeyStoreError(ValueError):
    """A store that cannot be used; the message says which key of the configuration is meant."""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key and the broker's certificate, the first one, with its chain: PEM."""

    pem: bytes
    chain: tuple[str, ...]
    password: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises KeyStoreError if key, certificate and password do not belong together."""
        with _as_file(self.pem) as path:
            try:
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(path, password=lambda: self.password)
            except (OSError, ValueError) as error:
                raise KeyStoreError(
                    "the private key and the certificate chain cannot be used together, or"
                    f" ssl.key.password is wrong: {_reason(error)}"
                ) from error

    @property
    def certificate(self) -> bytes:
        """The broker's certificate in DER."""
        return ssl.PEM_cert_to_DER_cert(self.chain[0])


def load_key_store(settings: TlsSettings) -> KeyStore:
    """The broker's key and certificates. Raises KeyStoreError."""
    kind, location = settings.ssl_keystore_type, settings.ssl_keystore_location
    key, chain = settings.ssl_keystore_key, settings.ssl_keystore_certificate_chain
    if key is not None or chain is not None:
        if kind != "PEM":
            raise KeyStoreError(
                "SSL private key can be specified only for PEM, but key store type is"
                f" {kind}: set ssl.keystore.type=PEM"
            )
        if location is not None:
            raise KeyStoreError(
                "Both SSL key store location and separate private key are specified."
            )
        if key is None or chain is None:
            there, missing = ("certificate chain", "private key")
            if chain is None:
                there, missing = missing, there
            raise KeyStoreError(f"SSL {there} is specified, but {missing} is not specified.")
        return _pem_key_store(f"{key}\n{chain}", settings, "ssl.keystore.certificate.chain")
    if location is None:
        raise KeyStoreError(
            "a listener with TLS needs a key store: set ssl.keystore.location and"
            " ssl.keystore.type (PEM or PKCS12)"
        )
    data = _read(location, "ssl.keystore.location")
    if kind == "PEM":
        if settings.ssl_keystore_password is not None:
            raise KeyStoreError(
                "SSL key store password cannot be specified with PEM format, only key password may"
                " be specified."
            )
        return _pem_key_store(_text(data, location), settings, f"ssl.keystore.location={location}")
    return _pkcs12_key_store(data, location, settings.ssl_keystore_password)


def load_trust_store(settings: TlsSettings) -> str | None:
    """The trusted certificates in PEM; None: those of the system. Raises KeyStoreError."""
    kind, location = settings.ssl_truststore_type, settings.ssl_truststore_location
    inline = settings.ssl_truststore_certificates
    if inline is not None:
        if kind != "PEM":
            raise KeyStoreError(
                "SSL trust store certs can be specified only for PEM, but trust store type is"
                f" {kind}: set ssl.truststore.type=PEM"
            )
        if location is not None:
            raise KeyStoreError(
                "Both SSL trust store location and separate trust certificates are specified."
            )
        return _certificates(inline, "ssl.truststore.certificates")
    if location is None:
        return None
    data = _read(location, "ssl.truststore.location")
    if kind == "PEM":
        text = _text(data, location)
        return _certificates(text, f"ssl.truststore.location={location}")
    _, certificates = _pkcs12(data, location, settings.ssl_truststore_password, "truststore")
    if not certificates:
        raise KeyStoreError(f"ssl.truststore.location={location} has no certificates")
    return "\n".join(certificates)


def _pem_key_store(text: str, settings: TlsSettings, name: str) -> KeyStore:
    chain = tuple(_CERTIFICATE.findall(text))
    if not chain:
        raise KeyStoreError(f"{name} has no certificate in PEM")
    if "PRIVATE KEY-----" not in text:
        raise KeyStoreError(f"{name} has no private key in PEM")
    return KeyStore(text.encode(), chain, settings.ssl_key_password or "")


def _pkcs12_key_store(data: bytes, location: str, password: str | None) -> KeyStore:
    key, certificates = _pkcs12(data, location, password, "keystore")
    if key is None or not certificates:
        raise KeyStoreError(f"ssl.keystore.location={location} has no private key with certificate")
    return KeyStore(key + "\n".join(certificates).encode(), tuple(certificates), "")


def _pkcs12(
    data: bytes, location: str, password: str | None, store: str
) -> tuple[bytes | None, list[str]]:
    """The private key, if there is one, and the certificates in PEM, that of the key first."""
    if data.startswith(_JKS_START):
        raise KeyStoreError(
            f"ssl.{store}.location={location} is in Java's own format. Convert it with `keytool"
            f" -importkeystore -srckeystore {location} -destkeystore {location}.p12"
            f" -deststoretype pkcs12`, and set ssl.{store}.type=PKCS12."
        )
    # Only those who have such a store pay for the import.
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    try:
        found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise KeyStoreError(
            f"ssl.{store}.location={location} is no PKCS#12 store, or ssl.{store}.password is wrong"
        ) from error
    certificates = [] if found.cert is None else [found.cert.certificate]
    rest = [each.certificate for each in found.additional_certs]
    if certificates:
        # The order in the store is any; in a chain the issuer of each follows it.
        while issuers := [each for each in rest if each.subject == certificates[-1].issuer]:
            certificates.append(issuers[0])
            rest.remove(issuers[0])
    if store == "truststore":
        certificates += rest
    key = None
    if found.key is not None:
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key, [each.public_bytes(Encoding.PEM).decode() for each in certificates]


def _read(location: str, name: str) -> bytes:
    try:
        with Path(location).open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise KeyStoreError(f"{name}={location} cannot be read: {error.strerror}") from error
    if not data or len(data) > STORE_BYTES_MAX:
        raise KeyStoreError(f"{name}={location} is {'too large' if data else 'empty'}")
    return data


def _text(data: bytes, location: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise KeyStoreError(f"{location} is not in PEM format") from error


def _certificates(text: str, name: str) -> str:
    found = _CERTIFICATE.findall(text)
    if not found:
        raise KeyStoreError(f"{name} has no certificate in PEM")
    return "\n".join(found)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path under which OpenSSL finds the content meanwhile: in memory where that exists."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("key store", os.MFD_CLOEXEC)
        try:
            os.write(file, content)
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
        return
    with tempfile.NamedTemporaryFile() as named:
        named.write(content)
        named.flush()
        yield named.name


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__
