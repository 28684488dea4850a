"""Records of committed offsets: Kafka's own bytes, in every version."""

import pytest

from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.records import decode, encode

TOPIC_ID = bytes.fromhex("00000000000000010000000000000002")
OFFSET_KEY = bytes.fromhex("0001000167000374c3a900000007")

# Written by the generated classes of Kafka 4.3.1 (OffsetCommitValue).
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


@pytest.mark.parametrize(("value", "expected"), OFFSET_VALUES.items())
def test_every_version_of_an_offset_is_read(value: str, expected: CommittedOffset) -> None:
    assert decode(OFFSET_KEY, bytes.fromhex(value)) == OffsetCommitRecord("g", "té", 7, expected)


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


def test_a_tombstone_has_a_key_only() -> None:
    assert encode(OffsetCommitRecord("g", "té", 7, None)) == (OFFSET_KEY, None)
    assert decode(OFFSET_KEY, None) == OffsetCommitRecord("g", "té", 7, None)


def test_key_version_0_is_an_offset_too() -> None:
    assert decode(b"\x00\x00" + OFFSET_KEY[2:], None) == OffsetCommitRecord("g", "té", 7, None)
