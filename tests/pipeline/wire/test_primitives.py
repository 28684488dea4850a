"""Types of Kafka's protocol: what is written is read, and what is cut is told."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.primitives import (
    MessageReader,
    MessageWriter,
    topic_id_bytes,
    topic_id_text,
)

FLEXIBLE = pytest.mark.parametrize("is_flexible", [False, True])


@given(st.binary(min_size=16, max_size=16))
def test_topic_ids_are_texts_as_in_kafkas_tools(topic_id: bytes) -> None:
    text = topic_id_text(topic_id)
    assert topic_id_bytes(text) == topic_id
    if topic_id != bytes(16):
        assert text == base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
        assert len(text) == 22


def test_no_topic_id_is_empty() -> None:
    assert topic_id_text(bytes(16)) == ""
    assert topic_id_bytes("") == bytes(16)


@pytest.mark.parametrize("text", ["abc", "ä" * 22, "x" * 23])
def test_what_is_no_topic_id_is_told(text: str) -> None:
    with pytest.raises(PipelineError, match="no topic id"):
        topic_id_bytes(text)


@FLEXIBLE
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.none(), st.text()),
    st.binary(max_size=300),
    st.one_of(st.none(), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200)),
)
def test_what_is_written_is_read(
    is_flexible: bool, number: int, text: str | None, data: bytes, numbers: list[int] | None
) -> None:
    writer = MessageWriter(is_flexible=is_flexible)
    writer.int64(number)
    writer.string(text)
    writer.binary(data)
    writer.array(None if numbers is None else len(numbers))
    for each in numbers or ():
        writer.int32(each)
    writer.int8(-3)
    writer.int16(-300)
    writer.end_structure()
    written = writer.take()
    reader = MessageReader(written, is_flexible=is_flexible)
    assert reader.int64() == number
    assert reader.string() == text
    assert reader.binary() == data
    assert list(reader.int32_array()) == (numbers or [])
    assert (reader.int8(), reader.int16()) == (-3, -300)
    reader.end_structure()
    assert reader.at == len(written)


def test_tagged_fields_are_skipped() -> None:
    reader = MessageReader(b"\x02\x00\x01x\x05\x02yz\x07", is_flexible=True)
    reader.end_structure()
    assert reader.int8() == 7


@FLEXIBLE
def test_what_is_cut_is_told(is_flexible: bool) -> None:
    writer = MessageWriter(is_flexible=is_flexible)
    writer.string("orders")
    writer.int64(1)
    whole = writer.take()
    for size in range(len(whole)):
        reader = MessageReader(whole[:size], is_flexible=is_flexible)
        with pytest.raises(PipelineError, match="ends too early"):
            (reader.string(), reader.int64())


def test_lengths_that_no_answer_has() -> None:
    huge = MessageReader(b"\x7f\xff\xff\xff", is_flexible=False)
    with pytest.raises(PipelineError, match="Kafka broker"):
        huge.array()
    endless = MessageReader(b"\xff" * 9, is_flexible=True)
    with pytest.raises(PipelineError, match="Kafka broker"):
        endless.uvarint()
