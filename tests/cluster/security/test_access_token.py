"""Access tokens: what is accepted, and everything that must not be."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.security.access_token import (
    KEYS_MAX,
    TokenRefusedError,
    TokenRules,
    UnknownTokenKeyError,
    VerifiedToken,
    keys_of,
    unsecured_token,
    verify_token,
)

NOW_S = 1_800_000_000.0
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_JWK = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key())) | {"kid": "rsa"}
EC_JWK = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY.public_key())) | {"kid": "ec"}
KEYS = keys_of(json.dumps({"keys": [RSA_JWK, EC_JWK]}).encode())
CLAIMS = {"sub": "alice", "iat": NOW_S - 100, "exp": NOW_S + 60}


def token(
    claims: Mapping[str, Any] = CLAIMS,
    *,
    key: Any = RSA_KEY,  # noqa: ANN401  # what PyJWT takes
    algorithm: str = "RS256",
    kid: str | None = "rsa",
) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(dict(claims), key, algorithm=algorithm, headers=headers)


def verified(text: str, rules: TokenRules | None = None) -> VerifiedToken:
    return verify_token(text, KEYS, rules or TokenRules(), NOW_S)


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS384"])
def test_a_signed_token_names_its_bearer(algorithm: str) -> None:
    expected = VerifiedToken(name="alice", expires_at_ms=int(NOW_S + 60) * 1000)
    assert verified(token(algorithm=algorithm)) == expected
    assert verified(token(key=EC_KEY, algorithm="ES256", kid="ec")) == expected
    assert verified(token(kid=None)) == expected


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"exp": NOW_S - 31}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": 1e300}, "exp"),
        ({"iat": None}, "iat"),
        ({"iat": NOW_S + 61}, "iat"),
        ({"nbf": NOW_S + 31}, "nbf"),
        ({"sub": None}, "claim sub"),
        ({"sub": " "}, "claim sub"),
        ({"sub": 7}, "claim sub"),
        ({"aud": "kafka"}, "audience"),
        ({"scope": ["read", ""]}, "scope"),
        ({"scope": 7}, "scope"),
    ],
)
def test_a_token_with_wrong_claims_is_refused(changes: dict[str, Any], fault: str) -> None:
    claims = {k: v for k, v in {**CLAIMS, **changes}.items() if v is not None}
    with pytest.raises(TokenRefusedError, match=fault):
        verified(token(claims))


@pytest.mark.parametrize("changes", [{"exp": NOW_S - 29}, {"nbf": NOW_S + 29}])
def test_clocks_may_differ_a_little(changes: dict[str, Any]) -> None:
    assert verified(token({**CLAIMS, **changes})).name == "alice"


def test_audience_issuer_and_claims_are_those_of_the_rules() -> None:
    rules = TokenRules(
        expected_audiences=("kafka", "other"), expected_issuer="https://issuer", sub_claim="email"
    )
    claims = {**CLAIMS, "aud": ["x", "kafka"], "iss": "https://issuer", "email": "a@example.com"}
    assert verified(token(claims), rules).name == "a@example.com"
    wrong: list[dict[str, Any]] = [{"aud": "x"}, {"aud": []}, {"iss": "x"}, {"email": ""}]
    for changes in wrong:
        with pytest.raises(TokenRefusedError):
            verified(token({**claims, **changes}), rules)


def test_a_token_of_another_key_is_refused() -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(TokenRefusedError, match=r"[Ss]ignature"):
        verified(token(key=stranger))
    with pytest.raises(UnknownTokenKeyError):
        verified(token(kid="new"))


def test_a_public_key_is_no_shared_secret() -> None:
    """The classic attack: HS256 with the public key as the secret."""
    body = token().rpartition(".")[0].partition(".")[2]
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').rstrip(b"=").decode()
    with pytest.raises(TokenRefusedError, match="algorithm"):
        verified(f"{header}.{body}.{'A' * 43}")


def test_an_unsigned_token_is_refused_unless_unsecured_tokens_are_served() -> None:
    text = jwt.encode(CLAIMS, "", algorithm="none")
    with pytest.raises(TokenRefusedError):
        verified(text)
    assert unsecured_token(text, TokenRules(), NOW_S).name == "alice"
    for wrong in (token(), text + "A", "a.b.", "a", ""):
        with pytest.raises(TokenRefusedError):
            unsecured_token(wrong, TokenRules(), NOW_S)


@pytest.mark.parametrize(
    ("times", "is_valid"),
    [
        # As Kafka 4.3.1 answered. Seconds from now; without a skew.
        ({"exp": 100, "iat": -100}, True),
        ({"exp": -5, "iat": -100}, False),
        ({"exp": 100, "iat": 20}, False),
        ({"exp": 100, "iat": -10, "nbf": 50}, True),
        ({"exp": 100}, True),
    ],
)
def test_times_of_an_unsecured_token(times: dict[str, int], is_valid: bool) -> None:
    claims = {"sub": "alice", **{name: NOW_S + value for name, value in times.items()}}
    text = jwt.encode(claims, "", algorithm="none")
    rules = TokenRules(clock_skew_s=0)
    if is_valid:
        assert unsecured_token(text, rules, NOW_S).name == "alice"
    else:
        with pytest.raises(TokenRefusedError):
            unsecured_token(text, rules, NOW_S)


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": {}}', b"[" * 10_000])
def test_what_is_no_key_set(document: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        keys_of(document)


def test_keys_that_cannot_verify_signatures_are_left_out() -> None:
    others = [
        {**RSA_JWK, "use": "enc"},
        {**RSA_JWK, "alg": "RSA-OAEP"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": ["RSA"]},
        7,
    ]
    assert keys_of(json.dumps({"keys": others}).encode()) == ()
    many = json.dumps({"keys": [EC_JWK] * (KEYS_MAX + 1)}).encode()
    assert len(keys_of(many)) == KEYS_MAX


@given(st.text(max_size=300) | st.lists(st.sampled_from(token().split("."))).map(".".join))
def test_arbitrary_texts_are_refused(text: str) -> None:
    if text == token():
        return
    try:
        found = verified(text)
    except (TokenRefusedError, UnknownTokenKeyError):
        return
    assert text.count(".") == 2
    assert found.name == "alice"
