"""Confluent's wire format."""

import pytest

from odradek.pipeline.values.decoded_values import BadValue
from odradek.pipeline.values.wire_format import split_wire_format


def test_the_id_is_big_endian() -> None:
    assert split_wire_format(b"\x00\x00\x00\x01\x02rest") == (258, b"rest")
    assert split_wire_format(b"\x00\xff\xff\xff\xff") == (2**32 - 1, b"")


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"", "is empty"), (b"\x00\x00\x01", "has only 3 bytes"), (b'{"a":1}', "the byte 123")],
)
def test_what_is_not_in_it_is_told(value: bytes, found: str) -> None:
    with pytest.raises(BadValue, match=found):
        split_wire_format(value)
