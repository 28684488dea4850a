"""The formats of streams groups' records, compared with bytes that Kafka 4.3.1 has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordinator.group.modern.records import (
    UNKNOWN_EPOCH,
    MemberState,
    ModernRecord,
    TargetEpoch,
)
from odradek.coordinator.group.records import decode, encode
from odradek.coordinator.group.streams.records import (
    InternalTopic,
    StoredCopartitionGroup,
    StoredPair,
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    StreamsEndpoint,
    StreamsEpochRecord,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsMemberRecord,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
    StreamsTopologyRecord,
    Subtopology,
    TasksTuple,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.protocol.errors import ProtocolError

STANDBY = StoredPair("num.standby.replicas", "1")
COMPACT = StoredPair("cleanup.policy", "compact")
KAFKAS: list[tuple[ModernRecord, str, str]] = [
    (
        StreamsEpochRecord(
            "g", StreamsGroupEpoch(7, -5, 3, (StoredPair("num.standby.replicas", "1"),))
        ),
        "0011000167",
        "000000000007fffffffffffffffb02000400000003011902156e756d2e7374616e6462792e7265706c69636173"
        "023100",
    ),
    (
        StreamsEpochRecord("g", StreamsGroupEpoch(2)),
        "0011000167",
        "000000000002000000000000000000",
    ),
    (
        StreamsMemberRecord(
            "g",
            "m",
            StreamsGroupMember(
                instance_id="i",
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=300_000,
                topology_epoch=3,
                process_id="p",
                endpoint=StreamsEndpoint("e", 65_535),
                client_tags=(StoredPair("k", "v"),),
            ),
        ),
        "001300016700016d",
        "00000269000263032f68000493e0000000030270010265ffff0002026b02760000",
    ),
    (
        StreamsMemberRecord(
            "g", "m", StreamsGroupMember(rack_id="r", topology_epoch=0, process_id="p")
        ),
        "001300016700016d",
        "00000002720101ffffffff000000000270ff0100",
    ),
    (
        StreamsTargetEpochRecord("g", TargetEpoch(7, 12_345)),
        "0014000167",
        "0000000000070100080000000000003039",
    ),
    (
        StreamsTargetRecord("g", "m", TasksTuple({"0": frozenset({0, 2})}, {"1": frozenset({1})})),
        "001500016700016d",
        "0000020230030000000000000002000202310200000001000100",
    ),
    (
        StreamsCurrentRecord(
            "g",
            "m",
            StreamsCurrentAssignment(
                7,
                6,
                MemberState.UNREVOKED,
                TasksTupleWithEpochs({"0": {0: 5, 2: 7}}, {"1": frozenset({1})}),
                TasksTupleWithEpochs({"1": {3: 4}}),
            ),
        ),
        "001600016700016d",
        "000000000007000000060202023003000000000000000201000903000000050000000702023102000000010001"
        "02023102000000030100050200000004010100",
    ),
    (
        StreamsTopologyRecord(
            "g",
            Topology(
                3,
                (
                    Subtopology(
                        subtopology_id="0",
                        source_topics=("a", "b"),
                        state_changelog_topics=(
                            InternalTopic("c", 0, 1, (StoredPair("cleanup.policy", "compact"),)),
                        ),
                        repartition_sink_topics=("s",),
                        repartition_source_topics=(InternalTopic("r", 4),),
                        copartition_groups=(StoredCopartitionGroup((1,), (), (0,)),),
                    ),
                ),
            ),
        ),
        "0017000167",
        "000000000003020230030261026201020263000000000001020f636c65616e75702e706f6c69637908636f6d70"
        "616374000002027302027200000004000001000202000101020000000000",
    ),
]
GONE: list[ModernRecord] = [
    StreamsEpochRecord("g", None),
    StreamsMemberRecord("g", "m", None),
    StreamsTargetEpochRecord("g", None),
    StreamsTargetRecord("g", "m", None),
    StreamsCurrentRecord("g", "m", None),
    StreamsTopologyRecord("g", None),
]


@pytest.mark.parametrize(("record", "key", "value"), KAFKAS)
def test_the_bytes_are_those_of_kafka(record: ModernRecord, key: str, value: str) -> None:
    written = encode(record)
    assert written[0].hex() == key
    assert written[1] is not None
    assert written[1].hex() == value
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@pytest.mark.parametrize("record", GONE)
def test_a_null_value_is_a_tombstone(record: ModernRecord) -> None:
    key, value = encode(record)
    assert value is None
    assert decode(key, None) == record


@pytest.mark.parametrize(("record", "key", "value"), KAFKAS)
def test_a_truncated_value_is_malformed(record: ModernRecord, key: str, value: str) -> None:
    octets = bytes.fromhex(value)
    # The last byte is the number of tagged fields, which is 0 here.
    for length in range(len(octets) - 1):
        with pytest.raises(ProtocolError):
            decode(bytes.fromhex(key), octets[:length])


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="StreamsGroupMetadataValue version 1"):
        decode(bytes.fromhex("0011000167"), b"\x00\x01" + bytes(13))


def test_the_record_type_that_kafka_removed_decodes_to_none() -> None:
    assert decode(bytes.fromhex("0012000167"), b"\x00\x00\x00") is None


def test_a_state_of_a_newer_release_is_read_as_unknown() -> None:
    key, value = encode(StreamsCurrentRecord("g", "m", StreamsCurrentAssignment(1)))
    assert value is not None
    read = decode(key, value[:10] + b"\x09" + value[11:])
    assert isinstance(read, StreamsCurrentRecord)
    assert read.value is not None
    assert read.value.state is MemberState.UNKNOWN


def test_tasks_without_epochs_have_unknown_ones() -> None:
    key, _ = encode(StreamsCurrentRecord("g", "m", None))
    value = bytes.fromhex(
        "0000" + "00000007" + "00000006" + "01" + "02" + "0230" + "0200000003" + "00"
    )
    read = decode(key, value + b"\x01" * 5 + b"\x00")
    assert isinstance(read, StreamsCurrentRecord)
    assert read.value is not None
    assert read.value.assigned.active == {"0": {3: UNKNOWN_EPOCH}}


_texts = st.text(max_size=5)
_tasks = st.dictionaries(_texts, st.frozensets(st.integers(0, 9), min_size=1), max_size=3)
_epochs = st.dictionaries(
    _texts, st.dictionaries(st.integers(0, 9), st.integers(0, 99), min_size=1), max_size=3
)
_held = st.builds(TasksTupleWithEpochs, _epochs, _tasks, _tasks)


@given(_held, _held, st.sampled_from(MemberState))
def test_any_current_assignment_is_read_as_it_was_written(
    assigned: TasksTupleWithEpochs, pending: TasksTupleWithEpochs, state: MemberState
) -> None:
    record = StreamsCurrentRecord(
        "g", "m", StreamsCurrentAssignment(3, 2, state, assigned, pending)
    )
    assert decode(*encode(record)) == record
