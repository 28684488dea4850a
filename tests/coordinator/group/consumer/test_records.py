"""The formats of consumer groups' records, compared with bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.consumer.records import (
    ClassicMemberMetadata,
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    ResolvedRegex,
)
from odradek.coordinator.group.modern.records import (
    UNKNOWN_EPOCH,
    GroupEpoch,
    MemberState,
    ModernRecord,
    TargetEpoch,
)
from odradek.coordinator.group.records import decode, encode
from odradek.protocol.errors import ProtocolError

T = bytes(range(16))
CLASSIC = ClassicMemberMetadata.of(10_000, (("range", b"\x00\x01"), ("sticky", b"")))
MEMBER = ConsumerGroupMember(
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/h",
    topic_names=("a", "b"),
    topic_regex="x.*",
    rebalance_timeout_ms=300_000,
    server_assignor="range",
)
RECORDS: list[ModernRecord] = [
    ConsumerEpochRecord("g", GroupEpoch(5, -7)),
    ConsumerEpochRecord("g", GroupEpoch(5)),
    ConsumerEpochRecord("g", None),
    ConsumerMemberRecord("g", "m", MEMBER),
    ConsumerMemberRecord("g", "m", ConsumerGroupMember(classic=CLASSIC)),
    ConsumerMemberRecord("g", "m", None),
    ConsumerTargetEpochRecord("g", TargetEpoch(5, 1_700_000_000_000)),
    ConsumerTargetEpochRecord("g", None),
    ConsumerTargetRecord("g", "m", {T: frozenset({3, 1})}),
    ConsumerTargetRecord("g", "m", {}),
    ConsumerTargetRecord("g", "m", None),
    ConsumerCurrentRecord(
        "g",
        "m",
        ConsumerCurrentAssignment(5, 4, MemberState.UNREVOKED, {T: {0: 2, 1: 5}}, {T: {2: 4}}),
    ),
    ConsumerCurrentRecord("g", "m", ConsumerCurrentAssignment(-2, 4)),
    ConsumerCurrentRecord("g", "m", None),
    ConsumerRegexRecord("g", "x.*", ResolvedRegex(("xa", "xb"), 17, 1_700_000_000_000)),
    ConsumerRegexRecord("g", "x.*", None),
]


@pytest.mark.parametrize("record", RECORDS)
def test_written_records_are_read(record: ModernRecord) -> None:
    assert decode(*encode(record)) == record


def test_the_bytes_are_those_of_kafka() -> None:
    """The bytes follow from the schemas of Kafka 4.3.1."""
    group = b"\x00\x01g"
    member = b"\x00\x01m"
    assert encode(ConsumerEpochRecord("g", GroupEpoch(5, 1))) == (
        b"\x00\x03" + group,
        b"\x00\x00\x00\x00\x00\x05\x01\x00\x08" + bytes(7) + b"\x01",
    )
    assert encode(ConsumerMemberRecord("g", "m", MEMBER)) == (
        b"\x00\x05" + group + member,
        b"\x00\x00\x02i\x02r\x02c\x03/h\x03\x02a\x02b\x04x.*\x00\x04\x93\xe0\x06range\x00",
    )
    assert encode(ConsumerTargetRecord("g", "m", {T: frozenset({1})})) == (
        b"\x00\x07" + group + member,
        b"\x00\x00\x02" + T + b"\x02\x00\x00\x00\x01\x00\x00",
    )
    current = ConsumerCurrentAssignment(5, 4, MemberState.STABLE, {T: {1: 5}}, {})
    assert encode(ConsumerCurrentRecord("g", "m", current)) == (
        b"\x00\x08" + group + member,
        b"\x00\x00\x00\x00\x00\x05\x00\x00\x00\x04\x00\x02"
        + T
        + b"\x02\x00\x00\x00\x01\x01\x00\x05\x02\x00\x00\x00\x05\x01\x00",
    )
    assert encode(ConsumerRegexRecord("g", "x", ResolvedRegex(("a",), 1, 2))) == (
        b"\x00\x10" + group + b"\x00\x01x",
        b"\x00\x00\x02\x02a" + bytes(7) + b"\x01" + bytes(7) + b"\x02\x00",
    )


def test_partitions_without_epochs_are_read_as_of_unknown_epochs() -> None:
    """Kafka before 4.3 writes none."""
    value = (
        b"\x00\x00\x00\x00\x00\x05\x00\x00\x00\x04\x00\x02"
        + T
        + b"\x02\x00\x00\x00\x01\x00\x01\x00"
    )
    record = decode(b"\x00\x08\x00\x01g\x00\x01m", value)
    assert isinstance(record, ConsumerCurrentRecord)
    assert record.value is not None
    assert record.value.assigned == {T: {1: UNKNOWN_EPOCH}}


def test_a_state_of_another_release_is_read_as_unknown() -> None:
    value = b"\x00\x00\x00\x00\x00\x05\x00\x00\x00\x04\x09\x01\x01\x00"
    record = decode(b"\x00\x08\x00\x01g\x00\x01m", value)
    assert isinstance(record, ConsumerCurrentRecord)
    assert record.value is not None
    assert record.value.state is MemberState.UNKNOWN


def test_a_value_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="ConsumerGroupMetadataValue version 1"):
        decode(b"\x00\x03\x00\x01g", b"\x00\x01")


@given(st.sampled_from([3, 5, 6, 7, 8, 16]), st.binary(max_size=40), st.binary(max_size=60))
def test_random_bytes_raise_protocol_error(kind: int, key: bytes, value: bytes) -> None:
    try:
        decode(kind.to_bytes(2, "big") + key, b"\x00\x00" + value)
    except ProtocolError:
        return
