"""PLAIN for a server (RFC 4616): user name and password in one message.

The password travels as it is, so a listener that offers PLAIN needs TLS wherever others can listen.
Passwords are compared in constant time, and for an unknown user as well.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from odradek.cluster.security.sasl import Authenticated, SaslRefusedError, message_text, named

PLAIN: Final = "PLAIN"
_REFUSED: Final = "Authentication failed: Invalid username or password"


class PlainServer:
    """One exchange. `passwords` are those of the users of this listener, by name."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def respond(self, data: bytes) -> Authenticated:
        """Take the client's only message. Raises SaslRefusedError, with Kafka's texts."""
        parts = message_text(data).split("\0")
        if len(parts) != 3:
            raise SaslRefusedError(
                f"the PLAIN message has {len(parts)} parts",
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}",
            )
        authorization_id, name, password = parts
        for what, text in (("username", name), ("password", password)):
            if not text:
                raise SaslRefusedError(
                    f"no {what} was given", f"Authentication failed: {what} not specified"
                )
        expected = self._passwords.get(name)
        is_right = hmac.compare_digest(_digest(password), _digest(expected or ""))
        if expected is None:
            raise SaslRefusedError(f"there is no user {named(name)}", _REFUSED)
        if not is_right:
            raise SaslRefusedError(f"the password of {named(name)} is wrong", _REFUSED)
        if authorization_id not in ("", name):
            raise SaslRefusedError(
                f"{named(name)} asks for another authorization id",
                "Authentication failed: Client requested an authorization id that is different"
                " from username",
            )
        return Authenticated(name=name)


def _digest(password: str) -> bytes:
    # Hashes are of one length: the time of the comparison tells nothing about a password's.
    return hashlib.sha256(password.encode()).digest()
