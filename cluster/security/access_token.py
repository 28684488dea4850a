"""Access tokens of OAUTHBEARER: signed JWTs (RFC 7519), verified with the keys of their issuer.

Kafka's rules: `exp` and `iat` are required, `aud` and `iss` must be the expected ones, and a token
for an audience is refused if none is expected. Signatures are of asymmetric keys only: a secret
shared with every broker would let each of them issue tokens, and `none` proves nothing. Unsecured
tokens (`UnsecuredTokens`) are for development. Pure: keys and time are arguments.

All processes read the configuration and know these rules, but only routers that have fetched keys
need PyJWT: it is imported with the first keys (8 MB, 0.1 s), which are read in a thread.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512", "ES256K"),
    "OKP": ("EdDSA",),
}
"""The signature algorithms that are accepted, by type of key."""
KEYS_MAX: Final = 100
"""Of one issuer. More are not read: a token without a key id is tried with each."""


class TokenRefusedError(Exception):
    """The token is not valid; the message is for the log and does not have the token."""


class UnknownTokenKeyError(Exception):
    """No known key has the token's key id: the issuer may have a new one."""


class TokenKey(NamedTuple):
    """A public key of the issuer, and the algorithms that it may verify."""

    key_id: str | None
    key: Any  # a key object of the cryptography package
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say, and which claims name the user and the scopes."""

    expected_audiences: tuple[str, ...] = ()
    expected_issuer: str | None = None
    clock_skew_s: float = 30
    scope_claim: str = "scope"
    sub_claim: str = "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedToken:
    """Who the bearer is, and until when, in milliseconds since the epoch."""

    name: str
    expires_at_ms: int


def keys_of(document: bytes) -> tuple[TokenKey, ...]:
    """The usable keys of a JSON Web Key Set (RFC 7517). ValueError if it is none."""
    try:
        parsed = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is no JSON Web Key Set: there is no list of keys")
    return tuple(_usable_keys(listed[:KEYS_MAX]))


def verify_token(
    token: str, keys: Sequence[TokenKey], rules: TokenRules, now_s: float
) -> VerifiedToken:
    """Who the bearer of a token is. Raises TokenRefusedError, or UnknownTokenKeyError if the keys
    lack the one that the token names."""
    if not keys:
        raise UnknownTokenKeyError
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise TokenRefusedError(f"it is no JWT: {error}") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    chosen = [key for key in keys if key_id is None or key.key_id == key_id]
    if not chosen:
        raise UnknownTokenKeyError
    fault = f"no key is for the algorithm {algorithm!r:.40}"
    for key in chosen:
        if algorithm not in key.algorithms:
            continue
        try:
            claims = jwt.decode(token, key.key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            fault = str(error)
        else:
            return _checked(claims, rules, now_s)
    raise TokenRefusedError(fault)


def unsecured_token(token: str, rules: TokenRules, now_s: float) -> VerifiedToken:
    """Who a token without a signature says that its bearer is. Raises TokenRefusedError.

    As in Kafka, which has a class of its own for them, `iat` must not be later than now, and `nbf`
    counts for nothing.
    """
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise TokenRefusedError("it is no unsecured JWT: it has a signature")
    header, claims = (_json_part(part) for part in parts[:2])
    if header.get("alg") != "none":
        raise TokenRefusedError("it is no unsecured JWT: its algorithm is not none")
    issued_at_s = _time(claims, "iat", is_required=False)
    if issued_at_s is not None and issued_at_s > now_s + rules.clock_skew_s:
        raise TokenRefusedError("its iat is later than now")
    timed = {key: value for key, value in claims.items() if key != "nbf"}
    return _checked(timed, rules, now_s, needs_issued_at=False)


def _json_part(part: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(
            base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=dict[str, object]
        )
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefusedError("it is no JWT") from None


# The claims are checked here, against the time that is an argument.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_signature": True,
    **dict.fromkeys(
        (f"verify_{claim}" for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")), False
    ),
}


def _usable_keys(listed: list[object]) -> Iterable[TokenKey]:
    import jwt

    for each in listed:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        algorithms = ALGORITHMS.get(str(each.get("kty")), ())
        own = each.get("alg")
        if own is not None:
            algorithms = tuple(name for name in algorithms if name == own)
        key_id = each.get("kid")
        try:
            key = jwt.PyJWK(each, algorithm=algorithms[0] if algorithms else None).key
        except (jwt.PyJWTError, ValueError, TypeError, IndexError):
            continue
        if algorithms:
            yield TokenKey(str(key_id) if key_id is not None else None, key, algorithms)


def _checked(
    claims: Mapping[str, object], rules: TokenRules, now_s: float, *, needs_issued_at: bool = True
) -> VerifiedToken:
    skew_s = rules.clock_skew_s
    expires_at_s = _time(claims, "exp", is_required=True)
    issued_at_s = _time(claims, "iat", is_required=needs_issued_at)
    not_before_s = _time(claims, "nbf", is_required=False)
    assert expires_at_s is not None
    if now_s >= expires_at_s + skew_s:
        raise TokenRefusedError("it has expired")
    if not_before_s is not None and now_s < not_before_s - skew_s:
        raise TokenRefusedError("it is not valid yet: nbf is later")
    if issued_at_s is not None and issued_at_s > expires_at_s:
        raise TokenRefusedError("its iat is later than its exp")
    if rules.expected_issuer is not None and claims.get("iss") != rules.expected_issuer:
        raise TokenRefusedError("its issuer is another one")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [] if audience is None else [audience]
    if (audiences or rules.expected_audiences) and not any(
        each in rules.expected_audiences for each in audiences
    ):
        raise TokenRefusedError("it is for another audience")
    _check_scopes(claims.get(rules.scope_claim), rules.scope_claim)
    name = claims.get(rules.sub_claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefusedError(f"it has no claim {rules.sub_claim}")
    return VerifiedToken(name=name, expires_at_ms=int(expires_at_s * 1000))


def _check_scopes(scope: object, claim: str) -> None:
    scopes = scope if isinstance(scope, list) else [] if scope is None else [scope]
    if any(not isinstance(each, str) or not each.strip() for each in scopes):
        raise TokenRefusedError(f"its {claim} is not a list of names")


def _time(claims: Mapping[str, object], claim: str, *, is_required: bool) -> float | None:
    value = claims.get(claim)
    if value is None and not is_required:
        return None
    # A boolean is an int in Python, and not a time.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefusedError(f"it has no valid {claim}")
    return value
