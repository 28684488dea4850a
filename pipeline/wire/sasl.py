"""The client's side of SASL: what it sends to authenticate, for each mechanism that Kafka has.

An exchange gives the first bytes, and then the answer to each of the server's. It is over when it
gives None. It raises PipelineError if the server refuses, or cannot prove that it knows the user.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.security import WireSecurity

Exchange = Generator[bytes, bytes, None]
"""Gives what the client sends, is sent what the server answers."""

ITERATIONS_MIN: Final = 4096
"""RFC 5802 and 7677: fewer would make a stolen exchange cheap to guess from."""
ITERATIONS_MAX: Final = 1_000_000
_NONCE_BYTES: Final = 24


def sasl_exchange(security: WireSecurity) -> Exchange:
    """The exchange of the mechanism, not started."""
    if security.mechanism == "PLAIN":
        return _plain(security)
    if security.mechanism == "OAUTHBEARER":
        return _bearer(security)
    algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}.get(security.mechanism)
    if algorithm is None:
        raise PipelineError(f"The SASL mechanism {security.mechanism!r} is not supported.")
    return _scram(security, algorithm)


def _plain(security: WireSecurity) -> Exchange:
    yield f"\0{security.username}\0{security.password}".encode()


def _bearer(security: WireSecurity) -> Exchange:
    if security.token is None:
        raise PipelineError(
            "OAUTHBEARER needs an access token. Set sasl.oauthbearer.token.endpoint.url to the "
            "file:// that holds it."
        )
    refusal = yield f"n,,\x01auth=Bearer {security.token()}\x01\x01".encode()
    if refusal:
        # RFC 7628: the server tells why as JSON, and ends the exchange after this byte.
        yield b"\x01"
        raise PipelineError(f"The access token was refused: {refusal.decode(errors='replace')}")


def _scram(security: WireSecurity, algorithm: str) -> Exchange:
    """RFC 5802 without channel binding."""
    user = security.username.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    client_first = f"n={user},r={nonce}"
    server_first = (yield f"n,,{client_first}".encode()).decode(errors="replace")
    challenge = _attributes(server_first)
    try:
        salt = base64.b64decode(challenge["s"], validate=True)
        iterations = int(challenge["i"])
        server_nonce = challenge["r"]
    except (KeyError, ValueError):
        raise PipelineError(f"The broker does not speak {security.mechanism}.") from None
    if not server_nonce.startswith(nonce) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise PipelineError(
            f"The broker's challenge of {security.mechanism} is not safe to answer "
            f"({iterations} iterations)."
        )
    salted = hashlib.pbkdf2_hmac(algorithm, security.password.encode(), salt, iterations)
    without_proof = f"c=biws,r={server_nonce}"
    signed = f"{client_first},{server_first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    signature = hmac.digest(stored_key, signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    verifier = _attributes(final.decode(errors="replace")).get("v", "")
    if not hmac.compare_digest(verifier.encode(), base64.b64encode(expected)):
        raise PipelineError(
            f"The broker could not prove that it knows the password of {security.username!r}."
        )


def _attributes(message: str) -> dict[str, str]:
    """`r=...,s=...,i=...`"""
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}
