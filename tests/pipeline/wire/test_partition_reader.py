"""A partition of a real broker, read as Arrow: what was acknowledged is there, and what is missing
has a reason."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import OffsetsLost, PipelineError, TopicRecreated
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.connection import BrokerConnection
from odradek.pipeline.wire.partition_reader import OffsetGap, gaps_of_partition, read_partition
from odradek.pipeline.wire.requests import FETCH, LIST_OFFSETS, METADATA
from tests.support.waiting import wait_until

TIME_MS = 1_700_000_000_000
KEEPS = {"retention.ms": "-1"}
"""Records are of that time, older than Kafka's default of seven days."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def cluster(kafka_broker: EmbeddedBroker) -> Iterator[KafkaCluster]:
    with KafkaCluster(kafka_broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def new_topic(kafka_broker: EmbeddedBroker) -> Callable[..., str]:
    def create(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = f"reader-{uuid4().hex[:12]}"
        kafka_broker.create_topic(name, partitions=partitions, configs=KEEPS | dict(configs or {}))
        return name

    return create


def producer_of(cluster: KafkaCluster, **options: str | int) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **options})


def send(producer: Producer, topic: str, values: Sequence[bytes | None]) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=0, timestamp=TIME_MS + number)
    assert producer.flush(30) == 0


def whole(cluster: KafkaCluster, topic: str, partition: int = 0) -> PartitionRange:
    """All that is in the partition, and below its last stable offset."""
    name = PartitionName(topic, partition)
    start = cluster.list_offsets({name: EARLIEST}, read_committed=True)[name].offset
    end = cluster.list_offsets({name: LATEST}, read_committed=True)[name].offset
    topic_id = cluster.topics([topic])[topic].topic_id
    return PartitionRange(topic, topic_id, partition, start, end)


def stable(cluster: KafkaCluster, topic: str, end: int) -> PartitionRange:
    """As `whole`, once `end` is the last stable offset: a transaction's end is answered before its
    markers are written."""
    what = f"offset {end} of {topic} is stable"
    wait_until(lambda: whole(cluster, topic).end == end, what=what)
    return whole(cluster, topic)


def wait_for_end(cluster: KafkaCluster, topic: str, end: int) -> None:
    """Until `end` is the log end offset: what is sent next comes behind the marker."""
    name = PartitionName(topic, 0)

    def has_end() -> bool:
        return cluster.list_offsets({name: LATEST}, read_committed=False)[name].offset == end

    wait_until(has_end, what=f"{topic} ends at offset {end}")


def part(of: PartitionRange, start: int, end: int) -> PartitionRange:
    return PartitionRange(of.topic, of.topic_id, of.partition, start, end)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def values_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["value"]) for row in rows_of(batches)]


def gaps_of(cluster: KafkaCluster, wanted: PartitionRange) -> list[tuple[int, int, str]]:
    return [(gap.start, gap.end, gap.reason) for gap in gaps_of_partition(cluster, wanted)]


def test_records_of_all_codecs(cluster: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    expected = []
    for codec in CODECS:
        options: dict[str, str | int] = {"compression.type": codec, "linger.ms": 5}
        producer = producer_of(cluster, **options)
        for number in range(300):
            key = None if number % 3 == 0 else b"key %d" % number
            value = None if number % 7 == 0 else codec.encode() * 20 + b"%d" % number
            headers: list[tuple[str, str | bytes | None]] | None = None
            if number % 5 == 0:
                headers = [("one", b"1"), ("none", None)]
            time_ms = TIME_MS + number
            producer.produce(topic, value, key, partition=0, headers=headers, timestamp=time_ms)
            expected.append((key, value, headers, time_ms))
        assert producer.flush(30) == 0
    all_of_it = whole(cluster, topic)
    assert (all_of_it.start, all_of_it.end) == (0, 1500)
    for start, end in ((0, 1500), (7, 1493), (299, 301), (400, 400)):
        rows = rows_of(read_partition(cluster, part(all_of_it, start, end)))
        assert [row["offset"] for row in rows] == list(range(start, end))
        for row, (key, value, headers, time_ms) in zip(rows, expected[start:end], strict=True):
            assert (row["key"], row["value"]) == (key, value)
            found = row["headers"] and [(each["key"], each["value"]) for each in row["headers"]]
            assert found == headers
            assert (row["topic"], row["partition"], row["timestampType"]) == (topic, 0, 0)
            assert round(row["timestamp"].timestamp() * 1000) == time_ms
    assert gaps_of(cluster, all_of_it) == []


def test_sizes_of_batches(cluster: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    values = [b"%d" % number for number in range(2000)]
    send(producer_of(cluster, **{"linger.ms": 5}), topic, values)
    wanted = whole(cluster, topic)
    for options in ({"batch_rows": 100}, {"fetch_max_bytes": 1}, {"with_headers": False}):
        batches = list(read_partition(cluster, wanted, **options))
        assert all(0 < len(batch) <= options.get("batch_rows", 20_000) for batch in batches)
        table = pa.Table.from_batches(batches)
        assert table.column("value").to_pylist() == values
        assert ("headers" in table.column_names) == ("with_headers" not in options)


def test_what_decompresses_to_a_lot_is_read_in_parts(
    cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(configs={"max.message.bytes": str(8 << 20)})
    options: dict[str, str | int] = {"compression.type": "zstd", "message.max.bytes": 60 << 20}
    producer = producer_of(cluster, **options, **{"linger.ms": 50})
    send(producer, topic, [bytes(1 << 20)] * 50)
    counts = [len(batch) for batch in read_partition(cluster, whole(cluster, topic))]
    assert sum(counts) == 50
    assert max(counts) < 50


OLD_BROKERS = {
    "2.1": {FETCH: 10, LIST_OFFSETS: 4, METADATA: 7},
    "2.3": {FETCH: 11, LIST_OFFSETS: 5, METADATA: 8},
    "2.8": {FETCH: 12, LIST_OFFSETS: 6, METADATA: 11},
    "3.1": {FETCH: 13, LIST_OFFSETS: 7, METADATA: 12},
}


@pytest.mark.parametrize("release", OLD_BROKERS)
def test_the_versions_of_older_brokers(
    cluster: KafkaCluster,
    new_topic: Callable[..., str],
    release: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = OLD_BROKERS[release]
    monkeypatch.setattr(BrokerConnection, "version_of", lambda _, api: versions[api])
    topic = new_topic()
    producer = transactional(cluster)
    for commit in (False, True):
        producer.begin_transaction()
        send(producer, topic, [b"%d" % commit] * 3)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    wanted = stable(cluster, topic, 8)
    assert bool(wanted.topic_id) == (versions[METADATA] >= 10)
    assert values_of(read_partition(cluster, wanted)) == [(4, b"1"), (5, b"1"), (6, b"1")]
    assert gaps_of(cluster, wanted) == [(0, 3, "aborted"), (3, 4, "control"), (7, 8, "control")]


def test_the_time_of_the_broker(cluster: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    send(producer_of(cluster), topic, [b"a", b"b"])
    (batch,) = read_partition(cluster, whole(cluster, topic))
    assert batch.column("timestampType").to_pylist() == [1, 1]
    assert batch.column("timestamp")[0].as_py().timestamp() * 1000 > TIME_MS + 10_000


def test_an_end_beyond_the_log_is_told(
    kafka_broker: EmbeddedBroker, new_topic: Callable[..., str]
) -> None:
    with KafkaCluster(kafka_broker.bootstrap_servers, timeout_s=1) as cluster:
        topic = new_topic()
        send(producer_of(cluster), topic, [b"a"])
        wanted = whole(cluster, topic)
        batches = read_partition(cluster, part(wanted, 0, 9))
        with pytest.raises(PipelineError, match="up to offset 1, not to 9"):
            list(batches)
        with pytest.raises(PipelineError, match="ends at offset 1, below 5"):
            list(read_partition(cluster, part(wanted, 5, 9)))


def test_two_readers_of_one_cluster(cluster: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    producer = producer_of(cluster)
    for number in range(500):
        producer.produce(topic, bytes(1000), partition=number % 2)
    assert producer.flush(30) == 0
    one, two, left = (
        read_partition(cluster, whole(cluster, topic, partition), fetch_max_bytes=10_000)
        for partition in (0, 1, 0)
    )
    next(left)
    left.close()  # type: ignore[attr-defined]  # it is a generator, whose answer is on its way
    counts = [0, 0]
    for first, second in zip(one, two, strict=True):
        counts[0] += len(first)
        counts[1] += len(second)
    assert counts == [250, 250]


def transactional(cluster: KafkaCluster) -> Producer:
    producer = producer_of(cluster, **{"transactional.id": uuid4().hex})
    producer.init_transactions(30)
    return producer


def test_transactions(cluster: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    first, second, third = (transactional(cluster) for _ in range(3))
    for producer in (first, second, third):
        producer.begin_transaction()
    send(first, topic, [b"aborted"] * 10)  # 0 to 9
    send(second, topic, [b"committed"] * 5)  # 10 to 14
    send(first, topic, [b"aborted"] * 5)  # 15 to 19
    first.abort_transaction(30)  # marker at 20
    wait_for_end(cluster, topic, 21)
    send(second, topic, [b"committed"] * 5)  # 21 to 25
    first.begin_transaction()
    send(first, topic, [b"of the same producer"] * 2)  # 26, 27
    first.commit_transaction(30)  # marker at 28
    wait_for_end(cluster, topic, 29)
    second.commit_transaction(30)  # marker at 29
    wait_for_end(cluster, topic, 30)
    send(producer_of(cluster), topic, [b"plain"] * 3)  # 30 to 32
    send(third, topic, [b"open"])  # 33
    wanted = stable(cluster, topic, 33)
    assert wanted.start == 0
    committed = [*range(10, 15), *range(21, 28), *range(30, 33)]
    found = values_of(read_partition(cluster, wanted))
    assert [offset for offset, _ in found] == committed
    assert {value for _, value in found} == {b"committed", b"of the same producer", b"plain"}
    assert gaps_of(cluster, wanted) == [
        (0, 10, "aborted"),
        (15, 20, "aborted"),
        (20, 21, "control"),
        (28, 30, "control"),
    ]
    # The list of aborted transactions is there for every part of the log.
    for start in range(33):
        for end in (start + 1, 33):
            some = part(wanted, start, end)
            offsets = [offset for offset, _ in values_of(read_partition(cluster, some))]
            assert offsets == [offset for offset in committed if start <= offset < end]
            holes = gaps_of_partition(cluster, some)
            missing = [offset for gap in holes for offset in range(gap.start, gap.end)]
            assert sorted(missing + offsets) == list(range(start, end))
    everything = read_partition(cluster, part(wanted, 0, 34), read_committed=False)
    markers = {20, 28, 29}
    assert [offset for offset, _ in values_of(everything)] == [
        offset for offset in range(34) if offset not in markers
    ]
    third.abort_transaction(30)
    assert gaps_of(cluster, part(wanted, 30, 35)) == [(33, 34, "aborted"), (34, 35, "control")]
    assert values_of(read_partition(cluster, part(wanted, 33, 35))) == []


def test_an_open_transaction_is_waited_for(
    kafka_broker: EmbeddedBroker, new_topic: Callable[..., str]
) -> None:
    with KafkaCluster(kafka_broker.bootstrap_servers, timeout_s=1) as cluster:
        topic = new_topic()
        producer = transactional(cluster)
        producer.begin_transaction()
        send(producer, topic, [b"open"])
        wanted = PartitionRange(topic, "", 0, 0, 1)
        with pytest.raises(PipelineError, match="A transaction may be open"):
            list(read_partition(cluster, wanted))
        producer.commit_transaction(30)
        assert values_of(read_partition(cluster, wanted)) == [(0, b"open")]


def delete_below(cluster: KafkaCluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(30)


def test_deleted_offsets_are_lost_and_expired(
    cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    send(producer_of(cluster), topic, [b"%d" % number for number in range(10)])
    wanted = whole(cluster, topic)
    delete_below(cluster, topic, 4)
    with pytest.raises(OffsetsLost, match=r"offsets 0 to 3 are deleted, the log starts at 4"):
        list(read_partition(cluster, wanted))
    assert gaps_of(cluster, wanted) == [(0, 4, "expired")]
    assert gaps_of(cluster, part(wanted, 1, 3)) == [(1, 3, "expired")]
    assert len(rows_of(read_partition(cluster, part(wanted, 4, 10)))) == 6


def test_a_topic_that_was_created_anew(
    cluster: KafkaCluster, kafka_broker: EmbeddedBroker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer = producer_of(cluster)
    for _ in range(20):
        send(producer, topic, [b"old"])
    before = whole(cluster, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    reading = read_partition(cluster, before, fetch_max_bytes=1, batch_rows=1)
    next(reading)
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in cluster.topics([topic]), what="the topic is gone")
    kafka_broker.create_topic(topic, configs=KEEPS)
    send(producer_of(cluster), topic, [b"new"] * 300)
    assert before.topic_id
    with pytest.raises(TopicRecreated, match=before.topic_id):
        list(read_partition(cluster, before))
    with pytest.raises(TopicRecreated, match=before.topic_id):
        list(gaps_of_partition(cluster, before))
    # A reader that was at it reads what it had got, and no record of the other topic.
    with pytest.raises(TopicRecreated, match=before.topic_id):
        _expect_only_old(reading)
    after = whole(cluster, topic)
    assert {value for _, value in values_of(read_partition(cluster, after))} == {b"new"}


def _expect_only_old(batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        assert set(batch.column("value").to_pylist()) == {b"old"}


def test_a_restart_of_the_broker_is_waited_for(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, KafkaCluster(broker.bootstrap_servers) as cluster:
        broker.create_topic("orders")
        values = [b"%d" % number for number in range(100)]
        for value in values:
            send(producer_of(cluster), "orders", [value])
        batches = read_partition(cluster, whole(cluster, "orders"), fetch_max_bytes=1, batch_rows=1)
        found = values_of(iter([next(batches)]))
        broker.restart()
        found += values_of(batches)
        assert found == list(enumerate(values))


QUICK_COMPACTION = {
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(1 << 20),
}


@pytest.mark.slow
def test_compacted_offsets(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path, settings=QUICK_COMPACTION) as broker,
        KafkaCluster(broker.bootstrap_servers) as cluster,
    ):
        broker.create_topic("compacted", configs=COMPACTED)
        producer = producer_of(cluster, **{"linger.ms": 5})
        keys = [b"%d" % (number % 10 if number % 3 else number) for number in range(1000)]
        for key in keys:
            producer.produce("compacted", bytes(200), key, partition=0)
        assert producer.flush(30) == 0
        for number in range(200):
            producer.produce("compacted", bytes(10_000), b"filler %d" % number, partition=0)
        assert producer.flush(30) == 0
        wanted = whole(cluster, "compacted")
        kept = {key: offset for offset, key in enumerate(keys)}.values()
        expected = [*sorted(kept), *range(1000, 1200)]

        def offsets() -> list[int]:
            return [row["offset"] for row in rows_of(read_partition(cluster, wanted))]

        wait_until(lambda: offsets() == expected, timeout_s=120, what="the log is compacted")
        gaps = list(gaps_of_partition(cluster, wanted))
        assert {gap.reason for gap in gaps} == {"compacted"}
        missing = [offset for gap in gaps for offset in range(gap.start, gap.end)]
        assert sorted(missing + expected) == list(range(1200))
        # Ranges that begin and end in holes, and one that is nothing else.
        largest = max(gaps, key=lambda gap: gap.end - gap.start)
        inside = part(wanted, largest.start, largest.end)
        assert rows_of(read_partition(cluster, inside)) == []
        assert list(gaps_of_partition(cluster, inside)) == [
            OffsetGap(largest.start, largest.end, "compacted")
        ]
        # Ranges that end where a gap begins have nothing of it, also if what follows is fetched.
        assert [
            gaps_of(cluster, part(wanted, each.start - 1, each.start)) for each in gaps[1:]
        ] == [[]] * (len(gaps) - 1)
