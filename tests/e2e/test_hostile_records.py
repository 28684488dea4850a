"""Few bytes with many records, and logs that are long to read, keep nobody waiting.

As in test_hostile_work.py, a probe sends requests every 5 ms meanwhile, and its longest wait is
printed and asserted.
"""

import time
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import ShareConsumer

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.handlers.fetch import ABORTED_PER_TURN
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.legacy_records import down_convert
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.protocol.messages.partitions import (
    PartitionOffset,
    TopicOffsets,
    TopicPartitions,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.share import (
    ShareFetchRequest,
    ShareFetchResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from odradek.protocol.sliced_work import finish
from tests.e2e.conftest import Report
from tests.support.hostile_work import (
    GROUP,
    WIDE,
    Ground,
    attack,
    error_codes,
    ground_of,
    init_producer,
    produce,
)
from tests.support.poison_batches import raw_batch
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, frame_of

LOG, COMPACTED, ABORTED, OPEN = "log", "compacted", "aborted", "open"
UNBATCHED = "unbatched"
UNBATCHED_PARTITIONS: Final = 50
UNBATCHED_RECORDS: Final = 3_000
"""Of each partition, each in a batch of its own."""
RECORDS: Final = 100_000
HOUR_MS: Final = 3_600_000
TINY: Final = b"\x0c\0\0\0\x01\x01\0"
"""A record of 7 bytes at offset delta 0, with a null key and an empty value."""
AMPLIFIED: Final = 5_000_000
PRODUCERS: Final = 100
ABORTED_OF_EACH: Final = 100


def now_ms() -> int:
    return int(1000 * time.time())


def tiny_records(count: int, timestamp: int) -> list[Record]:
    return [Record(offset, timestamp, None, b"") for offset in range(count)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A node with logs whose newest record was deleted."""
    with ground_of(tmp_path_factory.mktemp("hostile-records")) as ground:
        ground.broker.create_topic(COMPACTED, configs={"cleanup.policy": "compact"})
        for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
            name = f"{LOG}-{codec.name}"
            ground.broker.create_topic(name)
            with WireClient(ground.broker.bootstrap_servers) as wire:
                old = build_batch(tiny_records(RECORDS, now_ms() - HOUR_MS), codec=codec)
                newest = build_batch(tiny_records(1, now_ms()))
                for batch in (newest, old, old, old):
                    answer = wire.ask(produce(name, batch), 9, ProduceResponse)
                    assert set(error_codes(answer)) == {ErrorCode.NONE}
                partition = PartitionOffset(partition_index=0, offset=1)
                topic = TopicOffsets(name=name, partitions=[partition])
                delete = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
                wire.ask(delete, 2, DeleteRecordsResponse)
        yield ground


# -- few bytes, many records -----------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("topic", [WIDE, COMPACTED])
def test_a_batch_of_very_many_records(
    ground: Ground, report: Report, topic: str, codec: Codec
) -> None:
    """Its timestamps are later than message.timestamp.after.max.ms allows."""
    count = RECORDS if codec is Codec.NONE else 2 * RECORDS
    records = tiny_records(count, now_ms() + 48 * HOUR_MS)
    frame = frame_of(produce(topic, build_batch(records, codec=codec)), 9, 1)
    error = ErrorCode.INVALID_TIMESTAMP if topic == WIDE else ErrorCode.INVALID_RECORD
    attack(ground, [frame], report, errors={error: 1})


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name)
@pytest.mark.parametrize("topic", [WIDE, COMPACTED])
def test_a_batch_that_unfolds_to_ten_thousand_times_its_size(
    ground: Ground, report: Report, topic: str, codec: Codec
) -> None:
    """35 MB of equal records."""
    batch = raw_batch(
        TINY * AMPLIFIED, AMPLIFIED, base_timestamp=now_ms() + 48 * HOUR_MS, codec=codec
    )
    answer = attack(ground, [frame_of(produce(topic, batch), 9, 1)], report)
    assert set(error_codes(answer)) <= {ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}


def test_a_right_batch_of_a_million_records_is_appended(ground: Ground, report: Report) -> None:
    batch = build_batch(tiny_records(10 * RECORDS, now_ms()), codec=Codec.ZSTD)
    frame = frame_of(produce(WIDE, batch), 9, 1)
    attack(ground, [frame], report, errors={ErrorCode.NONE: 1})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4], ids=lambda c: c.name)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_of_very_many_messages(
    ground: Ground, report: Report, magic: int, codec: Codec
) -> None:
    batch = build_batch(tiny_records(RECORDS, now_ms()), codec=codec)
    messages = finish(down_convert([batch], magic, 0, bytes_max=1 << 30))
    attack(ground, [frame_of(produce(WIDE, messages), 1 + magic, 1)], report)


# -- long logs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "codec"),
    [
        (version, codec)
        for version in (0, 3, 12)
        for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD)
        # Fetch knows zstd since version 10.
        if version >= 10 or codec is not Codec.ZSTD
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_log_of_tiny_records_is_fetched(
    ground: Ground, report: Report, version: int, codec: Codec
) -> None:
    partition = FetchPartition(fetch_offset=1, partition_max_bytes=50 << 20)
    topic = FetchTopic(topic=f"{LOG}-{codec.name}", partitions=[partition])
    request = FetchRequest(max_bytes=50 << 20, topics=[topic])
    answer = attack(ground, [frame_of(request, version, 1)], report)
    assert set(error_codes(answer)) == {ErrorCode.NONE}


@pytest.fixture(scope="module")
def unbatched(ground: Ground) -> int:
    """The number of partitions of a topic whose producers send single records."""
    ground.broker.create_topic(UNBATCHED, partitions=UNBATCHED_PARTITIONS)
    batch = memoryview(build_batch(tiny_records(1, now_ms())))
    partitions = [
        PartitionProduceData(index=index, records=batch) for index in range(UNBATCHED_PARTITIONS)
    ]
    topic = TopicProduceData(name=UNBATCHED, partition_data=partitions)
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    with WireClient(ground.broker.bootstrap_servers) as wire:
        at_a_time = 20
        for _ in range(UNBATCHED_RECORDS // at_a_time):
            for _ in range(at_a_time):
                wire.post(request, 9)
            for _ in range(at_a_time):
                assert set(error_codes(wire.receive(ProduceResponse))) == {ErrorCode.NONE}
    return UNBATCHED_PARTITIONS


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_many_logs_of_single_records_are_fetched(
    ground: Ground, report: Report, unbatched: int, isolation_level: int
) -> None:
    """A batch is looked at in two microseconds, however small it is."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in range(unbatched)
    ]
    request = FetchRequest(
        max_bytes=50 << 20,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=UNBATCHED, partitions=partitions)],
    )
    answer = attack(ground, [frame_of(request, 12, number) for number in range(5)], report)
    assert isinstance(answer, FetchResponse)
    sizes = [len(bytes(data.records or b"")) for data in answer.responses[0].partitions]  # type: ignore[arg-type]
    assert len(sizes) == unbatched
    assert set(sizes) == {UNBATCHED_RECORDS * len(build_batch(tiny_records(1, 0)))}


def test_many_logs_of_single_records_are_acquired(
    ground: Ground, report: Report, unbatched: int
) -> None:
    with WireClient(ground.broker.bootstrap_servers) as wire:
        named = MetadataRequest(topics=[MetadataRequestTopic(name=UNBATCHED)])
        topic_id = wire.ask(named, 12, MetadataResponse).topics[0].topic_id
        earliest = IncrementalAlterableConfig(
            name="share.auto.offset.reset", config_operation=0, value="earliest"
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=ConfigResourceType.GROUP, resource_name=GROUP, configs=[earliest]
        )
        altered = wire.ask(
            IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse
        )
        assert set(error_codes(altered)) == {ErrorCode.NONE}
    client = {
        "bootstrap.servers": ground.broker.bootstrap_servers,
        "group.id": GROUP,
        "log_level": 0,
    }
    member = ShareConsumer(client)
    member.subscribe([UNBATCHED])
    wait_until(lambda: member.poll(1.0), timeout_s=30, what="the group has begun with the topic")
    member.close()
    topic = ShareRequestTopic(
        topic_id=topic_id,
        partitions=[ShareRequestPartition(partition_index=index) for index in range(unbatched)],
    )
    request = ShareFetchRequest(
        group_id=GROUP,
        member_id="AAAAAAAAAAAAAAAAAAAAAw",
        share_session_epoch=0,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        max_records=2**31 - 1,
        batch_size=2**31 - 1,
        topics=[topic],
    )
    answer = attack(ground, [frame_of(request, 1, 1)], report)
    assert isinstance(answer, ShareFetchResponse)
    assert not answer.error_code
    assert set(error_codes(answer)) == {ErrorCode.NONE}
    assert all(data.acquired_records for data in answer.responses[0].partitions)


def list_offsets(topic: str, timestamp: int, isolation_level: int = 0) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[partition])],
    )


@pytest.mark.parametrize("timestamp", [-3, "in the last record"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD], ids=lambda c: c.name)
def test_a_record_is_searched_by_timestamp(
    ground: Ground, report: Report, codec: Codec, timestamp: int | str
) -> None:
    """KIP-734: the newest record was deleted."""
    wanted = timestamp if isinstance(timestamp, int) else now_ms() - HOUR_MS // 2
    request = list_offsets(f"{LOG}-{codec.name}", wanted)
    frames = [frame_of(request, 8, number) for number in range(5)]
    attack(ground, frames, report, errors={ErrorCode.NONE: 1})


# -- transactions ----------------------------------------------------------------------------------


class Producer:
    """A transactional producer that leaves the end of its transactions to WriteTxnMarkers."""

    def __init__(self, wire: WireClient, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        found = init_producer(wire, transactional_id)
        self.producer_id, self.producer_epoch = found.producer_id, found.producer_epoch
        self.sequence = 0

    def produce(
        self, topic: str, records: list[Record], codec: Codec = Codec.NONE
    ) -> ProduceRequest:
        batch = build_batch(
            records,
            codec=codec,
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
        )
        self.sequence += len(records)
        return produce(topic, batch, self.transactional_id)

    def marker(self, topic: str, *, is_commit: bool) -> WritableTxnMarker:
        return WritableTxnMarker(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_result=is_commit,
            topics=[TopicPartitions(name=topic, partitions=[0])],
        )


@pytest.fixture(scope="module")
def aborted_count(ground: Ground) -> int:
    """The log ABORTED has so many aborted transactions of many producers; their count."""
    ground.broker.create_topic(ABORTED)
    with WireClient(ground.broker.bootstrap_servers) as wire:
        producers = [Producer(wire, f"aborted-{number}") for number in range(PRODUCERS)]
        for _ in range(ABORTED_OF_EACH):
            for producer in producers:
                wire.post(producer.produce(ABORTED, tiny_records(1, now_ms())), 12)
            for _ in producers:
                assert set(error_codes(wire.receive(ProduceResponse))) == {ErrorCode.NONE}
            markers = [producer.marker(ABORTED, is_commit=False) for producer in producers]
            written = wire.ask(WriteTxnMarkersRequest(markers=markers), 1, WriteTxnMarkersResponse)
            assert set(error_codes(written)) == {ErrorCode.NONE}
    return PRODUCERS * ABORTED_OF_EACH


@pytest.mark.parametrize("named", [1, 500])
def test_thousands_of_aborted_transactions_are_listed(
    ground: Ground, report: Report, aborted_count: int, named: int
) -> None:
    """The partition may be named again and again."""
    partition = FetchPartition(fetch_offset=0, partition_max_bytes=50 << 20)
    request = FetchRequest(
        isolation_level=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=ABORTED, partitions=[partition] * named)],
    )
    answer = attack(ground, [frame_of(request, 12, number) for number in range(5)], report)
    assert isinstance(answer, FetchResponse)
    listed = [each.aborted_transactions for each in answer.responses[0].partitions]
    assert ABORTED_PER_TURN <= len(listed[0] or ()) < ABORTED_PER_TURN + PRODUCERS < aborted_count


@pytest.fixture(scope="module")
def open_transaction(ground: Ground) -> None:
    """The newest records of the log OPEN are in a transaction that is open."""
    ground.broker.create_topic(OPEN)
    with WireClient(ground.broker.bootstrap_servers) as wire:
        old = build_batch(tiny_records(RECORDS, now_ms() - HOUR_MS), codec=Codec.GZIP)
        producer = Producer(wire, "open")
        for request in (
            *[produce(OPEN, old)] * 3,
            *(
                producer.produce(OPEN, tiny_records(RECORDS, now_ms()), Codec.GZIP)
                for _ in range(3)
            ),
        ):
            answer = wire.ask(request, 12, ProduceResponse)
            assert set(error_codes(answer)) == {ErrorCode.NONE}


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.usefixtures("open_transaction")
def test_the_largest_timestamp_is_in_an_open_transaction(
    ground: Ground, report: Report, isolation_level: int
) -> None:
    request = list_offsets(OPEN, -3, isolation_level)
    answer = attack(ground, [frame_of(request, 8, number) for number in range(5)], report)
    assert isinstance(answer, ListOffsetsResponse)
    [found] = answer.topics[0].partitions
    assert not found.error_code
    is_below = found.offset < 3 * RECORDS
    assert is_below is (isolation_level == 1)
