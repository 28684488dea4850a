"""Records of `__consumer_offsets`: encoded, decoded, malformed."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.classic.records import (
    GroupMetadata,
    GroupMetadataRecord,
    MemberMetadata,
)
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.records import OwnRecord, decode, encode
from odradek.protocol.errors import ProtocolError

OFFSET_KEY = bytes.fromhex("0001000167000374c3a900000007")
GROUP_KEY = bytes.fromhex("0002000167")
VALUES = (
    "0004000000000000002a00000005026d00000000000003e800",
    "0004000000000000002a00000005026d00000000000003e8010010" + "02" * 16,
    "0003000000000000ffffffff000000000000000500000000",
    "000409636f6e73756d6572000000030672616e676504632d3100000000000000630204632d31026902630b2f"
    "3132372e302e302e31000493e00000afc803010202030000",
)


@pytest.mark.parametrize("kind", [4, 9, 26, 99])
def test_records_of_unknown_types_are_ignored(kind: int) -> None:
    assert decode(kind.to_bytes(2, "big") + b"\x00\x01g", b"whatever") is None


def test_a_value_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="OffsetCommitValue version 5"):
        decode(OFFSET_KEY, b"\x00\x05")
    with pytest.raises(ProtocolError, match="GroupMetadataValue version 9"):
        decode(GROUP_KEY, b"\x00\x09")


@pytest.mark.parametrize(
    "record",
    [
        GroupMetadataRecord("x" * 32_768, None),
        GroupMetadataRecord("g", GroupMetadata(protocol_type="ä" * 16_384)),
        OffsetCommitRecord("g", "t", 0, CommittedOffset(1, -1, "x" * 32_768, 1, 5)),
    ],
)
def test_texts_too_long_for_their_field_are_refused(record: OwnRecord) -> None:
    with pytest.raises(ProtocolError, match="fits into no record"):
        encode(record)


texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberMetadata,
    member_id=texts,
    group_instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=int32s,
    session_timeout_ms=int32s,
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
groups = st.builds(
    GroupMetadata,
    protocol_type=texts,
    generation_id=int32s,
    protocol_name=st.none() | texts,
    leader_id=st.none() | texts,
    state_timestamp_ms=int64s,
    members=st.lists(members, max_size=3).map(tuple),
)
offsets = st.builds(
    CommittedOffset,
    int64s,
    int32s,
    texts,
    int64s,
    topic_id=st.binary(min_size=16, max_size=16),
)


@given(
    st.builds(GroupMetadataRecord, texts, st.none() | groups)
    | st.builds(OffsetCommitRecord, texts, texts, int32s, st.none() | offsets)
)
def test_records_are_decoded_as_encoded(record: OwnRecord) -> None:
    assert decode(*encode(record)) == record


@given(st.sampled_from(VALUES), st.data())
def test_malformed_records_raise_protocol_error_only(value: str, data: st.DataObject) -> None:
    octets = bytearray(bytes.fromhex(value))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(octets)))
    for key in (OFFSET_KEY, GROUP_KEY, bytes(octets[:cut])):
        with suppress(ProtocolError):
            decode(key, bytes(octets[:cut]))
