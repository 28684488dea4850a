"""Delegation tokens for tests."""

from typing import Final

from odradek.cluster.metadata.delegation_tokens import (
    DelegationToken,
    hmac_digest,
    token_credentials,
    token_hmac,
)

SECRET_KEY: Final = "a secret key"
SALTS: Final = (b"0123456789abcdefghijklmnop", b"ponmlkjihgfedcba9876543210")


def token_of(
    token_id: str = "token-1",
    *,
    owner: str = "User:alice",
    requester: str = "User:alice",
    renewers: tuple[str, ...] = (),
    issue_ms: int = 0,
    max_ms: int = 0,
    expiry_ms: int = 0,
    secret_key: str = SECRET_KEY,
) -> DelegationToken:
    """A token made with that key, with the credentials that belong to it."""
    token_mac = token_hmac(secret_key, token_id)
    return DelegationToken(
        token_id=token_id,
        owner=owner,
        requester=requester,
        renewers=renewers,
        issue_ms=issue_ms,
        max_ms=max_ms,
        expiry_ms=expiry_ms,
        hmac_digest=hmac_digest(token_mac),
        credentials=token_credentials(token_mac, SALTS),
    )
