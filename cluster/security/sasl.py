"""The server's side of one SASL exchange (RFC 4422), whatever the mechanism.

    client's bytes ──respond──> Challenge | Authenticated | SaslRefusedError

A mechanism is a state machine without I/O, clock and randomness: nonces and credentials are
arguments. After a refusal or a success it must not be used again. A refusal has two texts: one for
the log, and one for the client, which says nothing about which users there are.
"""

from dataclasses import dataclass
from typing import Final, Protocol

MESSAGE_BYTES_MAX: Final = 16 << 10
"""The longest message with a name and a password or a proof. RFC 4616 has 255 octets for each."""
_LOGGED_NAME_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange goes on: bytes for the client, who answers them."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticated:
    """The client is who it says it is: the user `name`.

    `data` are the last bytes for the client. `expires_at_ms` is when the credential expires, in
    milliseconds since the epoch; null if it does not. `is_token` is true for a delegation token:
    `name` is that of its owner.
    """

    name: str
    data: bytes = b""
    expires_at_ms: int | None = None
    is_token: bool = False


class SaslRefusedError(Exception):
    """The exchange failed. `client_text` is what the client may know; null for the general text."""

    def __init__(self, reason: str, client_text: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.client_text = client_text


class SaslServer(Protocol):
    """The server of one exchange."""

    def respond(self, data: bytes) -> Challenge | Authenticated:
        """Take the client's next bytes. Raises SaslRefusedError."""


def general_refusal_text(mechanism: str, *, is_renewal: bool) -> str:
    """What a client is told whose credentials are refused, in Kafka's words."""
    occasion = "re-authentication" if is_renewal else "authentication"
    return (
        f"Authentication failed during {occasion} due to invalid credentials with SASL mechanism"
        f" {mechanism}"
    )


def message_text(data: bytes) -> str:
    """The text of a message. Raises SaslRefusedError if it is too long or not UTF-8."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise SaslRefusedError(f"a SASL message of {len(data)} bytes is too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SaslRefusedError("the SASL message is not UTF-8") from None


def named(name: str) -> str:
    """A name that a stranger gave, for the log: quoted and not too long."""
    return repr(name if len(name) <= _LOGGED_NAME_MAX else f"{name[:_LOGGED_NAME_MAX]}...")
