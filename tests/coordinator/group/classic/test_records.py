"""Records of classic groups: Kafka's own bytes, in every version."""

import pytest

from odradek.coordinator.group.classic.records import (
    GroupMetadata,
    GroupMetadataRecord,
    MemberMetadata,
)
from odradek.coordinator.group.records import decode, encode

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

# Written by the generated classes of Kafka 4.3.1 (GroupMetadataValue).
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


def test_groups_are_written_in_version_3() -> None:
    value = next(value for value in GROUP_VALUES if value.startswith("0003"))
    assert encode(GroupMetadataRecord("g", GROUP)) == (GROUP_KEY, bytes.fromhex(value))


def test_an_empty_group_has_null_protocol_and_leader() -> None:
    empty = GroupMetadata(state_timestamp_ms=5)
    expected = bytes.fromhex("0003000000000000ffffffff000000000000000500000000")
    assert encode(GroupMetadataRecord("g", empty)) == (GROUP_KEY, expected)
    assert decode(GROUP_KEY, expected) == GroupMetadataRecord("g", empty)


def test_a_tombstone_has_a_key_only() -> None:
    assert encode(GroupMetadataRecord("g", None)) == (GROUP_KEY, None)
    assert decode(GROUP_KEY, None) == GroupMetadataRecord("g", None)
