"""Delegation tokens: what is found by an HMAC, and what a secret key is worth."""

import base64
import hashlib
import hmac

from odradek.cluster.metadata.delegation_tokens import (
    DelegationTokensImage,
    hmac_digest,
    token_credentials,
    token_hmac,
    token_password,
)
from odradek.cluster.metadata.scram import ScramMechanism, credential_of, salted_password
from tests.support.token_samples import SALTS, SECRET_KEY, token_of


def test_the_hmac_is_that_of_kafka() -> None:
    """HmacSHA512 of the token's id; the password is its base64 (KIP-48)."""
    expected = hmac.new(SECRET_KEY.encode(), b"token-1", hashlib.sha512).digest()
    assert token_hmac(SECRET_KEY, "token-1") == expected
    assert token_password(expected) == base64.b64encode(expected).decode()


def test_the_credentials_prove_the_password() -> None:
    token = token_of()
    password = token_password(token_hmac(SECRET_KEY, "token-1"))
    for mechanism, salt in zip(ScramMechanism, SALTS, strict=True):
        salted = salted_password(mechanism, password, salt, 4096)
        assert token.credential(mechanism) == credential_of(mechanism, salted, salt, 4096)


def test_a_token_is_worth_nothing_with_another_key_or_none() -> None:
    token = token_of()
    assert token.is_of(SECRET_KEY)
    assert not token.is_of("another key")
    assert not token.is_of("")
    assert not token.is_of(None)


def test_a_token_is_found_by_its_hmac() -> None:
    tokens = DelegationTokensImage({each: token_of(each) for each in ("a", "b")})
    digest = hmac_digest(token_hmac(SECRET_KEY, "b"))
    assert tokens.with_digest(digest) is tokens["b"]
    assert tokens.with_digest(hmac_digest(b"other")) is None
    assert (len(tokens), sorted(tokens)) == (2, ["a", "b"])


def test_who_may_change_a_token_and_whose_it_is() -> None:
    token = token_of(owner="User:carol", requester="User:admin", renewers=("User:bob",))
    assert token.may_change("User:carol")
    assert token.may_change("User:bob")
    assert not token.may_change("User:admin")
    assert set(token.concerned) == {"User:carol", "User:admin", "User:bob"}


def test_a_token_expires_after_its_end_or_its_longest_life() -> None:
    token = token_of(expiry_ms=10, max_ms=20)
    assert not token.is_expired(10)
    assert token.is_expired(11)
    assert token_of(expiry_ms=20, max_ms=10).is_expired(11)


def test_no_text_of_a_token_has_its_keys() -> None:
    token = token_of()
    for credential in token_credentials(token_hmac(SECRET_KEY, "token-1"), SALTS):
        assert repr(credential.stored_key) not in repr(token)
        assert repr(credential.server_key) not in repr(token)
