"""Length-prefixed frames, and recognition of other protocols."""

import pytest

from odradek.node.wire.framing import describe_foreign_protocol


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"GET /met", "HTTP"),
        (b"POST / H", "HTTP"),
        (b"\x16\x03\x01\x02\0\x01\0\x01", "TLS"),
        (b"SSH-2.0-", "SSH"),
    ],
)
def test_other_protocols_are_recognised_by_their_first_bytes(start: bytes, says: str) -> None:
    description = describe_foreign_protocol(start)
    assert description is not None
    assert says in description


def test_other_bytes_are_not_taken_for_another_protocol() -> None:
    assert describe_foreign_protocol(b"\xff\xff\xff\xff") is None
    assert describe_foreign_protocol(b"") is None
