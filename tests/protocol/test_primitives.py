import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import ProtocolError
from odradek.protocol.primitives import (
    ArrayStructs,
    read_uvarint,
    refuse_null,
    refuse_tag_size,
    refuse_value,
    skip_tags,
    uvarint,
)


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_is_read_as_written(value: int) -> None:
    encoded = uvarint(value)
    assert read_uvarint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_an_unsigned_varint_has_its_least_significant_bits_first(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded


def test_a_varint_of_more_than_five_bytes_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="exceeds 32 bits"):
        read_uvarint(b"\xff" * 5 + b"\x01", 0)


def test_a_truncated_varint_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_uvarint(b"\xff\xff", 0)


def test_a_tagged_section_is_skipped() -> None:
    section = uvarint(5) + uvarint(3) + b"abc" + uvarint(1000) + uvarint(0)
    assert skip_tags(b"??" + section + b"rest", 2, 2) == 2 + len(section)


def test_a_tagged_section_of_more_than_127_fields_is_skipped() -> None:
    count = uvarint(200)
    data = count[1:] + b"\x07\x00" * 200
    assert skip_tags(data, 0, count[0]) == len(data)


def test_a_large_count_of_tagged_fields_ends_at_the_end_of_the_input() -> None:
    with pytest.raises(IndexError):
        skip_tags(b"\xff\xff\xff\x0f" + b"\x01\x00" * 10, 0, 0xFF)


def test_errors_name_the_field() -> None:
    with pytest.raises(ProtocolError, match="group_id"):
        refuse_null("group_id")
    with pytest.raises(ProtocolError, match="current_leader"):
        refuse_tag_size("current_leader")
    with pytest.raises(ProtocolError, match="version 3 cannot carry topic_id"):
        refuse_value("topic_id", 3)


def test_structs_of_arrays_are_made_by_count_and_those_of_small_counts_are_kept() -> None:
    structs = ArrayStructs("i")
    assert structs[2].pack(1, 2) == bytes.fromhex("00000001 00000002")
    assert structs[0].pack() == b""
    assert structs[2] is structs[2]
    assert structs[1000].size == 4000
    assert set(structs) == {0, 2}
