"""The records of `__share_group_state` in Kafka's formats, byte by byte."""

import pytest

from odradek.coordinator.share.records import ShareStateRecord, decode, encode
from odradek.coordinator.share.requests import ShareKey
from odradek.coordinator.share.state import ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.protocol.errors import ProtocolError

TOPIC = bytes(range(16))
KEY = ShareKey("grp", TOPIC, 2)
SNAPSHOT = ShareState(
    snapshot_epoch=1,
    state_epoch=2,
    leader_epoch=3,
    start_offset=4,
    delivery_complete_count=5,
    create_ms=6,
    write_ms=7,
    batches=(
        PersisterStateBatch(8, 9, RecordState.ACKNOWLEDGED, 1),
        PersisterStateBatch(10, 11, RecordState.AVAILABLE, 2),
    ),
)
UPDATE = ShareUpdate(
    snapshot_epoch=1,
    leader_epoch=3,
    start_offset=-1,
    delivery_complete_count=-1,
    batches=(PersisterStateBatch(8, 9, RecordState.ACKNOWLEDGED, 1),),
)
NAME = b"\0\3grp" + TOPIC + b"\0\0\0\2"


def long(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def test_a_snapshot_as_kafka_writes_it() -> None:
    key, value = encode(ShareStateRecord(KEY, SNAPSHOT))
    assert key == b"\0\0" + NAME
    assert value == (
        b"\0\0"
        + b"\0\0\0\1\0\0\0\2\0\0\0\3"
        + long(4)
        + long(6)
        + long(7)
        + b"\3"
        + (long(8) + long(9) + b"\2\0\1\0")
        + (long(10) + long(11) + b"\0\0\2\0")
        + b"\1\0\4\0\0\0\5"
    )


def test_an_update_as_kafka_writes_it() -> None:
    key, value = encode(ShareStateRecord(KEY, UPDATE))
    assert key == b"\0\1" + NAME
    assert value == (
        b"\0\0" + b"\0\0\0\1\0\0\0\3" + long(-1) + b"\2" + long(8) + long(9) + b"\2\0\1\0" + b"\0"
    )


@pytest.mark.parametrize("value", [SNAPSHOT, UPDATE, None])
def test_records_are_decoded_as_encoded(value: ShareState | ShareUpdate | None) -> None:
    stored = ShareStateRecord(KEY, value)
    assert decode(*encode(stored)) == stored


def test_a_tombstone_is_a_snapshot_without_a_value() -> None:
    assert encode(ShareStateRecord(KEY, None)) == (b"\0\0" + NAME, None)


def test_unsorted_batches_of_a_snapshot_are_put_in_order() -> None:
    mixed = ShareState(
        batches=(
            PersisterStateBatch(10, 11, RecordState.AVAILABLE, 2),
            PersisterStateBatch(8, 9, RecordState.AVAILABLE, 2),
        ),
    )
    read = decode(*encode(ShareStateRecord(KEY, mixed)))
    assert read is not None
    assert isinstance(read.value, ShareState)
    assert read.value.batches == (PersisterStateBatch(8, 11, RecordState.AVAILABLE, 2),)


def test_unknown_types_are_ignored() -> None:
    assert decode(b"\0\2" + NAME, b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0\0\0\3gr", b"\0\0"),
        (b"\0\0" + NAME, b"\0\0\0"),
        (b"\0\0" + NAME, b"\0\1"),
        (b"\0\1" + NAME, b""),
        (b"\0\0\0\2\xff\xff" + TOPIC + b"\0\0\0\2", None),
    ],
)
def test_malformed_records_are_errors(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)


def test_a_group_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(ProtocolError, match="fits into no record"):
        encode(ShareStateRecord(ShareKey("x" * 40_000, TOPIC, 0), None))
