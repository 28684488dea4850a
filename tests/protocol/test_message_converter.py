"""The conversion of messages: against a plain reading of the formats, in bytes cut anywhere,
compiled and not.
"""

from types import ModuleType
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.protocol import message_converter
from odradek.protocol.errors import ProtocolError
from odradek.protocol.legacy_records import _message
from odradek.protocol.records import Record, write_record
from tests.support.compiled_modules import ROOT, uncompiled
from tests.support.message_sets import iter_messages

UNCOMPILED = uncompiled(ROOT / "protocol" / "message_converter.py")
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class Conversion(NamedTuple):
    """The result of a conversion, or that it was refused."""

    is_malformed: bool
    records: bytes = b""
    record_count: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1


MALFORMED = Conversion(True)


def convert(module: ModuleType, data: bytes, piece_bytes: int) -> Conversion:
    """All of it, in pieces of this size or of as many bytes as a message needs."""
    converter = module.MessageConverter()
    out = bytearray()
    at, size = 0, piece_bytes
    try:
        while at < len(data):
            piece = data[at : at + size]
            out += converter.convert(piece, 0)
            if converter.is_at_wrapper:
                return MALFORMED
            if converter.needed > len(data) - at - converter.position:
                return MALFORMED if at + converter.position < len(data) else result(out, converter)
            at += converter.position
            size = max(piece_bytes, converter.needed)
    except module.MalformedMessagesError:
        return MALFORMED
    return result(out, converter)


def result(out: bytearray, converter: message_converter.MessageConverter) -> Conversion:
    return Conversion(
        False,
        bytes(out),
        converter.record_count,
        converter.base_timestamp,
        converter.max_timestamp,
    )


def reference(data: bytes) -> Conversion:
    try:
        messages = list(iter_messages(data))
    except ProtocolError:
        return MALFORMED
    out = bytearray()
    base = messages[0].timestamp if messages else -1
    for index, message in enumerate(messages):
        delta_ms = message.timestamp - base
        if not INT64_MIN <= delta_ms <= INT64_MAX:
            return MALFORMED
        write_record(out, delta_ms, index, message.key, message.value, ())
    latest = max((message.timestamp for message in messages), default=-1)
    return Conversion(False, bytes(out), len(messages), base, latest)


def assert_all_agree(data: bytes, piece_bytes: int = 100) -> Conversion:
    expected = reference(data)
    for module in (message_converter, UNCOMPILED):
        for size in (1, piece_bytes, len(data) + 1):
            assert convert(module, data, size) == expected
    return expected


timestamps = st.integers(-2, 300) | st.integers(INT64_MIN, INT64_MAX)
fields = st.none() | st.binary(max_size=3) | st.integers(60, 300).map(bytes)
message_sets = st.lists(
    st.tuples(st.sampled_from([0, 1]), timestamps, fields, fields), max_size=12
).map(
    lambda rows: b"".join(
        _message(index, magic, 0, Record(index, timestamp, key, value))
        for index, (magic, timestamp, key, value) in enumerate(rows)
    )
)


@given(message_sets, st.integers(1, 500))
def test_messages_are_converted_alike(data: bytes, piece_bytes: int) -> None:
    assert_all_agree(data, piece_bytes)


@given(
    message_sets,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_messages_are_converted_alike(data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for at, byte in changes:
        if changed:
            changed[at % len(changed)] = byte
    assert_all_agree(bytes(changed))


@given(st.sampled_from([0, 1, 2]), st.binary(max_size=60), st.integers(0, 3))
@example(0, b"\xff\xff\xff\xff" * 2, 0)
@example(1, bytes(8) + b"\xff\xff\xff\xff\x80\x00\x00\x00", 0)
@example(1, bytes(8) + b"\x7f\xff\xff\xff" * 2, 0)
def test_bytes_with_a_right_crc_are_converted_alike(magic: int, body: bytes, cut: int) -> None:
    rest = bytes((magic, 0)) + body
    data = bytes(8) + (len(rest) + 4).to_bytes(4, "big") + crc32(rest).to_bytes(4, "big") + rest
    assert_all_agree(data[: len(data) - cut])


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (0, INT64_MAX, True),
        (0, INT64_MIN, True),
        (1, INT64_MIN, False),
        (-1, INT64_MAX, False),
        (-1, INT64_MAX - 1, True),
        (INT64_MIN, -1, True),
        (INT64_MIN, 0, False),
        (INT64_MAX, -1, True),
        (INT64_MAX, -2, False),
    ],
)
def test_timestamps_may_be_64_bits_apart(first: int, second: int, fits: bool) -> None:
    data = b"".join(_message(0, 1, 0, Record(0, each, None, b"v")) for each in (first, second))
    assert assert_all_agree(data).is_malformed is not fits


def test_a_call_converts_so_many_messages() -> None:
    for module in (message_converter, UNCOMPILED):
        one = _message(0, 1, 0, Record(0, 5, b"k", b"v"))
        converter = module.MessageConverter()
        converter.convert(one * (module.MESSAGES_PER_STEP + 1), 0)
        assert converter.record_count == module.MESSAGES_PER_STEP
        assert converter.position == len(one) * module.MESSAGES_PER_STEP
        assert not converter.needed
