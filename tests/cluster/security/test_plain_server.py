"""PLAIN: who is let in, and Kafka's texts for the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.security.plain_server import PlainServer
from odradek.cluster.security.sasl import Authenticated, SaslRefusedError

USERS = {"alice": "alice-secret", "bob": "b"}


@pytest.mark.parametrize("data", [b"\0alice\0alice-secret", b"alice\0alice\0alice-secret"])
def test_the_right_password_authenticates(data: bytes) -> None:
    assert PlainServer(USERS).respond(data) == Authenticated(name="alice")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0carol\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from"
            " username",
        ),
        (b"\xff\0alice\0alice-secret", None),
    ],
)
def test_everybody_else_is_refused(data: bytes, text: str | None) -> None:
    with pytest.raises(SaslRefusedError) as raised:
        PlainServer(USERS).respond(data)
    assert raised.value.client_text == text
    assert "alice-secret" not in raised.value.reason


def test_a_user_with_an_empty_password_cannot_authenticate() -> None:
    with pytest.raises(SaslRefusedError):
        PlainServer({"alice": ""}).respond(b"\0alice\0")


@given(
    st.binary(max_size=200)
    | st.lists(st.text(max_size=20), max_size=5).map("\0".join).map(str.encode)
)
def test_arbitrary_bytes_do_not_authenticate(data: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        PlainServer({"a" * 30: "b" * 30}).respond(data)
