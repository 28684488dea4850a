import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.types import ZERO_UUID, uuid_from_text, uuid_to_text


def test_a_uuid_is_written_as_kafka_writes_it() -> None:
    # Taken from the output of kafka-topics.sh --describe.
    assert uuid_to_text(bytes.fromhex("c39b3b1b3f2d4f6fb0a6c5e5d0a1f7ff")) == (
        "w5s7Gz8tT2-wpsXl0KH3_w"
    )
    assert uuid_to_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_survives_a_round_trip(value: bytes) -> None:
    text = uuid_to_text(value)
    assert len(text) == 22
    assert uuid_from_text(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "AAAA", "A" * 21, "A" * 23, "A" * 24, "A" * 21 + "!", "A" * 21 + "ä", "A" * 10 + "+" * 12],
)
def test_text_that_is_not_a_uuid_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a base64 UUID"):
        uuid_from_text(text)
