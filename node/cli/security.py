"""TLS and SASL for the command line's own connections, by librdkafka's properties.

`Security.of` reads the same properties as confluent-kafka, so that all commands connect in the same
way: security.protocol, ssl.* and sasl.* (PLAIN, SCRAM of RFC 5802 and RFC 7677, OAUTHBEARER of RFC
7628). An unknown ssl.* or sasl.* property is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import click

from odradek.node.blocking_client import BlockingClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

Properties: TypeAlias = Mapping[str, str]
Exchange: TypeAlias = Callable[[bytes], bytes]
"""Sends the client's next bytes; the server's answer."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SUPPORTED: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.token.endpoint.url",
    }
)


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are protected; both None for PLAINTEXT."""

    tls: ssl.SSLContext | None = None
    authenticate: Callable[[BlockingClient], None] | None = None

    @staticmethod
    def of(properties: Properties) -> Security:
        """ClickException if a property or a value is not supported."""
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise click.ClickException(
                f"security.protocol={protocol} is not one of {', '.join(PROTOCOLS)}"
            )
        unknown = sorted(
            key for key in properties if key.startswith(("ssl.", "sasl.")) and key not in _SUPPORTED
        )
        if unknown and protocol != "PLAINTEXT":
            raise click.ClickException(f"{unknown[0]} is not supported by this command")
        is_verified = properties.get("enable.ssl.certificate.verification", "true") != "false"
        return Security(
            tls=_tls(properties, is_verified=is_verified) if protocol.endswith("SSL") else None,
            authenticate=_authenticator(properties) if protocol.startswith("SASL") else None,
        )

    def connect(self, host: str, port: int, timeout_s: float) -> BlockingClient:
        """A connection that is ready for requests. Raises OSError, NotABrokerError, ProtocolError,
        and ClickException if the credentials are refused."""
        client = BlockingClient(host, port, timeout_s, tls=self.tls)
        if self.authenticate is not None:
            try:
                self.authenticate(client)
            except BaseException:
                client.close()
                raise
        return client


# -- TLS ------------------------------------------------------------------------------------------


def _tls(properties: Properties, *, is_verified: bool) -> ssl.SSLContext:
    authority, pem = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    try:
        if authority in (None, "", "probe"):
            context = ssl.create_default_context(cadata=pem)
        elif Path(authority or "").is_dir():
            context = ssl.create_default_context(capath=authority)
        else:
            context = ssl.create_default_context(cafile=authority)
        identification = properties.get("ssl.endpoint.identification.algorithm", "https")
        context.check_hostname = is_verified and identification.lower() == "https"
        if not is_verified:
            context.verify_mode = ssl.CERT_NONE
        if ciphers := properties.get("ssl.cipher.suites"):
            context.set_ciphers(ciphers)
        if revoked := properties.get("ssl.crl.location"):
            context.load_verify_locations(revoked)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        with (
            _file_of(properties, "ssl.certificate") as certificate,
            _file_of(properties, "ssl.key") as key,
        ):
            if certificate is not None:
                context.load_cert_chain(certificate, key, properties.get("ssl.key.password"))
    except OSError as error:
        raise click.ClickException(f"the ssl.* properties cannot be used: {error}") from error
    return context


@contextmanager
def _file_of(properties: Properties, name: str) -> Iterator[str | None]:
    """The file named by `<name>.location`, or one with the text of `<name>.pem` meanwhile."""
    text = properties.get(f"{name}.pem")
    if text is None:
        yield properties.get(f"{name}.location")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


# -- SASL -----------------------------------------------------------------------------------------


def _authenticator(properties: Properties) -> Callable[[BlockingClient], None]:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    run = _MECHANISMS.get(mechanism.upper())
    if run is None:
        raise click.ClickException(
            f"sasl.mechanism {mechanism} is not supported by this command: set one of"
            f" {', '.join(_MECHANISMS)}"
        )

    def authenticate(client: BlockingClient) -> None:
        chosen = client.ask(SaslHandshakeRequest(mechanism=mechanism.upper()))
        if chosen.error_code:
            raise click.ClickException(
                f"the broker does not offer sasl.mechanism {mechanism}, but"
                f" {', '.join(chosen.mechanisms) or 'none'}"
            )

        def exchange(data: bytes) -> bytes:
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=data))
            if answer.error_code:
                message = answer.error_message or ErrorCode(answer.error_code).message
                raise click.ClickException(f"SASL authentication failed: {message}")
            return bytes(answer.auth_bytes)

        run(properties, exchange)

    return authenticate


def _credentials(properties: Properties) -> tuple[str, str]:
    username, password = properties.get("sasl.username"), properties.get("sasl.password")
    if username is None or password is None:
        raise click.ClickException("set sasl.username and sasl.password")
    return username, password


def _plain(properties: Properties, exchange: Exchange) -> None:
    """RFC 4616."""
    username, password = _credentials(properties)
    exchange(f"\0{username}\0{password}".encode())


def _scram(name: str) -> Callable[[Properties, Exchange], None]:
    """RFC 5802 without channel binding; the server must prove that it knows the password."""

    def digest(key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, name)

    def run(properties: Properties, exchange: Exchange) -> None:
        username, password = _credentials(properties)
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        nonce = secrets.token_urlsafe(24)
        first = f"n={escaped},r={nonce}"
        challenge = exchange(f"n,,{first}".encode()).decode()
        fields = _scram_fields(challenge)
        if not fields.get("r", "").startswith(nonce) or "s" not in fields or "i" not in fields:
            raise click.ClickException("SASL authentication failed: the challenge is malformed")
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = digest(salted, b"Client Key")
        unproven = f"c=biws,r={fields['r']}"
        message = f"{first},{challenge},{unproven}".encode()
        signature = digest(hashlib.new(name, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        final = exchange(f"{unproven},p={base64.b64encode(proof).decode()}".encode()).decode()
        expected = digest(digest(salted, b"Server Key"), message)
        if base64.b64decode(_scram_fields(final).get("v", "")) != expected:
            raise click.ClickException(
                "SASL authentication failed: the server does not know the password"
            )

    return run


def _scram_fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _oauthbearer(properties: Properties, exchange: Exchange) -> None:
    """RFC 7628. A refusal is a JSON text, to which the client answers with one byte."""
    method = properties.get("sasl.oauthbearer.method", "default").lower()
    token = _oidc_token(properties) if method == "oidc" else _unsecured_token(properties)
    extensions = properties.get("sasl.oauthbearer.extensions", "")
    parts = [f"auth=Bearer {token}", *filter(None, extensions.split(","))]
    refusal = exchange(("n,,\x01" + "\x01".join(parts) + "\x01\x01").encode())
    if refusal:
        exchange(b"\x01")
        raise click.ClickException(f"SASL authentication failed: {refusal.decode()}")


def _oidc_token(properties: Properties) -> str:
    """By the client credentials grant of RFC 6749."""
    try:
        url = properties["sasl.oauthbearer.token.endpoint.url"]
        client = [properties[f"sasl.oauthbearer.client.{part}"] for part in ("id", "secret")]
    except KeyError as error:
        raise click.ClickException(f"set {error.args[0]}") from None
    form = {"grant_type": "client_credentials"}
    if scope := properties.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    basic = base64.b64encode(":".join(client).encode()).decode()
    request = urllib.request.Request(
        url, urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {basic}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["access_token"])
    except (OSError, ValueError, KeyError) as error:
        raise click.ClickException(f"{url} gives no access token: {error}") from error


def _unsecured_token(properties: Properties) -> str:
    """The token that librdkafka makes from sasl.oauthbearer.config; for development only."""
    if properties.get("enable.sasl.oauthbearer.unsecure.jwt", "false") != "true":
        raise click.ClickException(
            "set sasl.oauthbearer.method=oidc, or enable.sasl.oauthbearer.unsecure.jwt=true for"
            " unsecured tokens"
        )
    config = dict(
        pair.split("=", 1)
        for pair in properties.get("sasl.oauthbearer.config", "").split()
        if "=" in pair
    )
    now_s = int(time.time())
    claims: dict[str, object] = {
        config.get("principalClaimName", "sub"): config.get("principal", ""),
        "iat": now_s,
        "exp": now_s + int(config.get("lifeSeconds", "3600")),
    }
    if scope := config.get("scope"):
        claims[config.get("scopeClaimName", "scope")] = scope.split(",")
    parts = ({"alg": "none"}, claims)
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return ".".join(part.decode() for part in encoded) + "."


_MECHANISMS: Final[Mapping[str, Callable[[Properties, Exchange], None]]] = {
    "PLAIN": _plain,
    "SCRAM-SHA-256": _scram("sha256"),
    "SCRAM-SHA-512": _scram("sha512"),
    "OAUTHBEARER": _oauthbearer,
}
