"""SCRAM-SHA-256 and SCRAM-SHA-512 for a server (RFC 5802, RFC 7677), without channel binding.

| state | message | next |
| --- | --- | --- |
| first | client-first: user, nonce, extensions | final, with a challenge |
| final | client-final: nonce of both, proof | authenticated, with the server's signature |
| any | anything else, or a wrong proof | refused |

A user without a credential gets a challenge as everybody else, made from `decoy_key`, and is
refused at the proof: neither the answers nor their time tell which users exist. A broker computes
no PBKDF2: one exchange costs five HMACs and a hash.

The extension `tokenauth=true` (KIP-48) names a delegation token instead of a user:
`find` is told and returns the token's credential with its owner.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from odradek.cluster.metadata.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    salt_of,
)
from odradek.cluster.security.sasl import (
    Authenticated,
    Challenge,
    SaslRefusedError,
    message_text,
    named,
)

_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_VALUE: Final = r"[^\x00,]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<binding>[A-Za-z0-9/+=]+),r=(?P<nonce>{_PRINTABLE})"
    rf"(?:,[A-Za-z]+={_VALUE})*),p=(?P<proof>[A-Za-z0-9/+=]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramIdentity:
    """A credential, and who has authenticated when it is proved."""

    credential: ScramCredential
    name: str
    expires_at_ms: int | None = None


FindIdentity = Callable[[str, bool], ScramIdentity | None]
"""From a user's name, or with True a delegation token's id, to its identity."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What the first message has settled."""

    gs2: str
    bare: str
    challenge: str
    nonce: str
    identity: ScramIdentity
    is_decoy: bool
    is_token: bool


class ScramServer:
    """One exchange. `nonce` is the server's part, printable and random, never used twice."""

    def __init__(
        self, mechanism: ScramMechanism, *, nonce: str, decoy_key: bytes, find: FindIdentity
    ) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._decoy_key = decoy_key
        self._find = find
        self._exchange: _Exchange | None = None
        self._is_over = False

    def respond(self, data: bytes) -> Challenge | Authenticated:
        """Take the client's next message. Raises SaslRefusedError."""
        assert not self._is_over, "a SCRAM exchange was continued after its end"
        self._is_over = True
        text = message_text(data)
        if self._exchange is not None:
            return self._final(text, self._exchange)
        challenge = self._first(text)
        self._is_over = False
        return challenge

    def _first(self, text: str) -> Challenge:
        matched = _CLIENT_FIRST.fullmatch(text)
        if matched is None:
            raise SaslRefusedError("the first SCRAM message is malformed")
        name = _unescaped(matched["name"])
        authzid = matched["authzid"]
        if authzid is not None and _unescaped(authzid) != name:
            raise SaslRefusedError(
                "the client asks for another authorization id than its user name",
                "Authentication failed: Client requested an authorization id that is different"
                " from username",
            )
        extensions = dict(part.split("=", 1) for part in matched["extensions"].split(",") if part)
        is_token = extensions.get("tokenauth", "").lower() == "true"
        identity = self._find(name, is_token)
        is_decoy = identity is None
        identity = identity or self._decoy(name, is_token)
        nonce = matched["nonce"] + self._nonce
        credential = identity.credential
        salt = base64.b64encode(credential.salt).decode()
        challenge = f"r={nonce},s={salt},i={credential.iterations}"
        self._exchange = _Exchange(
            matched["gs2"], matched["bare"], challenge, nonce, identity, is_decoy, is_token
        )
        return Challenge(challenge.encode())

    def _final(self, text: str, exchange: _Exchange) -> Authenticated:
        matched = _CLIENT_FINAL.fullmatch(text)
        if matched is None:
            raise SaslRefusedError("the final SCRAM message is malformed")
        binding, proof = _decoded(matched["binding"]), _decoded(matched["proof"])
        if binding != exchange.gs2.encode():
            raise SaslRefusedError("the channel binding is not that of the first SCRAM message")
        if not hmac.compare_digest(matched["nonce"], exchange.nonce):
            raise SaslRefusedError("the nonce is not that of the SCRAM challenge")
        credential, digest = exchange.identity.credential, self._mechanism.digest
        message = f"{exchange.bare},{exchange.challenge},{matched['unproven']}".encode()
        signature = hmac.digest(credential.stored_key, message, digest)
        if proof is None or len(proof) != len(signature):
            raise SaslRefusedError("the SCRAM proof has the wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(digest, client_key).digest()
        is_proved = hmac.compare_digest(stored_key, credential.stored_key)
        server_signature = hmac.digest(credential.server_key, message, digest)
        name = exchange.identity.name
        if exchange.is_decoy:
            kind = "delegation token" if exchange.is_token else "user"
            raise SaslRefusedError(
                f"no {kind} {named(name)} has a {self._mechanism.sasl_name} credential"
            )
        if not is_proved:
            raise SaslRefusedError(f"the password of {named(name)} is wrong")
        return Authenticated(
            name=name,
            data=b"v=" + base64.b64encode(server_signature),
            expires_at_ms=exchange.identity.expires_at_ms,
            is_token=exchange.is_token,
        )

    def _decoy(self, name: str, is_token: bool) -> ScramIdentity:
        """What an unknown user gets: always the same for one name, as from a real credential."""
        mechanism = self._mechanism

        def derived(part: str) -> bytes:
            return hmac.digest(
                self._decoy_key, f"{part} {mechanism.sasl_name} {name}".encode(), "sha512"
            )

        size = mechanism.digest_bytes
        # Most users have the lowest number, the first of a hardened cluster the highest: neither
        # tells that there is a user. Tokens have the lowest.
        is_strong = not is_token and derived("iterations")[0] & 1
        return ScramIdentity(
            credential=ScramCredential(
                salt_of(derived("salt")),
                derived("stored")[:size],
                derived("server")[:size],
                ITERATIONS_MAX if is_strong else ITERATIONS_MIN,
            ),
            name=name,
        )


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
