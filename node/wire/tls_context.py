"""From a listener's settings to what OpenSSL needs, and how that is replaced while the broker runs.

`TlsListener` is one listener's TLS: new connections take what is current, and those that are open
keep what they began with. One invariant: a store that cannot be used never replaces one that can.
Called by the router's process: when it starts, when the configuration changes, and every
`RELOAD_S` to see whether a file has changed.
"""

import os
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from odradek.cluster.metadata.tls_settings import PROTOCOLS, TlsSettings
from odradek.cluster.security.certificates import CertificateFacts, read_certificate
from odradek.node.structured_log import get_logger
from odradek.node.wire.key_stores import KeyStoreError, load_key_store, load_trust_store

log = get_logger(__name__)

RELOAD_S: Final = 5.0
_VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

FileStamps = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsContext:
    """What the connections of a listener begin with, and the facts of the broker's certificate."""

    context: ssl.SSLContext
    settings: TlsSettings
    certificate: CertificateFacts
    files: FileStamps
    """Of the files, before they were read."""


def make_tls_context(settings: TlsSettings) -> TlsContext:
    """Read the stores. Raises KeyStoreError with a text for the operator."""
    files = file_stamps(settings)
    store = load_key_store(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _set_versions_and_ciphers(context, settings)
    store.load_into(context)
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, load_trust_store(settings))
    try:
        certificate = read_certificate(store.certificate)
    except ValueError as error:
        raise KeyStoreError(f"the broker's certificate cannot be read: {error}") from error
    return TlsContext(context, settings, certificate, files)


def file_stamps(settings: TlsSettings) -> FileStamps:
    """What changes when one of the files does."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in (settings.ssl_keystore_location, settings.ssl_truststore_location):
        try:
            status = None if path is None else os.stat(path)
        except OSError:
            status = None
        if status is None:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


class TlsListener:
    """The TLS of one listener, as it is now; `replace` changes it for later connections."""

    __slots__ = ("_failed", "current", "failure_count", "name", "problem", "reload_count")

    def __init__(self, name: str, current: TlsContext | None = None) -> None:
        self.name = name
        self.current = current
        """None: there are no stores that can be used, and nobody is accepted."""
        self.problem = ""
        """Why the newest settings or files are not in use; empty: they are."""
        self.reload_count = self.failure_count = 0
        self._failed: tuple[TlsSettings, FileStamps] | None = None

    def is_outdated(self, settings: TlsSettings) -> bool:
        """Whether settings or files differ from what was read or tried last. Reads the disk."""
        current = self.current
        known = None if current is None else (current.settings, current.files)
        found = (settings, file_stamps(settings))
        return found not in (known, self._failed)

    def check(self, settings: TlsSettings) -> TlsContext:
        """What these settings would give. Raises KeyStoreError if they cannot replace the current
        ones. Changes nothing, and may be called in a thread."""
        fresh = make_tls_context(settings)
        if self.current is not None:
            check_replacement(self.current.certificate, fresh.certificate, settings, time.time())
        return fresh

    def replace(self, fresh: TlsContext) -> None:
        """Use it for connections that begin from now on."""
        before, self.current = self.current, fresh
        is_other = before is None or fresh.certificate != before.certificate
        self.problem = ""
        self._failed = None
        self.reload_count += 1
        log.info(
            "new TLS settings are in use",
            listener=self.name,
            certificate=str(fresh.certificate.subject) if is_other else "the former one",
        )

    def refuse(self, settings: TlsSettings, files: FileStamps, error: KeyStoreError) -> None:
        """The newest settings or files cannot be used: the current ones stay. Logged once."""
        self.problem = str(error)
        self._failed = (settings, files)
        self.failure_count += 1
        log.error(
            "new TLS settings cannot be used",
            listener=self.name,
            reason=str(error),
            action="the listener accepts nobody until they can be"
            if self.current is None
            else "the former TLS settings stay in use",
        )

    def open(self, settings: TlsSettings) -> None:
        """Begin with these settings, or without any if they cannot be used."""
        files = file_stamps(settings)
        try:
            self.current = make_tls_context(settings)
        except KeyStoreError as error:
            self.refuse(settings, files, error)

    def follow(self, settings: TlsSettings) -> None:
        """Use the settings and files as they are now, if they can be used."""
        files = file_stamps(settings)
        try:
            self.replace(self.check(settings))
        except KeyStoreError as error:
            self.refuse(settings, files, error)

    def seconds_left(self, now_s: float) -> float | None:
        """Until the certificate expires; negative: since it has; None if there is none."""
        return None if self.current is None else self.current.certificate.not_after_s - now_s


def check_replacement(
    old: CertificateFacts, new: CertificateFacts, settings: TlsSettings, now_s: float
) -> None:
    """KeyStoreError unless the new certificate may replace the old one. The first two texts are
    Kafka's (KIP-978): clients that know the broker's old names must still accept it."""
    if not settings.ssl_allow_dn_changes and old.subject != new.subject:
        raise KeyStoreError(
            f"Keystore DistinguishedName does not match: existing={old.subject},"
            f" new={new.subject}. Set ssl.allow.dn.changes=true if that is meant."
        )
    if not settings.ssl_allow_san_changes and not old.alternative_names <= new.alternative_names:
        raise KeyStoreError(
            "Keystore SubjectAltNames do not match: the new certificate lacks"
            f" {_readable(old.alternative_names - new.alternative_names)}. Set"
            " ssl.allow.san.changes=true if that is meant."
        )
    if new.not_after_s < now_s <= old.not_after_s:
        raise KeyStoreError("the new certificate has expired")


def _readable(names: Iterable[bytes]) -> str:
    return ", ".join(sorted(repr(name[2:])[2:-1] for name in names))


def _trust(context: ssl.SSLContext, authorities: str | None) -> None:
    # As in Java, any certificate of a trust store is trusted, not only self-signed ones.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if authorities is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise KeyStoreError(f"the trust store cannot be used: {error.reason}") from error


def _set_versions_and_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    newest = settings.ssl_protocol if settings.ssl_protocol in PROTOCOLS else PROTOCOLS[-1]
    named = [openssl_cipher(name) for name in settings.ssl_cipher_suites]
    older = [name for name in named if not name.startswith("TLS_")]
    versions = []
    for version in PROTOCOLS[: PROTOCOLS.index(newest) + 1]:
        has_cipher = not named or (bool(older) if version == "TLSv1.2" else len(older) < len(named))
        if version in settings.ssl_enabled_protocols and has_cipher:
            versions.append(version)
    if not versions:
        raise KeyStoreError(
            "no version of TLS is left by ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites"
        )
    context.minimum_version = _VERSIONS[versions[0]]
    context.maximum_version = _VERSIONS[versions[-1]]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError as error:
            raise KeyStoreError("ssl.cipher.suites names no cipher suite of OpenSSL") from error


def openssl_cipher(name: str) -> str:
    """OpenSSL's name of a cipher suite, from its name in TLS, as Java writes it, or its own. Those
    of TLS 1.3 have one name."""
    key_exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = cipher.replace("AES_", "AES").replace("CAMELLIA_", "CAMELLIA")
    cipher = cipher.replace("_CBC_", "_").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    prefix = "" if key_exchange == "RSA" else f"{key_exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")
