"""Authentication over a connection: SaslHandshake (17), SaslAuthenticate (36)."""

from __future__ import annotations

from odradek.protocol.schema import array, binary, int16, int64, string, struct
from odradek.protocol.types import Request


@struct
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Choose a mechanism. Never flexible.

    After v0 the exchange continues in bare frames, after v1 in SaslAuthenticate requests (KIP-152).
    """

    mechanism: str = string()


@struct
class SaslHandshakeResponse:
    """Whether the mechanism is enabled, and which ones are."""

    error_code: int = int16()
    mechanisms: list[str] = array(string)


@struct
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """The client's next bytes of the exchange."""

    auth_bytes: bytes = binary()


@struct
class SaslAuthenticateResponse:
    """The server's next bytes; v1 adds the session lifetime, 0 for none (KIP-368)."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64(since=1, ignorable=True)
