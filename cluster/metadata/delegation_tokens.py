"""Delegation tokens as the metadata has them (KIP-48): who may authenticate as whom, until when.

A token is an id and an HMAC: the id signed with delegation.token.secret.key, which all brokers have
and the metadata has not. The HMAC in base64 is a password for SCRAM, so its SCRAM credentials are
part of the token, as those of a user are (`scram`). The HMAC itself is in no log: `hmac_digest`
finds a token by it, and tells whether a broker's secret key is the one that the token was made
with. With another key, the tokens of the old one are worth nothing. Pure.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from odradek.cluster.metadata.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)


class DelegationToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token. Principals are as in User:name, times in milliseconds since the epoch.

    A client that has the token is its `owner`; `requester` has created it. It is valid until
    `expiry_ms`, which the owner and the renewers may move, at most to `max_ms`. `credentials` are
    in the order of `ScramMechanism`. The struct travels inside records: fields may only be added at
    the end, with a default.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int
    hmac_digest: bytes
    credentials: tuple[ScramCredential, ...]

    def is_expired(self, now_ms: int) -> bool:
        """Whether nobody can authenticate with it any more, or renew it."""
        return min(self.expiry_ms, self.max_ms) < now_ms

    def may_change(self, principal: str) -> bool:
        """Whether the principal may renew and expire it."""
        return principal == self.owner or principal in self.renewers

    @property
    def concerned(self) -> tuple[str, ...]:
        """Whose own the token is: to describe it they need no right."""
        return self.owner, self.requester, *self.renewers

    def credential(self, mechanism: ScramMechanism) -> ScramCredential:
        """What proves the HMAC with that mechanism."""
        return self.credentials[mechanism - 1]

    def is_of(self, secret_key: str | None) -> bool:
        """Whether the token was made with this secret key."""
        if not secret_key:
            return False
        own = hmac_digest(token_hmac(secret_key, self.token_id))
        return hmac.compare_digest(own, self.hmac_digest)


class DelegationTokensImage(Mapping[str, DelegationToken]):
    """All tokens by id."""

    __slots__ = ("_by_digest", "_by_id")

    def __init__(self, by_id: Mapping[str, DelegationToken]) -> None:
        self._by_id = by_id
        self._by_digest: dict[bytes, DelegationToken] | None = None

    def __getitem__(self, token_id: str) -> DelegationToken:
        return self._by_id[token_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def with_digest(self, digest: bytes) -> DelegationToken | None:
        """The token whose HMAC has this digest, or None."""
        if self._by_digest is None:
            self._by_digest = {token.hmac_digest: token for token in self._by_id.values()}
        return self._by_digest.get(digest)


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """The HMAC of a token, 64 bytes: a secret."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def token_password(token_mac: bytes) -> str:
    """The password with which a client authenticates that has the token."""
    return base64.b64encode(token_mac).decode()


def hmac_digest(token_mac: bytes) -> bytes:
    """What finds a token by its HMAC. It does not tell the HMAC."""
    return hashlib.sha256(token_mac).digest()


def token_credentials(token_mac: bytes, salts: Sequence[bytes]) -> tuple[ScramCredential, ...]:
    """The SCRAM credentials of a token, with one salt for each mechanism, in their order.

    Takes about ten milliseconds (PBKDF2): not for an event loop.
    """
    password = token_password(token_mac)
    return tuple(
        credential_of(
            mechanism,
            salted_password(mechanism, password, salt, ITERATIONS_MIN),
            salt,
            ITERATIONS_MIN,
        )
        for mechanism, salt in zip(ScramMechanism, salts, strict=True)
    )
