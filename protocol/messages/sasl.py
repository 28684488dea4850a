"""Authentication over a connection: SaslHandshake (17), SaslAuthenticate (36)."""

from __future__ import annotations

from protocol.schema import array, binary, int16, int64, string, struct


@struct
class SaslHandshakeRequest:
    mechanism: str = string()


@struct
class SaslHandshakeResponse:
    error_code: int = int16()
    mechanisms: list[str] = array(string)


@struct
class SaslAuthenticateRequest:
    auth_bytes: bytes = binary()


@struct
class SaslAuthenticateResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64(since=1, ignorable=True)
