"""The conversion of message sets in steps. What it makes of the sets of other clients is in
test_legacy_records.py."""

from itertools import pairwise

import pytest

from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.legacy_records import _message
from odradek.protocol.message_converter import MESSAGES_PER_STEP
from odradek.protocol.records import Record, iter_records
from odradek.protocol.up_conversion import UpConversion, up_convert

NOW_MS = 1_700_000_000_000


def messages(count: int, magic: int = 1, value: bytes = b"v") -> bytes:
    return b"".join(
        _message(index, magic, 0, Record(index, NOW_MS + index % 7, b"k", value))
        for index in range(count)
    )


def wrapper(inner: bytes, magic: int = 1, codec: Codec = Codec.GZIP) -> bytes:
    value = compress(codec, inner, is_format_0=magic == 0)
    return _message(0, magic, codec, Record(0, NOW_MS, None, value))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_the_messages_of_a_wrapper_come_some_hundred_at_a_time(magic: int, codec: Codec) -> None:
    count = 10 * MESSAGES_PER_STEP + 3
    conversion = UpConversion(wrapper(messages(count, magic), magic, codec))
    assert list(conversion.find_codec()) == []
    assert conversion.codec is codec
    counts = [conversion.record_count for _ in conversion.records()]
    steps = [after - before for before, after in pairwise([0, *counts])]
    assert max(steps) <= MESSAGES_PER_STEP
    assert (sum(steps), len(steps) < 30) == (count, True)
    header = conversion.header()
    assert (header.record_count, header.last_offset_delta) == (count, count - 1)
    assert (header.base_timestamp, header.max_timestamp) == (
        (-1, -1) if magic == 0 else (NOW_MS, NOW_MS + 6)
    )


def test_messages_larger_than_a_piece_are_put_together() -> None:
    inner = messages(3, value=bytes(200_000))
    (batch,) = up_convert(wrapper(inner) + messages(2) + wrapper(inner))
    assert [len(record.value or b"") for record in iter_records(batch)] == [
        200_000, 200_000, 200_000, 1, 1, 200_000, 200_000, 200_000
    ]  # fmt: skip


def test_the_search_for_the_codec_has_steps_and_knows_the_largest_message() -> None:
    conversion = UpConversion(messages(9_000) + wrapper(messages(1)) + messages(1, value=bytes(99)))
    assert len(list(conversion.find_codec())) == 2
    assert conversion.codec is Codec.NONE
    assert conversion.largest_message_bytes == len(messages(1, value=bytes(99)))


def test_the_limit_is_for_all_wrappers_together() -> None:
    data = wrapper(messages(1, value=bytes(5_000))) * 3
    assert up_convert(data, limit=16_000)
    with pytest.raises(ProtocolError, match="exceeds"):
        up_convert(data, limit=15_000)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_a_wrong_size_inside_a_wrapper_is_a_protocol_error(size: bytes) -> None:
    inner = messages(3)
    with pytest.raises(ProtocolError):
        up_convert(wrapper(inner[:8] + size + inner[12:]))


@pytest.mark.parametrize(("codec", "is_long"), [(Codec.GZIP, False), (Codec.SNAPPY, True)])
def test_what_decompresses_at_once_is_announced(codec: Codec, is_long: bool) -> None:
    """A block of snappy has no pieces: it is left to a thread."""
    conversion = UpConversion(wrapper(messages(100_000), codec=codec))
    records = conversion.records()
    assert (next(records) == b"") is is_long
    assert bool(conversion.record_count) is not is_long
    assert all(records)
