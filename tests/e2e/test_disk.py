"""A full disk, a disk that gets free space again, and a data directory that cannot be used."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import Record, build_batch
from tests.e2e.checker import ObservedHistory
from tests.e2e.conftest import Report, StartNode
from tests.e2e.load import Reader, Stream, Writer, read_log, watermarks
from tests.e2e.processes import dropped_but_held, pids_of
from tests.support.disks import SmallDisk, small_disk
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

MIB = 1 << 20
DISK_BYTES = 64 * MIB
PARTITIONS = 4
STORES = 8
"""A topic with this number of partitions has one in every store of a node."""
WAIT_S = 60.0
PRODUCE_VERSION = 9
QUICK = {"log.retention.check.interval.ms": "200"}
SMALL_SEGMENTS = {"segment.bytes": str(MIB)}
HOUR_MS = 3_600_000


@contextmanager
def node_on_small_disk(
    tmp_path: Path, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[EmbeddedBroker, SmallDisk]]:
    """A running node whose data directory is on a disk of DISK_BYTES."""
    node = EmbeddedBroker(tmp_path / "node", settings=settings, timeout_s=WAIT_S)
    with small_disk(node.data, DISK_BYTES) as disk:
        try:
            node.start()
            yield node, disk
        except BaseException as error:
            error.add_note(node.log()[-6000:])
            raise
        finally:
            node.kill()


def is_refused(node: EmbeddedBroker, topic: str, partition: int) -> bool:
    """Whether the broker refuses one more record for lack of space."""
    batch = memoryview(build_batch([Record(0, int(time.time() * 1000), b"probe", b"")]))
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(request, PRODUCE_VERSION, ProduceResponse)
    code = answer.responses[0].partition_responses[0].error_code
    return ErrorCode(code) is ErrorCode.KAFKA_STORAGE_ERROR


def produce(
    node: EmbeddedBroker,
    topic: str,
    records: Sequence[tuple[str, bytes | None]],
    *,
    partition: int = 0,
    timestamp_ms: int | None = None,
) -> list[int]:
    """Produce to a partition and return the offsets."""
    offsets: list[int] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
    for key, value in records:
        producer.produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            timestamp=timestamp_ms if timestamp_ms is not None else int(time.time() * 1000),
            on_delivery=on_delivery,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    return offsets


def ends(node: EmbeddedBroker, topic: str) -> tuple[int, int]:
    """Log start and end of partition 0, by ListOffsets."""
    return watermarks(node.bootstrap_servers, topic, [0])[0]


def read_all(
    node: EmbeddedBroker, topic: str, *, partition: int = 0
) -> list[tuple[int, str, bytes | None]]:
    """Every record of a partition: offset, key, value."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    records: list[tuple[int, str, bytes | None]] = []
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, "the end was not reached"
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        offset, key = message.offset(), message.key()
        assert offset is not None
        assert key is not None
        records.append((offset, key.decode(), message.value()))
    consumer.close()
    return records


def delete_topic(node: EmbeddedBroker, topic: str) -> None:
    """Delete the topic with an admin client."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def delete_below(node: EmbeddedBroker, topic: str, offset: int) -> int:
    """Delete records of partition 0; returns the new log start offset."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    return int(deleted.result(30).low_watermark)


def disk_mib(node: EmbeddedBroker) -> float:
    """Disk space of the segments of all stores."""
    files = (path.stat() for path in (node.data / "stores").rglob("segment-*"))
    return sum(file.st_blocks * 512 for file in files) / MIB


# -- full ----------------------------------------------------------------------------------------


def test_a_full_disk_refuses_appends_serves_reads_and_takes_them_again_with_room(
    tmp_path: Path, report: Report
) -> None:
    with node_on_small_disk(tmp_path) as (node, disk):
        node.create_topic("full", partitions=PARTITIONS)
        node.create_topic("probe", partitions=STORES)
        history = ObservedHistory()
        writer = Writer(node.bootstrap_servers, "full", PARTITIONS, history)
        reader = Reader(node.bootstrap_servers, "full", "readers", "reader", history)
        writer.start()
        reader.start()

        def wait_until_read_up_to(mark: int) -> None:
            wait_until(
                lambda: all(reader.newest.get(Stream(0, p), -1) > mark for p in range(PARTITIONS)),
                timeout_s=WAIT_S,
                what=f"the reader reads beyond {mark} in every partition",
            )

        wait_until_read_up_to(1000)
        pids = pids_of(node)
        disk.fill()
        for partition in range(STORES):
            wait_until(
                partial(is_refused, node, "probe", partition),
                timeout_s=WAIT_S,
                what="appends are refused",
            )
        acknowledged = {**history.acknowledged}
        log = read_log(node.bootstrap_servers, "full", range(PARTITIONS))
        there = {value for records in log.values() for _, value in records}
        assert acknowledged.keys() <= there
        mark = writer.next_number

        disk.empty()
        begin = time.monotonic()
        wait_until_read_up_to(mark)
        report(f"appends and reads go on {time.monotonic() - begin:.2f} s after there is room")
        writer.stop()
        newest = list(writer.newest)
        wait_until(lambda: [reader.newest[Stream(0, p)] for p in range(PARTITIONS)] == newest)
        reader.stop()
        assert pids_of(node) == pids, "a process died"
        assert len(history.acknowledged) == writer.next_number
        assert history.complaints == []


# -- room ----------------------------------------------------------------------------------------


def test_retention_by_time_keeps_what_is_young_and_gives_the_disk_back(
    start_node: StartNode,
) -> None:
    node = start_node(QUICK)
    configs = {"retention.ms": str(HOUR_MS // 2), **SMALL_SEGMENTS}
    node.create_topic("by-time", configs=configs)
    an_hour_ago = int(time.time() * 1000) - HOUR_MS
    old = [(f"old-{n}", bytes(10_000)) for n in range(1000)]
    produce(node, "by-time", old, timestamp_ms=an_hour_ago)
    # Records that expire within the hour are not copied out of a segment of old records.
    wait_until(lambda: disk_mib(node) < 4, timeout_s=WAIT_S, what="its files are gone")
    produce(node, "by-time", [("old", b"")], timestamp_ms=an_hour_ago)
    produce(node, "by-time", [("new", b"kept")])
    wait_until(lambda: ends(node, "by-time") == (1001, 1002), timeout_s=WAIT_S)
    assert read_all(node, "by-time") == [(1001, "new", b"kept")]


def test_retention_by_size_keeps_as_much_as_was_asked_for(start_node: StartNode) -> None:
    node = start_node(QUICK)
    configs = {"retention.bytes": str(2 * MIB), **SMALL_SEGMENTS}
    node.create_topic("by-size", configs=configs)
    value = bytes(10_000)
    offsets = produce(node, "by-size", [(f"{n}", value) for n in range(2000)])
    assert offsets == list(range(2000))
    wait_until(lambda: ends(node, "by-size")[0] > 1000, timeout_s=WAIT_S)
    low, high = ends(node, "by-size")
    assert high == 2000
    # Retention deletes whole batches, and keeps at least this size.
    assert 2 * MIB <= (high - low) * 10_000 * 1.01 < 4 * MIB
    assert [offset for offset, _, _ in read_all(node, "by-size")] == list(range(low, high))
    wait_until(lambda: disk_mib(node) < 8, timeout_s=WAIT_S, what="its files are gone")


def test_retention_is_changed_while_the_node_runs(start_node: StartNode) -> None:
    node = start_node(QUICK)
    node.create_topic("changed", configs={"retention.ms": "-1"})
    an_hour_ago = int(time.time() * 1000) - HOUR_MS
    produce(node, "changed", [("old", b"")], timestamp_ms=an_hour_ago)
    produce(node, "changed", [("new", b"")])
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, "log_level": 0})
    entry = ConfigEntry(
        "retention.ms",
        str(HOUR_MS // 2),
        incremental_operation=AlterConfigOpType.SET,
    )
    topic = ConfigResource(ConfigResource.Type.TOPIC, "changed", incremental_configs=[entry])
    admin.incremental_alter_configs([topic])[topic].result(30)
    wait_until(lambda: ends(node, "changed") == (1, 2), timeout_s=WAIT_S)
    assert [key for _, key, _ in read_all(node, "changed")] == ["new"]


def test_delete_records_moves_the_start_for_good(start_node: StartNode) -> None:
    node = start_node(QUICK)
    node.create_topic("cut")
    produce(node, "cut", [(f"{n}", bytes(10_000)) for n in range(1000)])
    assert delete_below(node, "cut", 990) == 990
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        delete_below(node, "cut", 1001)
    assert delete_below(node, "cut", 5) == 990
    assert [offset for offset, _, _ in read_all(node, "cut")] == list(range(990, 1000))
    node.kill()
    node.start()
    assert ends(node, "cut") == (990, 1000)
    assert [offset for offset, _, _ in read_all(node, "cut")] == list(range(990, 1000))
    wait_until(lambda: disk_mib(node) < 4, timeout_s=WAIT_S, what="its files are gone")


@pytest.mark.slow
def test_compaction_keeps_the_last_value_of_each_key(start_node: StartNode, report: Report) -> None:
    node = start_node(QUICK)
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        **SMALL_SEGMENTS,
    }
    node.create_topic("compacted", configs=configs)
    written: list[tuple[str, bytes | None]] = []
    fillers: list[tuple[str, bytes | None]]
    for round_number in range(5):
        written += [(f"key-{n}", b"%d " % round_number + bytes(10_000)) for n in range(100)]
    written += [(f"key-{n}", None) for n in range(10)]
    # Records of the active segment are kept: fill it up so that a new one begins.
    fillers = [(f"filler-{n}", bytes(20_000)) for n in range(120)]
    written += fillers
    offsets = produce(node, "compacted", written)
    assert offsets == list(range(len(written)))
    expected = {
        key: (offset, value)
        for offset, (key, value) in enumerate(written)
        if key.startswith("key-")
    }

    def latest() -> dict[str, tuple[int, bytes | None]]:
        records = read_all(node, "compacted")
        for offset, key, value in records:
            assert written[offset] == (key, value)
        assert [r[0] for r in records] == sorted({r[0] for r in records})
        ours = [record for record in records if record[1].startswith("key-")]
        return {key: (offset, value) for offset, key, value in ours} if len(ours) <= 100 else {}

    begin = time.monotonic()
    found = wait_until(latest, timeout_s=120, what="one record per key is left")
    report(f"compacted {time.monotonic() - begin:.0f} s after the last record")
    assert {key: at for key, at in found.items() if at[1] is not None} == {
        key: at for key, at in expected.items() if at[1] is not None
    }
    assert ends(node, "compacted") == (0, len(written))

    # Tombstones are kept for the present readers; the next pass removes them.
    written += fillers
    produce(node, "compacted", list(fillers))
    wait_until(
        lambda: not any(value is None for _, _, value in read_all(node, "compacted")),
        timeout_s=120,
        what="the tombstones go as well",
    )
    node.restart()
    assert ends(node, "compacted") == (0, len(written))
    kept = {key for key, (_, value) in expected.items() if value is not None}
    assert {key for _, key, _ in read_all(node, "compacted") if key.startswith("key-")} == kept


@pytest.mark.slow
def test_no_process_keeps_the_room_of_a_deleted_topic(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic("big", partitions=STORES)
    node.create_topic("small")
    produce(node, "small", [("kept", b"kept")])
    produce(node, "big", [(f"{n}", bytes(100_000)) for n in range(500)])
    # Readers of the partition have its files open.
    assert len(read_all(node, "big")) == 500
    before = disk_mib(node)
    assert before > 40
    pids = pids_of(node)
    delete_topic(node, "big")
    begin = time.monotonic()
    # No request comes meanwhile.
    wait_until(lambda: disk_mib(node) < before - 40, timeout_s=120, what="its files are gone")
    wait_until(
        lambda: not dropped_but_held(pids, node.data), timeout_s=20, what="nobody has them open"
    )
    report(f"{before:.0f} MiB came back after {time.monotonic() - begin:.0f} s")
    assert pids_of(node) == pids
    assert read_all(node, "small") == [(0, "kept", b"kept")]


@pytest.mark.slow
@pytest.mark.parametrize("accident", ["none", "worker", "router", "controller", "node"])
def test_a_full_disk_has_room_again_when_a_topic_is_deleted(
    accident: str, tmp_path: Path, report: Report
) -> None:
    with node_on_small_disk(tmp_path, QUICK) as (node, disk):
        node.create_topic("small", partitions=STORES)
        node.create_topic("big")
        for partition in range(STORES):
            # Every segment has a record that must be kept.
            produce(node, "small", [("kept", b"kept")], partition=partition)
        produce(node, "big", [(f"{n}", bytes(100_000)) for n in range(400)])
        # Readers of the partition have its files open.
        assert len(read_all(node, "big")) == 400
        disk.fill()
        if accident == "node":
            node.kill()
            node.start()
        elif accident != "none":
            node.kill_process(accident if accident == "controller" else f"{accident}-0")
            node.wait_until_ready()
        assert len(read_all(node, "big")) == 400
        delete_topic(node, "big")
        begin = time.monotonic()
        wait_until(
            lambda: disk.free_bytes > 36 * MIB, timeout_s=WAIT_S, what="the disk has room again"
        )
        report(f"36 MiB of a full disk came back after {time.monotonic() - begin:.0f} s")
        produce(node, "small", [("more", b"more")])
        assert [key for _, key, _ in read_all(node, "small")] == ["kept", "more"]
        for partition in range(1, STORES):
            assert read_all(node, "small", partition=partition) == [(0, "kept", b"kept")]


@pytest.mark.slow
def test_a_full_disk_has_room_again_though_somebody_wants_every_block_of_it(
    tmp_path: Path,
) -> None:
    with node_on_small_disk(tmp_path, QUICK) as (node, disk):
        node.create_topic("wanted", partitions=STORES)
        node.create_topic("big")
        produce(node, "big", [(f"{n}", bytes(100_000)) for n in range(300)])
        history = ObservedHistory()
        writer = Writer(node.bootstrap_servers, "wanted", STORES, history)
        writer.start()
        wait_until(lambda: writer.next_number > 1000, timeout_s=WAIT_S)
        disk.fill()
        for partition in range(STORES):
            wait_until(partial(is_refused, node, "wanted", partition), timeout_s=WAIT_S)
        disk.fill()
        delete_topic(node, "big")
        wait_until(
            lambda: disk.free_bytes > 20 * MIB, timeout_s=WAIT_S, what="the disk has room again"
        )
        mark = writer.next_number
        wait_until(lambda: writer.next_number > mark + 1000, timeout_s=WAIT_S)
        writer.stop()
        assert len(history.acknowledged) == writer.next_number
        assert history.complaints == []


@pytest.mark.slow
def test_a_full_disk_has_room_again_when_records_are_deleted(tmp_path: Path) -> None:
    with node_on_small_disk(tmp_path, QUICK) as (node, disk):
        node.create_topic("cut")
        produce(node, "cut", [(f"{n}", bytes(100_000)) for n in range(400)])
        produce(node, "cut", [("last", b"kept")])
        disk.fill()
        assert delete_below(node, "cut", 400) == 400
        wait_until(
            lambda: disk.free_bytes > 36 * MIB, timeout_s=WAIT_S, what="the disk has room again"
        )
        assert produce(node, "cut", [("more", b"more")]) == [401]
        assert [key for _, key, _ in read_all(node, "cut")] == ["last", "more"]


# -- not ours ------------------------------------------------------------------------------------


def serve(*arguments: str, settings: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run `odradek serve`, which must end by itself; returns its exit code and output."""
    sets = [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "odradek", "serve", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(
        [*command, *arguments, *sets],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_second_node_on_the_same_folder_is_told_so_and_disturbs_nothing(
    start_node: StartNode,
) -> None:
    node = start_node()
    node.create_topic("kept")
    produce(node, "kept", [("a", b"1")])
    code, said = serve("--data", str(node.data))
    assert code == 1
    assert str(node.data) in said
    assert "a node is running in this folder" in said
    produce(node, "kept", [("b", b"2")])
    assert [key for _, key, _ in read_all(node, "kept")] == ["a", "b"]


def test_the_folder_of_another_node_is_refused(start_node: StartNode) -> None:
    node = start_node()
    node.stop()
    code, said = serve("--data", str(node.data), settings={"node.id": "7"})
    assert code == 1
    assert "node.id=7" in said


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("not a folder")
    code, said = serve("--data", str(path))
    assert code != 0
    assert str(path) in said
    assert "Traceback" not in said
