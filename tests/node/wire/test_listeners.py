"""What a security protocol means for the connections of a listener."""

import pytest

from odradek.node.wire.listeners import ClientListener


@pytest.mark.parametrize(
    ("protocol", "is_tls", "is_sasl"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_the_security_protocol_says_what_protects_a_connection(
    protocol: str, is_tls: bool, is_sasl: bool
) -> None:
    listener = ClientListener(name="EXTERNAL", security_protocol=protocol)
    assert (listener.is_tls, listener.is_sasl) == (is_tls, is_sasl)
