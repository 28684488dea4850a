"""The primitive types of records, in both forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.record_fields import (
    FieldReader,
    compact_bytes,
    compact_int32s,
    compact_string,
    string,
    uvarint,
)
from odradek.protocol.errors import ProtocolError


def flexible(octets: bytes) -> FieldReader:
    reader = FieldReader(octets)
    reader.is_flexible = True
    return reader


@given(st.one_of(st.none(), st.text(max_size=300)))
def test_texts_are_read_as_they_were_written(text: str | None) -> None:
    assert FieldReader(string(text)).nullable_string() == text
    assert flexible(compact_string(text)).nullable_string() == text


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200), st.binary(max_size=200))
def test_arrays_and_bytes_are_read_as_they_were_written(values: list[int], octets: bytes) -> None:
    reader = flexible(compact_int32s(values) + compact_bytes(octets))
    assert list(reader.int32s()) == values
    assert reader.octets() == octets


def test_numbers_are_signed() -> None:
    reader = FieldReader(b"\xff" * 15 + b"\x7f")
    assert [reader.int8(), reader.int16(), reader.int32(), reader.int64()] == [-1, -1, -1, -1]
    assert reader.int8() == 127


def test_a_text_that_is_too_long_for_its_length_is_refused() -> None:
    with pytest.raises(ProtocolError):
        string("x" * 32_768)
    assert len(compact_string("x" * 32_768)) == 32_768 + len(uvarint(32_769))


def test_null_where_a_text_must_be_is_refused() -> None:
    with pytest.raises(ProtocolError):
        FieldReader(b"\xff\xff").string()


def test_nothing_is_read_past_the_end() -> None:
    with pytest.raises(IndexError):
        FieldReader(b"\x00\x05ab").string()
    with pytest.raises(IndexError):
        flexible(uvarint(1_000_000)).int32s()
