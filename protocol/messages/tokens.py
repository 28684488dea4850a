"""Delegation tokens (KIP-48): CreateDelegationToken (38), RenewDelegationToken (39),
ExpireDelegationToken (40), DescribeDelegationToken (41).
"""

from __future__ import annotations

from odradek.protocol.schema import array, binary, int16, int32, int64, string, struct
from odradek.protocol.types import Request


@struct
class TokenPrincipal:
    """The owner of a token, or a principal that may renew it."""

    principal_type: str = string()
    principal_name: str = string()


@struct
class CreateDelegationTokenRequest(Request["CreateDelegationTokenResponse"]):
    """Create a token; v3 can name another owner, null is the requester (KIP-373)."""

    owner_principal_type: str | None = string(nullable_since=0, since=3)
    owner_principal_name: str | None = string(nullable_since=0, since=3)
    renewers: list[TokenPrincipal] = array(TokenPrincipal)
    max_lifetime_ms: int = int64()


@struct
class CreateDelegationTokenResponse:
    """The token's id and secret; v3 adds the requester."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3, ignorable=True)
    token_requester_principal_name: str = string(since=3, ignorable=True)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    throttle_time_ms: int = int32()


@struct
class RenewDelegationTokenRequest(Request["RenewDelegationTokenResponse"]):
    """Extend the token's lifetime, up to its maximum."""

    hmac: bytes = binary()
    renew_period_ms: int = int64()


@struct
class RenewDelegationTokenResponse:
    """The new expiry time."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@struct
class ExpireDelegationTokenRequest(Request["ExpireDelegationTokenResponse"]):
    """Shorten the token's lifetime; a negative period expires it now."""

    hmac: bytes = binary()
    expiry_time_period_ms: int = int64()


@struct
class ExpireDelegationTokenResponse:
    """The new expiry time."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@struct
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    """List the tokens of these owners. Null means all."""

    owners: list[TokenPrincipal] | None = array(TokenPrincipal, nullable_since=0)


@struct
class DescribedDelegationToken:
    """A token; v3 adds the requester."""

    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3, ignorable=True)
    token_requester_principal_name: str = string(since=3, ignorable=True)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    renewers: list[TokenPrincipal] = array(TokenPrincipal)


@struct
class DescribeDelegationTokenResponse:
    """The tokens that the client may describe."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
