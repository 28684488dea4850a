"""OAUTHBEARER: the messages around a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.security.access_token import (
    TokenRefusedError,
    UnknownTokenKeyError,
    VerifiedToken,
)
from odradek.cluster.security.oauthbearer_server import FAILURE, OAuthBearerServer
from odradek.cluster.security.sasl import Authenticated, Challenge, SaslRefusedError


def verify(token: str) -> VerifiedToken:
    if token == "unknown-key":
        raise UnknownTokenKeyError
    if token != "good.token~":
        raise TokenRefusedError("it has expired")
    return VerifiedToken(name="alice", expires_at_ms=7)


def message(token: str, gs2: str = "n,,", extensions: str = "") -> bytes:
    return f"{gs2}\x01auth=Bearer {token}\x01{extensions}\x01".encode()


@pytest.mark.parametrize(
    "data",
    [
        message("good.token~"),
        message("good.token~", "n,a=alice,"),
        message("good.token~", extensions="logicalCluster=lkc-1\x01other=2\x01"),
        message("good.token~").replace(b"Bearer", b"bearer"),
    ],
)
def test_a_good_token_authenticates(data: bytes) -> None:
    done = OAuthBearerServer(verify).respond(data)
    assert done == Authenticated(name="alice", expires_at_ms=7)


def test_a_bad_token_is_answered_with_json_and_then_refused() -> None:
    server = OAuthBearerServer(verify)
    assert server.respond(message("bad")) == Challenge(FAILURE)
    with pytest.raises(SaslRefusedError, match="expired") as raised:
        server.respond(b"\x01")
    assert raised.value.client_text == FAILURE.decode()


def test_nothing_follows_a_bad_token() -> None:
    server = OAuthBearerServer(verify)
    server.respond(message("bad"))
    with pytest.raises(SaslRefusedError):
        server.respond(message("good.token~"))


def test_a_token_of_an_unknown_key_can_be_given_again() -> None:
    server = OAuthBearerServer(verify)
    with pytest.raises(UnknownTokenKeyError):
        server.respond(message("unknown-key"))
    assert isinstance(server.respond(message("good.token~")), Authenticated)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer good.token~\x01",
        b"p=tls-unique,,\x01auth=Bearer good.token~\x01\x01",
        b"n,a=bob,\x01auth=Bearer good.token~\x01\x01",
        b"\xff" + message("good.token~"),
        b"n,a=" + b"x" * 2_000 + b",\x01auth=Bearer good.token~\x01\x01",
    ],
)
def test_malformed_messages_are_refused(data: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        OAuthBearerServer(verify).respond(data)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_do_not_authenticate(data: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        OAuthBearerServer(verify).respond(data)
