"""Texts that every mechanism needs."""

import pytest

from odradek.cluster.security.sasl import (
    MESSAGE_BYTES_MAX,
    SaslRefusedError,
    general_refusal_text,
    message_text,
    named,
)


def test_general_text_is_that_of_kafka() -> None:
    assert general_refusal_text("SCRAM-SHA-256", is_renewal=False) == (
        "Authentication failed during authentication due to invalid credentials with SASL"
        " mechanism SCRAM-SHA-256"
    )
    assert "re-authentication" in general_refusal_text("PLAIN", is_renewal=True)


@pytest.mark.parametrize("data", [b"\xff", b"a" * (MESSAGE_BYTES_MAX + 1)])
def test_a_message_that_is_no_text_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        message_text(data)


def test_names_in_the_log_are_quoted_and_bounded() -> None:
    assert named("a\nb") == repr("a\nb")
    assert len(named("x" * 10_000)) < 200
