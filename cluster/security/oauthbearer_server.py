"""OAUTHBEARER for a server (RFC 7628, KIP-255): the client sends an access token.

| state | message | next |
| --- | --- | --- |
| first | a token that is valid | authenticated |
| first | a token that is not | failed, with a JSON text as the challenge |
| failed | one byte 0x01 | refused |
| any | anything else | refused |
"""

import re
from collections.abc import Callable
from typing import Final

from odradek.cluster.security.access_token import TokenRefusedError, VerifiedToken
from odradek.cluster.security.sasl import Authenticated, Challenge, SaslRefusedError, named

OAUTHBEARER: Final = "OAUTHBEARER"
FAILURE: Final = b'{"status":"invalid_token"}'
_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_MESSAGE: Final = re.compile(
    rf"[ny],(?:a=(?P<authzid>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTHORIZATION: Final = re.compile(r"(?i:bearer) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_AUTHORIZATION_ID_MAX: Final = 1_000


class OAuthBearerServer:
    """One exchange. `verify` takes the token; it may raise TokenRefusedError, and
    UnknownTokenKeyError, which passes through `respond`: with new keys the same message can be
    given again."""

    def __init__(self, verify: Callable[[str], VerifiedToken]) -> None:
        self._verify = verify
        self._fault: str | None = None

    def respond(self, data: bytes) -> Challenge | Authenticated:
        """Take the client's message. Raises SaslRefusedError."""
        if self._fault is not None:
            raise SaslRefusedError(f"the access token: {self._fault}", FAILURE.decode())
        token, authorization_id = _parse(data)
        try:
            verified = self._verify(token)
        except TokenRefusedError as error:
            self._fault = str(error)
            return Challenge(FAILURE)
        if authorization_id not in ("", verified.name):
            raise SaslRefusedError(
                f"{named(verified.name)} asks for another authorization id",
                "Authentication failed: Client requested an authorization id that is different"
                " from the token's principal name",
            )
        return Authenticated(name=verified.name, expires_at_ms=verified.expires_at_ms)


def _parse(data: bytes) -> tuple[str, str]:
    """The token and the authorization id, empty for none."""
    try:
        matched = _MESSAGE.fullmatch(data.decode())
    except UnicodeDecodeError:
        matched = None
    if matched is None or len(matched["authzid"] or "") > _AUTHORIZATION_ID_MAX:
        raise SaslRefusedError("the OAUTHBEARER message is malformed")
    pairs = dict(part.split("=", 1) for part in matched["pairs"].split("\x01") if part)
    authorization = _AUTHORIZATION.fullmatch(pairs.get("auth", ""))
    if authorization is None:
        raise SaslRefusedError("the OAUTHBEARER message has no bearer token")
    return authorization["token"], (matched["authzid"] or "").replace("=2C", ",").replace(
        "=3D", "="
    )
