"""ListOffsets (2), OffsetForLeaderEpoch (23) and DeleteRecords (21)."""

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEndOffset,
    ListOffsetsPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from tests.conformance.dialogue import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DialogueCluster,
    append,
    batch_of,
    fetch,
    list_offset,
    list_offsets,
    produce,
    unique,
    values_of,
)
from tests.support.wire import WireClient

EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


@pytest.fixture
def topic(cluster: DialogueCluster) -> str:
    """A new topic with one partition, whose records may be of 1970."""
    return cluster.new_topic_of_any_age()


def delete_records(
    wire: WireClient, topic: str, offset: int, *, partition: int = 0
) -> DeleteRecordsPartitionResult:
    """The answer to deleting all records before that offset."""
    partitions = [PartitionOffset(partition_index=partition, offset=offset)]
    request = DeleteRecordsRequest(
        topics=[TopicOffsets(name=topic, partitions=partitions)], timeout_ms=10_000
    )
    return wire.ask(request, 2, DeleteRecordsResponse).topics[0].partitions[0]


def end_of_epoch(
    wire: WireClient, topic: str, leader_epoch: int, *, version: int = 4, current: int = -1
) -> EpochEndOffset:
    """Where an epoch ends, as the leader knows it."""
    partition = OffsetForLeaderPartition(
        partition=0, leader_epoch=leader_epoch, current_leader_epoch=current
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    )
    answer = wire.ask(request, version, OffsetForLeaderEpochResponse)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_both_ends_of_a_log_are_known_in_every_version(
    wire: WireClient, topic: str, version: int
) -> None:
    """B.1: "-1 latest (HW [...]), -2 earliest"."""
    assert list_offset(wire, topic, LATEST, version=version).offset == 0
    append(wire, topic, b"a", b"b", b"c")
    delete_records(wire, topic, 1)
    for special, expected in ((LATEST, 3), (EARLIEST, 1)):
        answer = list_offset(wire, topic, special, version=version)
        assert (answer.error_code, answer.offset) == (ErrorCode.NONE, expected)
        assert answer.timestamp == -1
        assert answer.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_a_time_finds_the_first_record_that_is_not_older(
    wire: WireClient, topic: str, codec: Codec
) -> None:
    """B.1: "By time: first RECORD (not batch) with ts >= target, its own timestamp"."""
    produce(wire, topic, batch_of(b"a", b"b", b"c", timestamps=[1000, 2000, 3000], codec=codec))
    produce(wire, topic, batch_of(b"d", b"e", b"f", timestamps=[4000, 3500, 5000], codec=codec))
    for asked, offset, timestamp in (
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 2000),
        (2000, 1, 2000),
        (2500, 2, 3000),
        (3001, 3, 4000),
        (4001, 5, 5000),
        (5000, 5, 5000),
    ):
        answer = list_offset(wire, topic, asked)
        assert answer.error_code == ErrorCode.NONE
        assert (answer.offset, answer.timestamp) == (offset, timestamp), f"asked for {asked}"


def test_a_time_after_the_last_record_finds_nothing(wire: WireClient, topic: str) -> None:
    """B.1: "none: offset -1, ts -1, no error"."""
    produce(wire, topic, batch_of(b"a", timestamps=[1000]))
    answer = list_offset(wire, topic, 1001)
    assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.NONE, -1, -1)


def test_a_time_looks_only_at_what_is_not_deleted(wire: WireClient, topic: str) -> None:
    produce(wire, topic, batch_of(b"a", b"b", b"c", timestamps=[1000, 2000, 3000]))
    delete_records(wire, topic, 2)
    assert list_offset(wire, topic, 1).offset == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_record_with_the_latest_timestamp_is_known(
    wire: WireClient, topic: str, codec: Codec
) -> None:
    """B.1: "-3 offset of max timestamp (v7)"."""
    empty = list_offset(wire, topic, MAX_TIMESTAMP)
    assert (empty.error_code, empty.offset, empty.timestamp) == (ErrorCode.NONE, -1, -1)
    produce(wire, topic, batch_of(b"a", b"b", timestamps=[1000, 9000], codec=codec))
    produce(wire, topic, batch_of(b"c", b"d", timestamps=[3000, 4000], codec=codec))
    answer = list_offset(wire, topic, MAX_TIMESTAMP)
    assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.NONE, 1, 9000)


def test_a_log_without_tiers_is_all_local(wire: WireClient, topic: str) -> None:
    """B.1: "-4 earliest local (v8), -5 latest tiered (v9)"."""
    append(wire, topic, b"a", b"b")
    delete_records(wire, topic, 1)
    assert list_offset(wire, topic, EARLIEST_LOCAL, version=8).offset == 1
    tiered = list_offset(wire, topic, LATEST_TIERED, version=9)
    assert (tiered.error_code, tiered.offset) == (ErrorCode.NONE, -1)


@pytest.mark.parametrize(
    ("special", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-7, 9), (-100, 9)],
)
def test_a_special_value_that_the_version_lacks_is_unsupported(
    wire: WireClient, topic: str, special: int, version: int
) -> None:
    """B.1: "unsupported special value for the version: UNSUPPORTED_VERSION (35)"."""
    answer = list_offset(wire, topic, special, version=version)
    assert (answer.error_code, answer.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


def test_a_partition_named_twice_is_an_invalid_request(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: "Same partition twice: INVALID_REQUEST (42)"."""
    topic = cluster.new_topic_of_one_leader(2)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1, 0)]
    codes = {
        answer.partition_index: answer.error_code for answer in list_offsets(wire, topic, asked)
    }
    assert codes == {0: ErrorCode.INVALID_REQUEST, 1: ErrorCode.NONE}


def test_what_does_not_exist_has_no_offsets(wire: WireClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(wire, unique("nowhere"), LATEST).error_code == unknown
    answer = list_offset(wire, topic, LATEST, partition=5)
    assert (answer.error_code, answer.offset, answer.timestamp) == (unknown, -1, -1)


def test_list_offsets_is_fenced_by_the_leader_epoch(wire: WireClient, topic: str) -> None:
    """B.1: "v4+ leader epoch in the answer and fencing"."""
    epoch = list_offset(wire, topic, LATEST).leader_epoch
    known = list_offset(wire, topic, LATEST, current_leader_epoch=epoch)
    assert known.error_code == ErrorCode.NONE
    future = list_offset(wire, topic, LATEST, current_leader_epoch=epoch + 1)
    assert future.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_at_the_log_end(wire: WireClient, topic: str, version: int) -> None:
    """B.11: "answer the largest epoch <= asked and its END offset; asked = current: log end"."""
    append(wire, topic, b"a", b"b")
    epoch = list_offset(wire, topic, LATEST).leader_epoch
    answer = end_of_epoch(wire, topic, epoch, version=version, current=epoch)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, 2)


def test_an_unknown_epoch_has_no_end(wire: WireClient, topic: str) -> None:
    """B.11: "fence by CurrentLeaderEpoch (74/75)", "unknown: -1,-1"."""
    append(wire, topic, b"a")
    epoch = list_offset(wire, topic, LATEST).leader_epoch
    unknown = end_of_epoch(wire, topic, epoch + 5)
    assert (unknown.error_code, unknown.leader_epoch, unknown.end_offset) == (0, -1, -1)
    fenced = end_of_epoch(wire, topic, epoch, current=epoch + 1)
    assert fenced.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    nowhere = end_of_epoch(wire, unique("nowhere"), 0)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_are_deleted_up_to_an_offset(wire: WireClient, topic: str) -> None:
    """B.4: "-1 = HW; [...] lower than log start = no-op success with the current low watermark"."""
    append(wire, topic, b"a", b"b")
    append(wire, topic, b"c", b"d")
    for asked, expected in ((1, 1), (3, 3), (0, 3), (2, 3), (-1, 4), (4, 4)):
        result = delete_records(wire, topic, asked)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, expected)
        assert list_offset(wire, topic, EARLIEST).offset == expected
    assert append(wire, topic, b"e") == 4
    assert values_of(fetch(wire, topic, 4)) == [b"e"]


def test_records_that_are_not_there_yet_cannot_be_deleted(wire: WireClient, topic: str) -> None:
    """B.4: "> HW OFFSET_OUT_OF_RANGE (1)"."""
    append(wire, topic, b"a")
    for asked in (2, 10**12, -2):
        result = delete_records(wire, topic, asked)
        assert (result.error_code, result.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    unknown = delete_records(wire, topic, 0, partition=3)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("delete", ErrorCode.NONE),
    ],
)
def test_a_compacted_topic_keeps_its_records(
    wire: WireClient, cluster: DialogueCluster, policy: str, expected: ErrorCode
) -> None:
    """B.4: "compact-only topics POLICY_VIOLATION (44)"."""
    topic = cluster.new_topic(configs={"cleanup.policy": policy})
    produce(wire, topic, batch_of(b"a", keys=[b"k"]))
    assert delete_records(wire, topic, 1).error_code == expected
