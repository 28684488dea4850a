"""Produce as clients see it (B.1): what is appended, what is answered, and when."""

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.node.bus.messages import Append
from odradek.node.router.handlers.produce import handle_produce
from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.responses import LeaderIdAndEpoch, NodeEndpoint
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch, iter_records, read_header
from tests.support.controller_harness import topic_id
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, as_stored, batch_of, read_all

NEWEST = 13
BY_NAME = 12


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 4)
    harness.follow()
    yield harness
    harness.close()


def request(
    batches: Mapping[int, bytes | None],
    *,
    acks: int = -1,
    topic: str = "t",
    number: int = 1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request of one topic: partition to records."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        transactional_id=transactional_id,
        topic_data=[topic_of(batches, topic, number)],
    )


def topic_of(batches: Mapping[int, bytes | None], topic: str, number: int) -> TopicProduceData:
    return TopicProduceData(
        name=topic,
        topic_id=topic_id(number),
        partition_data=[
            PartitionProduceData(
                index=index, records=memoryview(records) if records is not None else None
            )
            for index, records in batches.items()
        ],
    )


def answers(response: ProduceResponse | None) -> dict[int, PartitionProduceResponse]:
    assert response is not None
    return {
        partition.index: partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def produce(
    harness: RouterHarness, asked: ProduceRequest, version: int = NEWEST
) -> dict[int, PartitionProduceResponse]:
    return answers(harness.call(handle_produce, asked, version))


def produce_one(
    harness: RouterHarness, records: bytes | None, version: int = NEWEST, *, acks: int = -1
) -> PartitionProduceResponse:
    return produce(harness, request({0: records}, acks=acks), version)[0]


def stored(harness: RouterHarness, partition: int = 0) -> list[bytes]:
    store, number = harness.place("t", partition)
    reader = harness.services.logs.reader(store)
    assert reader is not None
    return read_all(reader, number)


def records_in(harness: RouterHarness) -> list[Record]:
    return [record for batch in stored(harness) for record in iter_records(memoryview(batch))]


def codes(found: Mapping[int, PartitionProduceResponse]) -> dict[int, int]:
    return {index: partition.error_code for index, partition in found.items()}


# -- what is appended ------------------------------------------------------------------------------


def test_batches_get_their_offsets_in_every_version_since_3(harness: RouterHarness) -> None:
    for count, version in enumerate(range(3, NEWEST + 1)):
        answer = produce_one(harness, batch_of(2), version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 2 * count)
        assert answer.log_append_time_ms == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert answer.current_leader is None


def test_the_log_has_the_sent_batches_byte_for_byte(harness: RouterHarness) -> None:
    batches = [batch_of(3, codec=codec, size=100) for codec in (Codec.NONE, Codec.LZ4)]
    for batch in batches:
        assert produce_one(harness, batch).error_code == ErrorCode.NONE
    assert stored(harness) == [as_stored(batches[0], 0), as_stored(batches[1], 3)]


def test_each_partition_is_appended_and_answered_by_itself(
    harness: RouterHarness,
) -> None:
    broken = bytearray(batch_of(1))
    broken[-1] ^= 0xFF
    found = produce(
        harness, request({2: batch_of(2), 0: bytes(broken), 3: batch_of(1), 9: batch_of(1)})
    )
    assert codes(found) == {
        2: ErrorCode.NONE,
        0: ErrorCode.CORRUPT_MESSAGE,
        3: ErrorCode.NONE,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [found[index].base_offset for index in (2, 0, 3, 9)] == [0, -1, 0, -1]
    assert [len(stored(harness, index)) for index in range(4)] == [0, 0, 1, 1]


def test_the_time_of_workers_is_counted_while_it_is_measured(harness: RouterHarness) -> None:
    batches = {index: batch_of(3) for index in range(2)}
    assert harness.begin_request(handle_produce, request(batches)).context.worker_ns == 0
    harness.turns.measure(is_on=True)
    one = harness.begin_request(handle_produce, request({0: batch_of(3, size=30_000)}))
    both = harness.begin_request(handle_produce, request(batches))
    assert both.context.worker_ns > 0
    assert one.context.worker_ns > 0


def test_the_response_waits_for_all_partitions(harness: RouterHarness) -> None:
    harness.worker_client.holds_back = True
    pending = harness.begin_request(
        handle_produce, request({0: batch_of(1), 1: batch_of(2)}), NEWEST
    )
    assert pending.retain_count >= 1, "the bytes are the worker's until it has answered"
    harness.worker_client.release_oldest()
    assert not pending.is_done
    harness.worker_client.release_oldest()
    assert codes(answers(pending.response())) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}


def test_batches_stay_in_the_arena_and_only_their_position_is_sent(
    harness: RouterHarness,
) -> None:
    batches = {0: batch_of(1, size=300), 1: batch_of(1, size=40_000)}
    produce(harness, request(batches))
    for sent, batch in zip(harness.worker_client.requests, batches.values(), strict=True):
        assert isinstance(sent, Append)
        assert sent.length == len(batch)
        lying = bytes(harness.arena[sent.arena_offset : sent.arena_offset + sent.length])
        assert lying[16:] == batch[16:]


def headrooms(harness: RouterHarness) -> list[bool]:
    found = []
    for sent in harness.worker_client.requests:
        assert isinstance(sent, Append)
        found.append(sent.has_headroom)
    return found


def test_headroom_is_only_used_within_one_store(harness: RouterHarness) -> None:
    """The bytes before a batch end the previous one, which another worker may still read."""
    harness.controller.has("t", 1, 4)
    harness.follow()
    # Partitions 0 and 2 are in one of two stores, 1 and 3 in the other.
    produce(harness, request({0: batch_of(1), 1: batch_of(1), 3: batch_of(1)}))
    assert headrooms(harness) == [True, False, True]


def test_a_duplicate_is_answered_with_its_base_offset(harness: RouterHarness) -> None:
    harness.append("t", batch_of(4))
    batch = batch_of(2, producer_id=7, producer_epoch=0, base_sequence=0)
    first, again = produce_one(harness, batch), produce_one(harness, batch)
    assert (first.base_offset, again.base_offset, again.error_code) == (4, 4, ErrorCode.NONE)
    assert len(stored(harness)) == 2


def test_a_topic_with_log_append_time_returns_it(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, static={"log.message.timestamp.type": "LogAppendTime"})
    harness.controller.has("t", 1, 1)
    harness.follow()
    assert produce_one(harness, batch_of(1, timestamp=5)).log_append_time_ms == NOW_MS
    harness.close()


# -- acks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
def test_valid_acks_are_answered(harness: RouterHarness, acks: int) -> None:
    assert produce_one(harness, batch_of(1), acks=acks).error_code == ErrorCode.NONE


@pytest.mark.parametrize("acks", [-2, 2, 32_767])
@pytest.mark.parametrize("version", [2, 3, NEWEST])
def test_invalid_acks_are_refused_and_nothing_is_appended(
    harness: RouterHarness, acks: int, version: int
) -> None:
    found = produce(harness, request({0: batch_of(1), 1: batch_of(1)}, acks=acks), version)
    assert codes(found) == dict.fromkeys((0, 1), ErrorCode.INVALID_REQUIRED_ACKS)
    assert stored(harness) == []


def test_acks_0_is_appended_and_not_answered(harness: RouterHarness) -> None:
    pending = harness.begin_request(handle_produce, request({0: batch_of(2)}, acks=0), NEWEST)
    assert pending.response() is None
    assert not pending.is_closed
    assert len(stored(harness)) == 1


@pytest.mark.parametrize("partition", [0, 9])
def test_acks_0_that_fails_closes_the_connection(harness: RouterHarness, partition: int) -> None:
    """There is no response for the error. The client refreshes its metadata when it reconnects."""
    broken = bytearray(batch_of(1))
    broken[-1] ^= 0xFF
    pending = harness.begin_request(
        handle_produce, request({partition: bytes(broken)}, acks=0), NEWEST
    )
    assert pending.response() is None
    assert pending.is_closed


def test_acks_all_needs_min_insync_replicas_and_acks_1_does_not(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2, static={"min.insync.replicas": "2"})
    harness.controller.has("t", 1, 1, 2)
    state = PartitionImage(replicas=(0, 1), in_sync_replicas=(0,), leader=0, leader_epoch=1)
    harness.controller.write(PartitionChanged(topic_id(1), 0, state))
    harness.follow()
    assert produce_one(harness, batch_of(1)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce_one(harness, batch_of(1), acks=1).error_code == ErrorCode.NONE
    harness.close()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 3, BY_NAME, NEWEST])
def test_unknown_topics_have_an_error_by_name_and_one_by_id(
    harness: RouterHarness, version: int
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    nowhere = request({0: batch_of(1)}, topic="nowhere", number=99)
    assert codes(produce(harness, nowhere, version)) == {0: unknown}
    for partition in (4, -1):
        found = produce(harness, request({partition: batch_of(1)}), version)
        assert codes(found) == {partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_unknown_topic_does_not_fail_the_others(harness: RouterHarness) -> None:
    asked = request({0: batch_of(1)}, topic="nowhere", number=99)
    asked.topic_data.append(topic_of({0: batch_of(1)}, "t", 1))
    for version in (BY_NAME, NEWEST):
        response = harness.call(handle_produce, asked, version)
        assert response is not None
        unknown, known = response.responses
        assert unknown.partition_responses[0].error_code != ErrorCode.NONE
        assert known.partition_responses[0].error_code == ErrorCode.NONE
        if version == BY_NAME:
            assert (unknown.name, known.name) == ("nowhere", "t")
        else:
            assert (unknown.topic_id, known.topic_id) == (topic_id(99), topic_id(1))


@pytest.mark.parametrize("topic", ["t", "nowhere"])
def test_a_denied_topic_is_refused_whether_it_exists_or_not(
    harness: RouterHarness, topic: str
) -> None:
    harness.deny(AclOperation.WRITE, ResourceType.TOPIC, topic)
    asked = request({0: batch_of(1)}, topic=topic, number=1 if topic == "t" else 99)
    assert codes(produce(harness, asked, BY_NAME)) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    by_id = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}.get(topic, ErrorCode.UNKNOWN_TOPIC_ID)
    assert codes(produce(harness, asked, NEWEST)) == {0: by_id}
    assert stored(harness) == []


def transactional_batch(*, epoch: int = 0, sequence: int = 0) -> bytes:
    return build_batch(
        [Record(0, NOW_MS, b"k", b"v")],
        attributes=TRANSACTIONAL,
        producer_id=5,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


@pytest.mark.parametrize("version", [3, 11, NEWEST])
def test_a_transactional_batch_without_a_transactional_id_is_refused(
    harness: RouterHarness, version: int
) -> None:
    found = produce(harness, request({0: transactional_batch()}), version)
    assert codes(found) == {0: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert stored(harness) == []


def test_a_denied_transactional_id_is_refused(harness: RouterHarness) -> None:
    harness.deny(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "x")
    found = produce(harness, request({0: batch_of(1)}, transactional_id="x"), NEWEST)
    assert codes(found) == {0: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert stored(harness) == []


@pytest.mark.parametrize("version", [3, NEWEST])
def test_there_must_be_exactly_one_batch_of_the_new_format(
    harness: RouterHarness, version: int
) -> None:
    refused: list[bytes | None] = [
        None,
        b"",
        batch_of(1)[:16],
        batch_of(1) * 2,
        message(1, b"k", b"v"),
    ]
    for records in refused:
        assert produce_one(harness, records, version).error_code == ErrorCode.INVALID_RECORD, (
            records
        )
    assert stored(harness) == []


def test_zstd_needs_version_7(harness: RouterHarness) -> None:
    for version in (3, 6, 7, NEWEST):
        code = produce_one(harness, batch_of(1, codec=Codec.ZSTD), version).error_code
        refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert code == (refused if version < 7 else ErrorCode.NONE), version


def test_rejected_records_are_listed_since_version_8(harness: RouterHarness) -> None:
    """KIP-467."""
    late = batch_of(3, timestamps=[NOW_MS, NOW_MS + 10**10, NOW_MS])
    for version in (7, 8, NEWEST):
        answer = produce_one(harness, late, version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
        named = [error.batch_index for error in answer.record_errors]
        assert named == ([1] if version >= 8 else [])
        assert bool(answer.error_message) == (version >= 8)
    assert stored(harness) == []


def test_a_batch_above_max_message_bytes_is_too_large(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, static={"message.max.bytes": "1000"})
    harness.controller.has("t", 1, 1)
    harness.follow()
    assert produce_one(harness, batch_of(1, size=1_000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce_one(harness, batch_of(1, size=800)).error_code == ErrorCode.NONE
    harness.close()


def test_a_failed_worker_is_a_retriable_error(harness: RouterHarness) -> None:
    harness.worker_client.is_away = True
    answer = produce_one(harness, batch_of(1))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize("version", [9, 10, NEWEST])
def test_a_former_leader_names_the_current_leader(tmp_path: Path, version: int) -> None:
    """KIP-951: the client needs no Metadata request."""
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("t", 1, 1)
    state = PartitionImage(replicas=(1,), in_sync_replicas=(1,), leader=1, leader_epoch=6)
    harness.controller.write(PartitionChanged(topic_id(1), 0, state))
    harness.follow()
    response = harness.call(handle_produce, request({0: batch_of(1)}), version)
    assert response is not None
    answer = answers(response)[0]
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert answer.current_leader == LeaderIdAndEpoch(leader_id=1, leader_epoch=6)
        assert response.node_endpoints == [
            NodeEndpoint(node_id=1, host="host-1", port=9093, rack="rack-1")
        ]
    else:
        assert (answer.current_leader, response.node_endpoints) == (None, [])
    harness.close()


# -- message sets ----------------------------------------------------------------------------------


def message(
    magic: int,
    key: bytes | None,
    value: bytes | None,
    *,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = NOW_MS,
) -> bytes:
    """One message as Kafka 0.8 (format 0) or 0.10 (format 1) wrote it."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def message_set(magic: int, values: Sequence[bytes], codec: Codec) -> bytes:
    messages = b"".join(
        message(magic, b"k", value, offset=offset) for offset, value in enumerate(values)
    )
    if codec is Codec.NONE:
        return messages
    packed = (
        gzip.compress(messages)
        if codec is Codec.GZIP
        else compress(codec, messages, is_format_0=magic == 0)
    )
    return message(magic, None, packed, offset=len(values) - 1, attributes=codec)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (2, 0)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_message_sets_of_old_producers_become_batches(
    harness: RouterHarness, version: int, magic: int, codec: Codec
) -> None:
    harness.append("t", batch_of(1))
    values = [b"a", b"b" * 200, b"c"]
    answer = produce_one(harness, message_set(magic, values, codec), version, acks=1)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
    records = records_in(harness)[1:]
    assert [(record.offset, record.key, record.value) for record in records] == [
        (offset, b"k", value) for offset, value in enumerate(values, start=1)
    ]
    assert {record.timestamp for record in records} == {NOW_MS if magic == 1 else -1}
    assert read_header(stored(harness)[1]).attributes == codec


@pytest.mark.parametrize("version", range(3))
def test_a_damaged_message_set_is_corrupt(harness: RouterHarness, version: int) -> None:
    whole = message_set(0, [b"a", b"b"], Codec.NONE)
    wrong = bytearray(whole)
    wrong[-1] ^= 0xFF
    for records in (bytes(wrong), whole[:-1], whole + b"\0", whole[:16], None):
        assert produce_one(harness, records, version).error_code == ErrorCode.CORRUPT_MESSAGE, (
            records
        )
    assert stored(harness) == []


def test_a_message_set_with_acks_0_that_is_damaged_closes_the_connection(
    harness: RouterHarness,
) -> None:
    pending = harness.begin_request(handle_produce, request({0: b"\0" * 40}, acks=0), 1)
    assert pending.response() is None
    assert pending.is_closed


def test_a_converted_message_set_is_validated_like_a_batch(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, static={"message.max.bytes": "1000"})
    harness.controller.has("t", 1, 1)
    harness.follow()
    large = message_set(1, [b"x" * 2_000], Codec.NONE)
    assert produce_one(harness, large, 2).error_code == ErrorCode.MESSAGE_TOO_LARGE
    harness.close()
