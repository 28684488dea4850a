"""Odradek's own records of `__consumer_offsets`: their bytes, and malformed ones."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.records import decode, encode
from odradek.coordinator.group.rewind.records import (
    CommitFence,
    OffsetMove,
    OffsetSnapshot,
    OffsetSnapshotRecord,
    Rewind,
    RewindRecord,
    RewindState,
    RewindStateRecord,
    UndoPoint,
    UndoPointRecord,
)
from odradek.protocol.errors import ProtocolError

MOVE = OffsetMove("topic", bytes(range(16)), 7, 42, 3, "m", 99, 4, "n")
REWIND = Rewind(b"i" * 16, 1_000, (MOVE,), 2)
RECORDS: list[RewindRecord] = [
    RewindStateRecord("g", RewindState(REWIND, REWIND, (CommitFence("topic", 7, 12),), 5)),
    RewindStateRecord("g", RewindState(None, REWIND, (), 5, (b"j" * 16,), (b"k" * 16, b"l" * 16))),
    RewindStateRecord("g", RewindState()),
    RewindStateRecord("g", None),
    UndoPointRecord("g", 3, UndoPoint(1_000, (MOVE,))),
    UndoPointRecord("g", 3, None),
    OffsetSnapshotRecord("g", "before", OffsetSnapshot(1_000, (MOVE, MOVE))),
    OffsetSnapshotRecord("g", "before", None),
]


@pytest.mark.parametrize("record", RECORDS)
def test_records_are_decoded_as_encoded(record: RewindRecord) -> None:
    key, value = encode(record)
    assert decode(key, value) == record


def test_the_format_does_not_change() -> None:
    key, value = encode(UndoPointRecord("g", 3, UndoPoint(5, (OffsetMove("t", bytes(16), 1, 2),))))
    assert key == b"\x4e\x22" + b"\x00\x01g" + b"\x00\x00\x00\x03"
    move = b"\x99\xa1t" + b"\xc4\x10" + bytes(16) + b"\x01\x02\xff\xa0\xff\xff\xa0"
    assert value == b"\x00\x00" + b"\x92\x05" + b"\x91" + move


def test_a_state_without_ids_is_decoded() -> None:
    """Written by an earlier release."""
    key, value = encode(RewindStateRecord("g", RewindState(newest_number=5)))
    assert value is not None
    assert value == b"\x00\x00\x96\xc0\xc0\x90\x05\x90\x90"
    assert decode(key, b"\x00\x00\x94\xc0\xc0\x90\x05") == decode(key, value)


def test_a_newer_version_is_refused() -> None:
    key, value = encode(RECORDS[0])
    assert value is not None
    with pytest.raises(ProtocolError, match="version 1"):
        decode(key, b"\x00\x01" + value[2:])


@given(st.binary(), st.sampled_from(RECORDS))
def test_malformed_bytes_are_a_protocol_error(value: bytes, record: RewindRecord) -> None:
    key, _ = encode(record)
    with suppress(ProtocolError):
        decode(key, b"\x00\x00" + value)
