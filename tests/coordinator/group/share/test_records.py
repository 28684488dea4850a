"""The formats of share groups' records, compared with bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.modern.records import GroupEpoch, ModernRecord, TargetEpoch
from odradek.coordinator.group.records import decode, encode
from odradek.coordinator.group.share.records import (
    NamedPartitions,
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareGroupMember,
    ShareMemberRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
)
from odradek.protocol.errors import ProtocolError

T = bytes(range(16))
U = bytes(range(16, 32))
RECORDS: list[ModernRecord] = [
    ShareMemberRecord(
        "g",
        "m",
        ShareGroupMember(rack_id="r", client_id="c", client_host="/h", topic_names=("a", "b")),
    ),
    ShareMemberRecord("g", "m", ShareGroupMember()),
    ShareMemberRecord("g", "m", None),
    ShareEpochRecord("g", GroupEpoch(5, -7)),
    ShareEpochRecord("g", None),
    ShareTargetEpochRecord("g", TargetEpoch(5, 1_700_000_000_000)),
    ShareTargetEpochRecord("g", TargetEpoch(5)),
    ShareTargetEpochRecord("g", None),
    ShareTargetRecord("g", "m", {T: frozenset({3, 1})}),
    ShareTargetRecord("g", "m", None),
    ShareCurrentRecord(
        "g", "m", ShareCurrentAssignment(5, 4, assigned={T: frozenset({0}), U: frozenset({7})})
    ),
    ShareCurrentRecord("g", "m", None),
    ShareStatePartitionsRecord(
        "g",
        StatePartitions(
            {T: NamedPartitions("a", frozenset({0, 2}))},
            {T: NamedPartitions("a", frozenset({1})), U: NamedPartitions("b", frozenset({0}))},
            {U: "b"},
        ),
    ),
    ShareStatePartitionsRecord("g", StatePartitions()),
    ShareStatePartitionsRecord("g", None),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_read_as_it_was_written(record: ModernRecord) -> None:
    assert decode(*encode(record)) == record


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            ShareMemberRecord("g", "m", ShareGroupMember(client_id="c", client_host="h")),
            "000a 0001 67 0001 6d",
            "0000 00 02 63 02 68 01 00",
        ),
        (
            ShareEpochRecord("g", GroupEpoch(2, 3)),
            "000b 0001 67",
            "0000 00000002 0000000000000003 00",
        ),
        (
            ShareTargetEpochRecord("g", TargetEpoch(2, 3)),
            "000c 0001 67",
            "0000 00000002 01 00 08 0000000000000003",
        ),
        (ShareTargetEpochRecord("g", TargetEpoch(2)), "000c 0001 67", "0000 00000002 00"),
        (
            ShareTargetRecord("g", "m", {T: frozenset({1, 0})}),
            "000d 0001 67 0001 6d",
            "0000 02 000102030405060708090a0b0c0d0e0f 03 00000000 00000001 00 00",
        ),
        (
            ShareCurrentRecord(
                "g", "m", ShareCurrentAssignment(2, 1, assigned={T: frozenset({1})})
            ),
            "000e 0001 67 0001 6d",
            "0000 00000002 00000001 00 02 000102030405060708090a0b0c0d0e0f 02 00000001 00 00",
        ),
        (
            ShareStatePartitionsRecord(
                "g", StatePartitions({}, {T: NamedPartitions("a", frozenset({1}))}, {T: "b"})
            ),
            "000f 0001 67",
            "0000 01 02 000102030405060708090a0b0c0d0e0f 02 61 02 00000001 00"
            " 02 000102030405060708090a0b0c0d0e0f 02 62 00 00",
        ),
    ],
)
def test_the_bytes_of_records_are_those_of_kafka(
    record: ModernRecord, key: str, value: str
) -> None:
    assert encode(record) == (bytes.fromhex(key), bytes.fromhex(value))


def test_a_newer_version_is_refused() -> None:
    key, value = encode(RECORDS[0])
    assert value is not None
    with pytest.raises(ProtocolError, match="ShareGroupMemberMetadataValue version 1"):
        decode(key, b"\0\1" + value[2:])


@given(st.sampled_from([record for record in RECORDS if encode(record)[1]]), st.data())
def test_a_truncated_record_is_malformed(record: ModernRecord, data: st.DataObject) -> None:
    key, value = encode(record)
    assert value is not None
    length = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(ProtocolError):
        decode(key, value[:length])
