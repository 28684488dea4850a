"""Produce (0): what is accepted, at which offset, and the code for everything that is not."""

import itertools

import pytest

from odradek.coordinator.ownership import shard_of
from odradek.protocol.apis import ApiKey
from odradek.protocol.checksum import crc32c
from odradek.protocol.codec import decode_response, decode_response_header
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    Record,
    build_batch,
    compression_of,
    read_header,
)
from tests.conformance.dialogue import (
    PRODUCE,
    DialogueCluster,
    append,
    batch_of,
    batches_of,
    bytes_of,
    describe_topic,
    fetch,
    now_ms,
    produce,
    produce_request,
    records_of,
    unique,
    values_of,
)
from tests.support.poison_batches import BODIES, GOOD_BODIES, raw_batch, raw_record
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, frame_of

HOUR_MS = 3_600_000
RECORD_COUNT_AT = 57
LAST_OFFSET_DELTA_AT = 23


def patched(batch: bytes, at: int, patch: bytes) -> bytes:
    """The batch with other bytes at that place of its header, and a right CRC again."""
    changed = bytearray(batch)
    changed[at : at + len(patch)] = patch
    changed[CRC_AT : CRC_AT + 4] = crc32c(bytes(changed[ATTRIBUTES_AT:])).to_bytes(4)
    return bytes(changed)


@pytest.mark.parametrize("acks", [2, -2, 127])
def test_acks_must_be_all_one_or_none(wire: WireClient, topic: str, acks: int) -> None:
    """B.1: "acks must be -1, 0 or 1, else INVALID_REQUIRED_ACKS (21)"."""
    result = produce(wire, topic, batch_of(b"a"), acks=acks)
    assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert result.base_offset == -1
    assert append(wire, topic, b"b") == 0


@pytest.mark.parametrize("version", range(3, 13))
def test_offsets_count_up_in_every_version(
    cluster: DialogueCluster, wire: WireClient, version: int
) -> None:
    topic = cluster.new_topic()
    for expected in (0, 3, 6):
        result = produce(wire, topic, batch_of(b"a", b"b", b"c"), version=version)
        assert result.error_code == ErrorCode.NONE
        assert result.base_offset == expected
        assert result.log_append_time_ms == -1
        assert result.log_start_offset == (0 if version >= 5 else -1)
        assert result.record_errors == []


def test_a_topic_may_be_named_by_its_id(
    cluster: DialogueCluster, wire: WireClient, topic: str
) -> None:
    """B.1: "v13: topic ids, UNKNOWN_TOPIC_ID"."""
    for topic_id, expected in (
        (cluster.topic_id(topic), ErrorCode.NONE),
        (b"\x01" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        partition = PartitionProduceData(index=0, records=memoryview(batch_of(b"by id")))
        request = ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[partition])],
        )
        (answered,) = wire.ask(request, 13, ProduceResponse).responses
        assert answered.topic_id == topic_id
        assert answered.partition_responses[0].error_code == expected


def test_what_is_fetched_is_what_was_produced_byte_for_byte(wire: WireClient, topic: str) -> None:
    """Only base offset and leader epoch may be rewritten; the CRC does not cover them."""
    records = [
        Record(0, now_ms(), b"key", b"value", [("h", b"1"), ("h", None), ("", b"")]),
        Record(1, now_ms(), None, None, []),
        Record(2, now_ms(), b"", b"", []),
    ]
    for codec in Codec:
        sent = build_batch(records, codec=codec)
        base_offset = produce(wire, topic, sent).base_offset
        got = bytes_of(fetch(wire, topic, base_offset))
        assert int.from_bytes(got[:8]) == base_offset
        assert got[8:12] == sent[8:12]
        assert got[16:] == sent[16:]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_topic_that_does_not_exist_is_unknown(wire: WireClient, acks: int) -> None:
    result = produce(wire, unique("nowhere"), batch_of(b"a"), acks=acks)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert result.base_offset == -1


def test_a_partition_that_does_not_exist_does_not_spoil_the_others(
    wire: WireClient, topic: str
) -> None:
    request = produce_request(topic, {0: batch_of(b"a"), 7: batch_of(b"b")})
    (answered,) = wire.ask(request, PRODUCE, ProduceResponse).responses
    codes = {result.index: result.error_code for result in answered.partition_responses}
    assert codes == {0: ErrorCode.NONE, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_what_the_coordinators_keep_is_theirs_to_write(wire: WireClient, topic: str) -> None:
    """A record that no coordinator understands would cost the groups of that partition their
    coordinator, so only the administrators' own client may write there, as in Kafka.
    """
    asked = FindCoordinatorRequest(key="a", key_type=0)

    def is_there() -> bool:
        return not wire.ask(asked, 2, FindCoordinatorResponse).error_code

    wait_until(is_there, timeout_s=30, what="the coordinators' topic is there")
    batch = batch_of(b"no offset", keys=[b"\x00\x01"])
    result = produce(wire, "__consumer_offsets", batch)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.base_offset == -1

    of_no_known_type = batch_of(b"", keys=[b"\x7f\xff"])
    request = produce_request("__consumer_offsets", {0: of_no_known_type})
    wire.send_raw(frame_of(request, PRODUCE, 7, client_id="__admin_client"))
    frame = wire.receive_frame()
    _, at = decode_response_header(ApiKey.PRODUCE, PRODUCE, frame)
    answer = decode_response(ApiKey.PRODUCE, PRODUCE, frame, at)
    assert isinstance(answer, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    # Ours notices with its next record that somebody else has written, and reads the log anew: the
    # groups of that partition go on.
    shard_count = len(describe_topic(wire, "__consumer_offsets").partitions)
    groups = (f"{unique('group')}-{number}" for number in itertools.count())
    group = next(name for name in groups if shard_of(name, shard_count) == 0)

    def goes_on() -> bool:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
        )
        answered = wire.ask(request, 8, OffsetCommitResponse)
        return answered.topics[0].partitions[0].error_code == ErrorCode.NONE

    wait_until(goes_on, what="the coordinator takes commits")


def test_a_wrong_checksum_is_a_corrupt_message(wire: WireClient, topic: str) -> None:
    """B.1: "CRC wrong: CORRUPT_MESSAGE (2)"."""
    for at in (CRC_AT, ATTRIBUTES_AT + 10, -1):
        batch = bytearray(batch_of(b"a"))
        batch[at] ^= 0x40
        result = produce(wire, topic, bytes(batch))
        assert result.error_code == ErrorCode.CORRUPT_MESSAGE
        assert result.base_offset == -1
    assert append(wire, topic, b"b") == 0


@pytest.mark.parametrize("batch_count", [0, 2, 3])
def test_a_partition_takes_exactly_one_batch(
    wire: WireClient, topic: str, batch_count: int
) -> None:
    """B.1: "Exactly one v2 batch per partition, else INVALID_RECORD (87)"."""
    result = produce(wire, topic, batch_of(b"a") * batch_count)
    assert result.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_is_refused_by_new_versions(wire: WireClient, topic: str, magic: int) -> None:
    """B.1: "Exactly one v2 batch per partition, else INVALID_RECORD (87)"."""
    batch = bytearray(batch_of(b"a"))
    batch[16] = magic
    assert produce(wire, topic, bytes(batch)).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: "larger than max.message.bytes: MESSAGE_TOO_LARGE (10)"."""
    topic = cluster.new_topic(configs={"max.message.bytes": "2000"})
    overhead = len(batch_of(b"x" * 1000)) - 1000
    assert produce(wire, topic, batch_of(b"x" * (2000 - overhead))).base_offset == 0
    result = produce(wire, topic, batch_of(b"x" * (2001 - overhead)))
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert result.base_offset == -1


def test_a_megabyte_passes_by_default(wire: WireClient, topic: str) -> None:
    """Kafka's default: max.message.bytes=1048588."""
    overhead = len(batch_of(b"x" * 1_000_000)) - 1_000_000
    assert append(wire, topic, b"x" * (1_048_588 - overhead)) == 0
    result = produce(wire, topic, batch_of(b"x" * (1_048_589 - overhead)))
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
    (record,) = records_of(fetch(wire, topic, 0))
    assert record.value == b"x" * (1_048_588 - overhead)


@pytest.mark.parametrize("version", range(3, 10))
def test_zstd_needs_version_7(wire: WireClient, topic: str, version: int) -> None:
    """B.1: "zstd with v<7: UNSUPPORTED_COMPRESSION_TYPE (76)"."""
    result = produce(wire, topic, batch_of(b"a" * 100, codec=Codec.ZSTD), version=version)
    expected = ErrorCode.NONE if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert result.error_code == expected


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_compacted_topic_needs_keys(
    wire: WireClient, cluster: DialogueCluster, codec: Codec
) -> None:
    """B.1: "null key on a compacted topic [...]: INVALID_RECORD with per-record RecordErrors
    (v8+)".
    """
    topic = cluster.new_topic(configs={"cleanup.policy": "compact"})
    batch = batch_of(b"a", b"b", b"c", keys=[b"key", None, None], codec=codec)
    result = produce(wire, topic, batch)
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == [1, 2]
    assert result.error_message
    assert produce(wire, topic, batch, version=7).error_code == ErrorCode.INVALID_RECORD
    assert produce(wire, topic, batch_of(b"a", keys=[b""], codec=codec)).base_offset == 0


def test_a_client_may_not_write_control_batches(wire: WireClient, topic: str) -> None:
    """B.1: "a client control batch: INVALID_RECORD"."""
    result = produce(wire, topic, batch_of(b"a", keys=[b"\0\0\0\0"], attributes=CONTROL))
    assert result.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_client_may_set_the_flag_of_the_delete_horizon(
    wire: WireClient, topic: str, codec: Codec
) -> None:
    """A batch that another cluster has compacted is produced as it is."""
    stamps = [now_ms() - 5_000, now_ms() - 3_000]
    batch = batch_of(b"a", b"b", timestamps=stamps, codec=codec, attributes=DELETE_HORIZON)
    assert produce(wire, topic, batch).error_code == ErrorCode.NONE
    header = read_header(batches_of(fetch(wire, topic, 0))[0])
    assert header.attributes == DELETE_HORIZON | codec
    assert [header.base_timestamp, header.max_timestamp] == stamps


def test_the_counts_of_a_batch_must_agree(wire: WireClient, topic: str) -> None:
    """B.1: "bad inner offsets [...]: INVALID_RECORD"."""
    batch = batch_of(b"a", b"b")
    for at, count in ((RECORD_COUNT_AT, 3), (RECORD_COUNT_AT, 1), (LAST_OFFSET_DELTA_AT, 5)):
        result = produce(wire, topic, patched(batch, at, count.to_bytes(4)))
        assert result.error_code == ErrorCode.INVALID_RECORD
    empty = patched(batch_of(), RECORD_COUNT_AT, bytes(4))
    assert produce(wire, topic, empty).error_code == ErrorCode.INVALID_RECORD


_OFFSET_DELTAS = {name for name in BODIES if "offset delta" in name}
KAFKA_ANSWERS: dict[Codec, dict[ErrorCode, set[str]]] = {
    Codec.NONE: {
        ErrorCode.NONE: _OFFSET_DELTAS,
        ErrorCode.UNKNOWN_SERVER_ERROR: {"bytes of 255", "record length of six bytes"},
    },
    Codec.LZ4: {
        ErrorCode.NONE: {
            "negative record length",
            "record length too large",
            "record length too small",
        },
        ErrorCode.UNKNOWN_SERVER_ERROR: {*_OFFSET_DELTAS, "value exceeds the record into the next"},
    },
}
"""Where Kafka 4.3 accepts what it or a client cannot read, or stumbles with an error that ends some
clients. We answer INVALID_RECORD."""


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_with_a_fault_are_refused(
    wire: WireClient, cluster: DialogueCluster, codec: Codec
) -> None:
    """B.1: "bad inner offsets [...]: INVALID_RECORD with per-record RecordErrors (v8+)"; every
    record of every batch is read (Kafka's LogValidator).
    """
    topic = cluster.new_topic()
    expected = {
        name: ErrorCode.NONE if name in GOOD_BODIES else ErrorCode.INVALID_RECORD for name in BODIES
    }
    if cluster.is_kafka_4:
        for code, names in KAFKA_ANSWERS[codec].items():
            expected |= dict.fromkeys(names, code)
    answered = {}
    for name, body in BODIES.items():
        records = b"".join(body.records)
        batch = raw_batch(records, body.record_count, base_timestamp=now_ms(), codec=codec)
        answered[name] = ErrorCode(produce(wire, topic, batch).error_code)
    assert answered == expected


def test_the_records_with_wrong_offsets_are_named(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """As above. Kafka names records for their keys and timestamps only."""
    if cluster.is_kafka_4:
        pytest.skip("Kafka does not name them")
    records = raw_record(0) + raw_record(2) + raw_record(2)
    result = produce(wire, cluster.new_topic(), raw_batch(records, 3, base_timestamp=now_ms()))
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == [1]
    assert result.error_message


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_max_timestamp_is_computed_from_the_records(
    wire: WireClient, topic: str, codec: Codec
) -> None:
    """Whatever the header says: retention and lookups by time rely on it."""
    now = now_ms()
    records = raw_record(0) + raw_record(1, 30) + raw_record(2, -5)
    for claimed in (-1, now - 5_000, now + 100, now + 50 * HOUR_MS):
        sent = raw_batch(records, 3, base_timestamp=now, max_timestamp=claimed, codec=codec)
        result = produce(wire, topic, sent)
        assert result.error_code == ErrorCode.NONE
        (stored, *_) = batches_of(fetch(wire, topic, result.base_offset))
        assert read_header(stored).max_timestamp == now + 30
        assert read_header(stored).crc == crc32c(bytes(stored[ATTRIBUTES_AT:]))
        assert bytes(stored[61:]) == sent[61:]


def test_a_timestamp_that_the_header_hides_is_refused(wire: WireClient, topic: str) -> None:
    """B.1: "timestamp outside message.timestamp.{before,after}.max.ms: INVALID_TIMESTAMP (32)"."""
    records = raw_record(0) + raw_record(1, 3 * HOUR_MS)
    result = produce(wire, topic, raw_batch(records, 2, base_timestamp=now_ms()))
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in result.record_errors] == [1]


def test_a_timestamp_too_far_in_the_future_is_refused(wire: WireClient, topic: str) -> None:
    """B.1: "timestamp outside message.timestamp.{before,after}.max.ms: INVALID_TIMESTAMP (32)"."""
    now = now_ms()
    batch = batch_of(b"a", b"b", timestamps=[now, now + 2 * HOUR_MS])
    result = produce(wire, topic, batch)
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in result.record_errors] == [1]
    near = batch_of(b"a", timestamps=[now + HOUR_MS // 2])
    assert produce(wire, topic, near).error_code == ErrorCode.NONE


def test_a_timestamp_may_be_as_old_as_the_topic_allows(
    wire: WireClient, cluster: DialogueCluster
) -> None:
    """B.1: as above; before.max.ms has no limit unless it is set."""
    topic = cluster.new_topic()
    assert produce(wire, topic, batch_of(b"a", timestamps=[0])).error_code == ErrorCode.NONE
    limited = cluster.new_topic(configs={"message.timestamp.before.max.ms": str(HOUR_MS)})
    result = produce(wire, limited, batch_of(b"a", timestamps=[now_ms() - 2 * HOUR_MS]))
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_topic_with_append_time_stamps_the_batch(
    wire: WireClient, cluster: DialogueCluster, codec: Codec
) -> None:
    """B.1: "LogAppendTime topics return log_append_time_ms (else -1)"."""
    topic = cluster.new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    result = produce(wire, topic, batch_of(b"a", b"b", timestamps=[5, 6], codec=codec))
    assert before <= result.log_append_time_ms <= now_ms()
    (batch,) = batches_of(fetch(wire, topic, 0))
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == result.log_append_time_ms
    assert header.crc == crc32c(bytes(batch[ATTRIBUTES_AT:]))
    assert values_of(fetch(wire, topic, 0)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [("producer", Codec.LZ4), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP)],
)
def test_a_topic_may_choose_the_compression(
    wire: WireClient, cluster: DialogueCluster, config: str, expected: Codec
) -> None:
    topic = cluster.new_topic(configs={"compression.type": config})
    values = [b"%d" % number * 100 for number in range(10)]
    assert produce(wire, topic, batch_of(*values, codec=Codec.LZ4)).error_code == ErrorCode.NONE
    data = fetch(wire, topic, 0)
    assert values_of(data) == values
    assert {compression_of(read_header(batch).attributes) for batch in batches_of(data)} == {
        expected
    }
