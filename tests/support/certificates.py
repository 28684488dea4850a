"""Certificates for tests, made by trustme: an authority, and what it signs, as files in PEM."""

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)


class TestAuthority:
    """A certificate authority with a folder of its own."""

    __test__ = False

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._authority = trustme.CA(organization_name=name)
        self.certificate = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.certificate))

    def issue(
        self,
        file: str,
        *names: str,
        common_name: str | None = "broker",
        valid_s: float = 90 * 86_400.0,
    ) -> Path:
        """A private key and a certificate in one file; without names: localhost and 127.0.0.1."""
        leaf = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            common_name=common_name,
            organization_name="odradek",
            organization_unit_name="tests",
            not_before=datetime.now(UTC) - timedelta(days=1),
            not_after=datetime.now(UTC) + timedelta(seconds=valid_s),
        )
        path = self.folder / file
        # Java reads keys in PKCS#8 only.
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        path.write_bytes(key + b"".join(each.bytes() for each in leaf.cert_chain_pems))
        return path


def as_pkcs12(pem: Path, target: Path, password: str, *authorities: Path) -> Path:
    """A PKCS#12 store with the key and certificate of a file, and these authorities."""
    content = pem.read_bytes()
    data = pkcs12.serialize_key_and_certificates(
        b"broker",
        load_pem_private_key(content, None),  # type: ignore[arg-type]  # a key of trustme
        x509.load_pem_x509_certificates(content)[0],
        [x509.load_pem_x509_certificate(each.read_bytes()) for each in authorities],
        BestAvailableEncryption(password.encode()),
    )
    target.write_bytes(data)
    return target


def as_trust_store(target: Path, password: str, *authorities: Path) -> Path:
    """A PKCS#12 store with certificates only, as keytool -importcert makes it."""
    data = pkcs12.serialize_java_truststore(
        [
            pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(each.read_bytes()), b"ca")
            for each in authorities
        ],
        BestAvailableEncryption(password.encode()),
    )
    target.write_bytes(data)
    return target


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
