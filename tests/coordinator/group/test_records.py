"""Records of `__consumer_offsets`: Kafka's own bytes, every version, and harm."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.records import (
    CommittedOffset,
    GroupMetadata,
    GroupMetadataRecord,
    MemberMetadata,
    OffsetCommitRecord,
    OwnRecord,
    decode,
    encode,
)
from odradek.protocol.errors import ProtocolError

TOPIC_ID = bytes.fromhex("00000000000000010000000000000002")
OFFSET_KEY = bytes.fromhex("0001000167000374c3a900000007")
GROUP_KEY = bytes.fromhex("0002000167")
MEMBER = MemberMetadata(
    member_id="c-1",
    group_instance_id="i",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=b"\x01\x02",
    assignment=b"\x03",
)
GROUP = GroupMetadata(
    protocol_type="consumer",
    generation_id=3,
    protocol_name="range",
    leader_id="c-1",
    state_timestamp_ms=99,
    members=(MEMBER,),
)
CONSUMER_RANGE = "0008636f6e73756d657200000003000572616e67650003632d31"
HOST = "0003632d31{}000163000a2f3132372e302e302e31{}0000afc80000000201020000000103"

# Written by the generated classes of Kafka 4.3.1 (OffsetCommitValue, GroupMetadataValue).
OFFSET_VALUES = {
    "0000000000000000002a00016d00000000000003e8": CommittedOffset(42, -1, "m", 1_000),
    "0001000000000000002a00016d00000000000003e800000000000007d0": CommittedOffset(
        42, -1, "m", 1_000, 2_000
    ),
    "0002000000000000002a00016d00000000000003e8": CommittedOffset(42, -1, "m", 1_000),
    "0003000000000000002a0000000500016d00000000000003e8": CommittedOffset(42, 5, "m", 1_000),
    "0004000000000000002a00000005026d00000000000003e800": CommittedOffset(42, 5, "m", 1_000),
    "0004000000000000002a00000005026d00000000000003e8010010" + TOPIC_ID.hex(): CommittedOffset(
        42, 5, "m", 1_000, topic_id=TOPIC_ID
    ),
}
GROUP_VALUES = {
    "0000" + CONSUMER_RANGE + "00000001" + HOST.format("", ""): (False, False, False),
    "0001" + CONSUMER_RANGE + "00000001" + HOST.format("", "000493e0"): (True, False, False),
    "0002" + CONSUMER_RANGE + "000000000000006300000001" + HOST.format("", "000493e0"): (
        True,
        True,
        False,
    ),
    "0003" + CONSUMER_RANGE + "000000000000006300000001" + HOST.format("000169", "000493e0"): (
        True,
        True,
        True,
    ),
    "000409636f6e73756d6572000000030672616e676504632d3100000000000000630204632d31026902630b2f"
    "3132372e302e302e31000493e00000afc803010202030000": (True, True, True),
}


@pytest.mark.parametrize(("value", "expected"), OFFSET_VALUES.items())
def test_every_version_of_an_offset_is_read(value: str, expected: CommittedOffset) -> None:
    assert decode(OFFSET_KEY, bytes.fromhex(value)) == OffsetCommitRecord("g", "té", 7, expected)


@pytest.mark.parametrize(("value", "knows"), GROUP_VALUES.items())
def test_every_version_of_a_group_is_read(value: str, knows: tuple[bool, bool, bool]) -> None:
    has_rebalance_timeout, has_timestamp, has_instance = knows
    record = decode(GROUP_KEY, bytes.fromhex(value))
    assert isinstance(record, GroupMetadataRecord)
    assert record.metadata is not None
    assert record.metadata.state_timestamp_ms == (99 if has_timestamp else -1)
    [member] = record.metadata.members
    assert member.rebalance_timeout_ms == (300_000 if has_rebalance_timeout else 45_000)
    assert member.group_instance_id == ("i" if has_instance else None)
    assert (member.subscription, member.assignment) == (b"\x01\x02", b"\x03")
    assert record.metadata.leader_id == "c-1"


def test_offsets_are_written_as_kafka_writes_them() -> None:
    newest = CommittedOffset(42, 5, "m", 1_000, topic_id=TOPIC_ID)
    written = {
        value: encode(OffsetCommitRecord("g", "té", 7, o)) for value, o in OFFSET_VALUES.items()
    }
    assert encode(OffsetCommitRecord("g", "té", 7, newest))[0] == OFFSET_KEY
    for value in OFFSET_VALUES:
        # v1 for a commit with its own retention, else v4; the others are what older brokers wrote.
        if value.startswith(("0001", "0004")):
            assert written[value] == (OFFSET_KEY, bytes.fromhex(value))


def test_groups_are_written_in_version_3() -> None:
    value = next(value for value in GROUP_VALUES if value.startswith("0003"))
    assert encode(GroupMetadataRecord("g", GROUP)) == (GROUP_KEY, bytes.fromhex(value))


def test_an_empty_group_has_null_protocol_and_leader() -> None:
    empty = GroupMetadata(state_timestamp_ms=5)
    expected = bytes.fromhex("0003000000000000ffffffff000000000000000500000000")
    assert encode(GroupMetadataRecord("g", empty)) == (GROUP_KEY, expected)
    assert decode(GROUP_KEY, expected) == GroupMetadataRecord("g", empty)


def test_tombstones_have_a_key_only() -> None:
    assert encode(OffsetCommitRecord("g", "té", 7, None)) == (OFFSET_KEY, None)
    assert decode(OFFSET_KEY, None) == OffsetCommitRecord("g", "té", 7, None)
    assert encode(GroupMetadataRecord("g", None)) == (GROUP_KEY, None)
    assert decode(GROUP_KEY, None) == GroupMetadataRecord("g", None)


def test_key_version_0_is_an_offset_too() -> None:
    assert decode(b"\x00\x00" + OFFSET_KEY[2:], None) == OffsetCommitRecord("g", "té", 7, None)


@pytest.mark.parametrize("kind", [4, 9, 26, 99])
def test_records_of_other_kinds_of_groups_are_left_alone(kind: int) -> None:
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
def test_texts_too_long_for_their_place_are_refused(record: OwnRecord) -> None:
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
def test_what_is_written_is_read_back(record: OwnRecord) -> None:
    assert decode(*encode(record)) == record


@given(st.sampled_from([*OFFSET_VALUES, *GROUP_VALUES]), st.data())
def test_harm_ends_in_protocol_error_and_nothing_else(value: str, data: st.DataObject) -> None:
    octets = bytearray(bytes.fromhex(value))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(octets)))
    for key in (OFFSET_KEY, GROUP_KEY, bytes(octets[:cut])):
        with suppress(ProtocolError):
            decode(key, bytes(octets[:cut]))
