"""What clients older than Kafka 1.0 say: message sets, one-group requests, offsets without times.

Kafka 4 has dropped these versions (KIP-896); these tests are proven against Kafka 3.9. They are
skipped where the broker does not list the version.
"""

import gzip
import struct
import zlib

import pytest

from odradek.protocol.apis import ApiKey
from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse, PartitionData
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from odradek.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsPartitionResponse
from odradek.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from odradek.protocol.records import MAGIC
from tests.conformance.dialogue import (
    EARLIEST,
    LATEST,
    DialogueCluster,
    batch_of,
    batches_of,
    bytes_of,
    fetch,
    fetch_request,
    list_offsets,
    now_ms,
    partitions_of,
    produce,
    produce_request,
    records_of,
    unique,
)
from tests.conformance.members import RawMember, wait_for_coordinator
from tests.support.message_sets import Message, iter_messages
from tests.support.wire import WireClient

KeyAndValue = tuple[bytes | None, bytes | None]

CREATE_TIME_FLAG, APPEND_TIME_FLAG = 0, 8
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


@pytest.fixture(autouse=True)
def old_versions(cluster: DialogueCluster) -> None:
    """Skip on a broker that has dropped them."""
    if cluster.is_kafka_4:
        pytest.skip("this broker has dropped the versions of the time before Kafka 1.0")


def message(
    magic: int,
    key: bytes | None,
    value: bytes | None,
    *,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = -1,
) -> bytes:
    """One message as Kafka 0.8 (format 0) or 0.10 (format 1) wrote it."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def message_set(
    magic: int, *pairs: KeyAndValue, codec: Codec = Codec.NONE, timestamp: int = -1
) -> bytes:
    """A message set as an old producer sends it, wrapped if it is compressed."""
    messages = b"".join(
        message(magic, key, value, offset=offset, timestamp=timestamp)
        for offset, (key, value) in enumerate(pairs)
    )
    if codec is Codec.NONE:
        return messages
    packed = (
        gzip.compress(messages)
        if codec is Codec.GZIP
        else compress(codec, messages, is_format_0=magic == 0)
    )
    return message(
        magic, None, packed, offset=len(pairs) - 1, attributes=codec, timestamp=timestamp
    )


def send(wire: WireClient, topic: str, messages: bytes, version: int) -> PartitionProduceResponse:
    """Produce a message set."""
    answer = wire.ask(produce_request(topic, {0: messages}), version, ProduceResponse)
    return answer.responses[0].partition_responses[0]


def read_old(
    wire: WireClient, topic: str, offset: int, version: int, **limits: int
) -> PartitionData:
    """Fetch with a version that knows no record batches."""
    request = fetch_request(topic, {0: offset}, **limits)
    if version < 3:
        request.max_bytes = 2**31 - 1
    return partitions_of(wire.ask(request, version, FetchResponse))[0]


def whole_messages(data: PartitionData) -> bytes:
    """The messages of an answer without the one that is cut at its end: Kafka fills up with it."""
    messages = bytes_of(data)
    at = 0
    while at + 12 <= len(messages):
        end = at + 12 + int.from_bytes(messages[at + 8 : at + 12])
        if end > len(messages):
            break
        at = end
    return messages[:at]


def consume_old(wire: WireClient, topic: str, offset: int, end: int, version: int) -> list[Message]:
    """All messages from that offset to the end, in as many fetches as it takes."""
    found: list[Message] = []
    while offset < end:
        data = read_old(wire, topic, offset, version)
        assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, end)
        messages = list(iter_messages(whole_messages(data)))
        found += (each for each in messages if each.offset >= offset)
        assert messages[-1].offset >= offset, "every fetch must bring something new"
        offset = messages[-1].offset + 1
    return found


PAIRS: list[KeyAndValue] = [(b"k1", b"v1"), (None, b"v2"), (b"k3", None), (b"", b"")]


@pytest.mark.no_restarts("a message set that is sent again is written again")
@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_message_sets_are_read_as_records(
    wire: WireClient, topic: str, version: int, magic: int, codec: Codec
) -> None:
    """B.1: "advertise 0-13"; old formats are converted up."""
    now = now_ms()
    for base_offset in (0, 4):
        messages = message_set(magic, *PAIRS, codec=codec, timestamp=now)
        result = send(wire, topic, messages, version)
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, base_offset)
    data = fetch(wire, topic, 0)
    records = records_of(data)
    assert [record.offset for record in records] == list(range(8))
    assert [(record.key, record.value) for record in records] == PAIRS * 2
    assert {record.timestamp for record in records} == {now if magic == 1 else -1}
    assert {batch[16] for batch in batches_of(data)} == {MAGIC}


@pytest.mark.parametrize("version", range(3))
def test_a_damaged_message_is_corrupt(wire: WireClient, topic: str, version: int) -> None:
    """B.1: "CRC wrong: CORRUPT_MESSAGE (2)"."""
    messages = bytearray(message_set(0, *PAIRS))
    messages[-1] ^= 1
    messages[30] ^= 1
    assert send(wire, topic, bytes(messages), version).error_code == ErrorCode.CORRUPT_MESSAGE


def test_old_producers_get_append_time_too(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.1: "LogAppendTime topics return log_append_time_ms (else -1)", from version 2."""
    topic = cluster.new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    result = send(wire, topic, message_set(1, *PAIRS, timestamp=5), 2)
    assert before <= result.log_append_time_ms <= now_ms()


@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
@pytest.mark.parametrize("version", range(4))
def test_records_are_read_as_message_sets(
    wire: WireClient, topic: str, version: int, codec: Codec
) -> None:
    """Issue 3: message sets are "converted up on produce and down on fetch for old clients"."""
    now = now_ms()
    for _ in range(2):
        batch = batch_of(
            *(value for _, value in PAIRS),
            keys=[key for key, _ in PAIRS],
            timestamps=[now] * len(PAIRS),
            codec=codec,
        )
        assert produce(wire, topic, batch).error_code == ErrorCode.NONE
    magic = 0 if version < 2 else 1
    for offset in (0, 4, 5):
        found = consume_old(wire, topic, offset, 8, version)
        assert [each.offset for each in found] == list(range(offset, 8))
        assert [(each.key, each.value) for each in found] == (PAIRS * 2)[offset:]
        assert {each.magic for each in found} == {magic}
        assert {each.timestamp for each in found} == {now if magic == 1 else -1}


@pytest.mark.parametrize("version", range(4))
def test_old_consumers_cannot_read_zstd(wire: WireClient, topic: str, version: int) -> None:
    """KIP-110: UNSUPPORTED_COMPRESSION_TYPE (76) below Fetch 10."""
    assert produce(wire, topic, batch_of(b"a" * 100, codec=Codec.ZSTD)).error_code == 0
    data = read_old(wire, topic, 0, version)
    assert data.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", range(4))
def test_old_consumers_learn_of_errors(wire: WireClient, topic: str, version: int) -> None:
    assert read_old(wire, topic, 1, version).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    nowhere = read_old(wire, unique("nowhere"), 0, version)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    data = read_old(wire, topic, 0, version, max_wait_ms=50)
    assert (data.error_code, bytes_of(data)) == (ErrorCode.NONE, b"")


def old_offsets(
    wire: WireClient, topic: str, timestamp: int, count: int
) -> ListOffsetsPartitionResponse:
    """ListOffsets 0: up to that many offsets, from before that time."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=count)
    return list_offsets(wire, topic, [asked], version=0)[0]


def test_offsets_are_listed_as_they_used_to_be(wire: WireClient, topic: str) -> None:
    """ListOffsets 0: segment starts before a time, newest first; -1 latest, -2 earliest."""
    for _ in range(3):
        produce(wire, topic, batch_of(b"a", b"b"))
    assert old_offsets(wire, topic, LATEST, 1).old_style_offsets == [6]
    assert old_offsets(wire, topic, EARLIEST, 1).old_style_offsets == [0]
    both = old_offsets(wire, topic, LATEST, 10).old_style_offsets
    assert both[0] == 6
    assert both[-1] == 0
    assert old_offsets(wire, topic, LATEST, 0).old_style_offsets == []
    nowhere = old_offsets(wire, unique("nowhere"), LATEST, 1)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(2))
def test_offsets_are_committed_as_they_used_to_be(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str, version: int
) -> None:
    """OffsetCommit 1 and OffsetFetch 1: offsets in Kafka, with a commit time of the client's."""
    wait_for_coordinator(cluster, group)
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata="old"
    )
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )
    answer = wire.ask(request, 1, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    fetched = wire.ask(
        OffsetFetchRequest(group_id=group, topics=[asked]), 1 + version, OffsetFetchResponse
    )
    (found,) = fetched.topics[0].partitions
    assert (found.error_code, found.committed_offset, found.metadata) == (0, 7, "old")


def test_version_0_of_commits_has_neither_member_nor_generation(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str
) -> None:
    """OffsetCommit 0 and OffsetFetch 0. Kafka kept these in ZooKeeper; we have one place for all,
    so they are seen in both versions.
    """
    wait_for_coordinator(cluster, group)
    if cluster.versions[ApiKey.FETCH].stop <= 18:
        pytest.skip("Kafka without ZooKeeper lists these versions and cannot serve them")
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_metadata="older"
    )
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )
    answer = wire.ask(request, 0, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    for version in (0, 1):
        fetched = wire.ask(
            OffsetFetchRequest(group_id=group, topics=[asked]), version, OffsetFetchResponse
        )
        (found,) = fetched.topics[0].partitions
        assert (found.error_code, found.committed_offset, found.metadata) == (0, 9, "older")


def test_version_0_of_join_uses_the_session_timeout_for_rebalances(
    wire: WireClient, cluster: DialogueCluster, group: str
) -> None:
    """B.2: "v0 uses session timeout as rebalance timeout"."""
    wait_for_coordinator(cluster, group)
    member = RawMember(wire, group, version=0)
    answer = member.join()
    assert answer.leader == member.id
    assert member.sync({member.id: b"all"}).assignment == b"all"
