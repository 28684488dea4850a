"""How a connection is secured, read from Kafka's own option names.

Spark's jobs give them with the prefix "kafka.", which is cut off before. Java's spelling
(`sasl.jaas.config`, `ssl.truststore.location`) and librdkafka's (`sasl.username`,
`ssl.ca.location`) are both understood; key stores and trust stores have to be PEM.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from odradek.pipeline.errors import PipelineError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_JAAS_OPTION: Final = re.compile(
    r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class WireSecurity:
    """What it takes to connect. Empty texts mean: not given."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    """Certificates that are trusted, in PEM; without it those of the system."""
    certificate_file: str = ""
    """The client's certificate with its chain, in PEM."""
    key_file: str = ""
    """Its key, in PEM; empty if it stands in the certificate's file."""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    token: Callable[[], str] | None = None
    """Gives an access token of OAUTHBEARER whenever a connection is authenticated."""

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated by SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext:
        """The context of TLS connections. Raises PipelineError if a file cannot be used."""
        try:
            # With a file, only what is in it is trusted, as with Java's trust store.
            context = ssl.create_default_context(cafile=self.ca_file or None)
            context.check_hostname = self.check_hostname
            if self.certificate_file:
                context.load_cert_chain(
                    self.certificate_file, self.key_file or None, self.key_password or None
                )
        except (OSError, ValueError) as error:
            files = ", ".join(
                name for name in (self.ca_file, self.certificate_file, self.key_file) if name
            )
            raise PipelineError(
                f"TLS cannot use the files {files}: {error}. They have to be readable PEM files."
            ) from error
        return context


def wire_security(options: Mapping[str, str]) -> WireSecurity:
    """The security of Kafka's options, without their prefix "kafka.". Unknown ones are left alone.

    Raises PipelineError if they contradict each other, or ask for what is not supported.
    """
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise PipelineError(
            f"security.protocol is {protocol!r}. Set one of {', '.join(PROTOCOLS)}."
        )
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = options.get(f"{store}.type", "PEM").upper()
        if kind != "PEM" and options.get(f"{store}.location"):
            raise PipelineError(
                f"{store}.type is {kind}. Convert the store to PEM, and set {store}.type=PEM."
            )
    identification = options.get("ssl.endpoint.identification.algorithm", "https").lower()
    security = WireSecurity(
        protocol=protocol,
        ca_file=options.get("ssl.truststore.location") or options.get("ssl.ca.location", ""),
        certificate_file=options.get("ssl.keystore.location")
        or options.get("ssl.certificate.location", ""),
        key_file=options.get("ssl.key.location", ""),
        key_password=options.get("ssl.key.password", ""),
        check_hostname=identification not in ("", "none"),
    )
    for name in (security.ca_file, security.certificate_file, security.key_file):
        if name and not Path(name).is_file():
            raise PipelineError(f"There is no file {name}. Correct the path of the TLS options.")
    return _with_credentials(security, options) if security.uses_sasl else security


def _with_credentials(security: WireSecurity, options: Mapping[str, str]) -> WireSecurity:
    # Kafka's default is GSSAPI, which is not here: a name that is missing is told as such.
    mechanism = (options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "").upper()
    if mechanism not in MECHANISMS:
        raise PipelineError(f"sasl.mechanism is {mechanism!r}. Set one of {', '.join(MECHANISMS)}.")
    jaas = _jaas_options(options.get("sasl.jaas.config", ""))
    if mechanism == "OAUTHBEARER":
        token = _token_of(options)
        return replace(security, mechanism=mechanism, token=token)
    username = options.get("sasl.username") or jaas.get("username", "")
    password = options.get("sasl.password") or jaas.get("password", "")
    if not username or not password:
        raise PipelineError(
            f"{mechanism} needs a user and a password. "
            "Set sasl.username and sasl.password, or both in sasl.jaas.config."
        )
    return replace(security, mechanism=mechanism, username=username, password=password)


def _jaas_options(config: str) -> dict[str, str]:
    """The options of a login module: `PlainLoginModule required username="..." password="...";`."""
    found = {}
    for name, double, single, bare in _JAAS_OPTION.findall(config):
        found[name] = _ESCAPED.sub(r"\1", double or single) or bare
    return found


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The access token that stands in a file, which whoever issues tokens replaces."""

    path: str

    def __call__(self) -> str:
        """The token as it is now."""
        try:
            return Path(self.path).read_text().strip()
        except OSError as error:
            raise PipelineError(
                f"The access token {self.path} cannot be read: {error.strerror}."
            ) from error


def _token_of(options: Mapping[str, str]) -> TokenFile | None:
    """KIP-768's file of a token; without one, the caller sets WireSecurity.token."""
    url = urlsplit(options.get("sasl.oauthbearer.token.endpoint.url", ""))
    if url.scheme and url.scheme != "file":
        raise PipelineError(
            "sasl.oauthbearer.token.endpoint.url is no file. "
            "Let what issues tokens write them into one, and set file:///its/path."
        )
    return TokenFile(unquote(url.path)) if url.path else None
