"""Nodes with several log directories (KIP-112, KIP-113, KIP-858): a failed one takes only its
replicas offline."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
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
    MetadataResponsePartition,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import Record, build_batch
from tests.e2e.cluster import Cluster, cluster
from tests.support.disks import FailingDisk, failing_disk
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "orders"
PARTITIONS = 8
OFFLINE_ERRORS = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
}


def append(node: EmbeddedBroker, partition: int, topic: str = TOPIC) -> ErrorCode:
    """Append a record; the answer."""
    batch = memoryview(build_batch([Record(0, int(time.time() * 1000), b"k", b"v")]))
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(request, 9, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def end_offset(node: EmbeddedBroker, partition: int) -> tuple[ErrorCode, int]:
    """What a consumer learns of a partition: the error, and the high watermark."""
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[wanted])], max_wait_ms=0)
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(request, 11, FetchResponse)
    found = answer.responses[0].partitions[0]
    return ErrorCode(found.error_code), found.high_watermark


def described(node: EmbeddedBroker) -> dict[str, tuple[ErrorCode, list[int]]]:
    """The error of each log directory, and the topic's partitions in it."""
    return {
        Path(result.log_dir).name: (
            ErrorCode(result.error_code),
            sorted(
                partition.partition_index
                for topic in result.topics
                if topic.name == TOPIC
                for partition in topic.partitions
            ),
        )
        for result in node.ask(DescribeLogDirsRequest(topics=None)).results
    }


def partitions(node: EmbeddedBroker) -> list[MetadataResponsePartition]:
    """The topic's partitions, in their order."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    return sorted(node.ask(request).topics[0].partitions, key=lambda each: each.partition_index)


@contextmanager
def node_with_two_directories(tmp_path: Path, **settings: str) -> Iterator[EmbeddedBroker]:
    """A node with the log directories data and second, and the topic."""
    directories = {"log.dirs": str(tmp_path / "second"), "profile": "dev", "workers": "2"}
    node = EmbeddedBroker(tmp_path / "node", settings={**directories, **settings})
    try:
        node.start()
        node.create_topic(TOPIC, partitions=PARTITIONS)
        yield node
    except BaseException as error:
        error.add_note(node.log()[-6000:])
        raise
    finally:
        node.kill()


def test_a_failed_directory_takes_only_its_replicas_offline(tmp_path: Path) -> None:
    second = tmp_path / "second"
    with node_with_two_directories(tmp_path) as node:
        for partition in range(PARTITIONS):
            assert append(node, partition) is ErrorCode.NONE
        before = described(node)
        assert [error for error, _ in before.values()] == [ErrorCode.NONE] * 2
        kept, lost = before["data"][1], before["second"][1]
        assert (len(kept), sorted(kept + lost)) == (PARTITIONS // 2, list(range(PARTITIONS)))
        node.restart()
        assert described(node) == before

        second.rename(tmp_path / "elsewhere")

        def has_failed() -> bool:
            found = partitions(node)
            return all(
                (found[each].leader_id == -1) == (each in lost) for each in range(PARTITIONS)
            )

        wait_until(has_failed, what="the partitions of the directory have no leader")
        assert [each.offline_replicas for each in partitions(node)] == [
            [0] if each in lost else [] for each in range(PARTITIONS)
        ]
        for partition in range(PARTITIONS):
            assert append(node, partition) in (
                OFFLINE_ERRORS if partition in lost else {ErrorCode.NONE}
            )
        assert described(node) == {
            "data": (ErrorCode.NONE, kept),
            "second": (ErrorCode.KAFKA_STORAGE_ERROR, []),
        }
        # New partitions are placed in the other one. Nothing appears in the failed one's place.
        node.create_topic("later", partitions=2)
        assert append(node, 0, "later") is append(node, 1, "later") is ErrorCode.NONE
        assert not second.exists()
        assert node.log().count("is offline, with its replicas, until this node is started") == 1
        assert "Traceback" not in node.log()

        # A restart without it is no new beginning; one with it is as if nothing had happened.
        node.restart()
        assert described(node)["second"] == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        assert has_failed()
        node.stop()
        (tmp_path / "elsewhere").rename(second)
        node.start()
        wait_until(lambda: all(each.leader_id == 0 for each in partitions(node)), what="leaders")
        assert described(node) == before
        for partition in range(PARTITIONS):
            assert end_offset(node, partition) == (ErrorCode.NONE, 1 + (partition in kept))
            assert append(node, partition) is ErrorCode.NONE


def run(node: EmbeddedBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, when it has ended."""
    line = [sys.executable, "-m", "odradek", *arguments, "-b", node.bootstrap_servers]
    folder = Path(__file__).parents[2]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=folder)


def command(node: EmbeddedBroker, *arguments: str) -> str:
    """The standard output of a command, which must succeed."""
    ended = run(node, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def begin_move(node: EmbeddedBroker, path: Path, *indexes: int, topic: str = TOPIC) -> list[int]:
    """Ask for moves; the error codes."""
    topics = [TopicPartitions(name=topic, partitions=list(indexes))]
    directory = AlterReplicaLogDir(path=str(path), topics=topics)
    (answer,) = node.ask(AlterReplicaLogDirsRequest(dirs=[directory])).results
    return [result.error_code for result in answer.partitions]


def test_replicas_move_between_directories_while_they_are_written(tmp_path: Path) -> None:
    second = tmp_path / "second"
    with node_with_two_directories(tmp_path) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 0})
        failures: list[object] = []
        count = 0

        def produce(records: int) -> None:
            nonlocal count
            for _ in range(records):
                producer.produce(
                    TOPIC,
                    key=str(count),
                    value=b"%06d" % count + bytes(2_000),
                    partition=count % PARTITIONS,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                count += 1
            producer.poll(0)

        produce(4_000)
        assert producer.flush(30) == 0
        kept, elsewhere = (sorted(found) for _, found in described(node).values())
        assert begin_move(node, tmp_path / "nowhere", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert begin_move(node, second, 99) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert begin_move(node, second, *elsewhere) == [0] * len(elsewhere)
        assert begin_move(node, second, *kept) == [0] * len(kept)

        def has_moved() -> bool:
            produce(5)
            return described(node) == {
                "data": (ErrorCode.NONE, []),
                "second": (ErrorCode.NONE, list(range(PARTITIONS))),
            }

        seen: set[tuple[str, int]] = set()

        def future_is_listed() -> bool:
            produce(5)
            for result in node.ask(DescribeLogDirsRequest(topics=None)).results:
                for held in result.topics:
                    for partition in held.partitions:
                        if partition.is_future_key:
                            seen.add((Path(result.log_dir).name, partition.partition_index))
            return bool(seen)

        wait_until(future_is_listed, what="a future replica")
        assert {name for name, _ in seen} == {"second"}
        wait_until(has_moved, what="all partitions are in the second directory")
        produce(100)
        assert producer.flush(30) == 0
        assert failures == []
        consumed = [record["value"][:6] for record in read_topic(node, count)]
        assert sorted(consumed) == [f"{number:06d}" for number in range(count)]

        # The command moves them back and waits.
        data = tmp_path / "node" / "data"
        text = command(node, "logdir", "move", f"{TOPIC}:0,3", "--node", "0", "--to", str(data))
        assert "2 replicas are in " in text
        assert described(node)["data"] == (ErrorCode.NONE, [0, 3])
        rows = json.loads(command(node, "logdir", "list", "-o", "json"))
        assert [(Path(row["directory"]).name, row["state"]) for row in rows] == [
            ("data", "online"),
            ("second", "online"),
        ]
        node.restart()
        assert described(node)["data"] == (ErrorCode.NONE, [0, 3])
        assert len(list(read_topic(node, count))) == count
        # What the metadata know: a failed directory takes away only what is in it now.
        second.rename(tmp_path / "elsewhere")
        wait_until(
            lambda: (
                [each.leader_id for each in partitions(node)]
                == [0 if each in (0, 3) else -1 for each in range(PARTITIONS)]
            ),
            what="leaders where the replicas are now",
        )


def read_topic(node: EmbeddedBroker, count: int) -> list[dict[str, str]]:
    """So many records of the topic, from its beginning."""
    arguments = ("consume", TOPIC, "--from", "beginning", "-n", str(count), "-o", "json")
    return [json.loads(line) for line in command(node, *arguments).splitlines()]


@contextmanager
def three_nodes_and_a_disk(tmp_path: Path) -> Iterator[tuple[Cluster, FailingDisk, str]]:
    """Nodes whose second directory is second-0 and so on; that of node 1 is a disk that can fail.
    The third value is the URL of node 1's probes."""
    port = free_port()
    with failing_disk(tmp_path / "second-1", 128 << 20) as disk, cluster(tmp_path) as nodes:
        for node_id, node in nodes.nodes.items():
            node.settings["log.dirs"] = str(tmp_path / f"second-{node_id}")
        nodes[1].settings["http.listen"] = f"127.0.0.1:{port}"
        nodes.start()
        yield nodes, disk, f"http://127.0.0.1:{port}"


def test_on_three_nodes_others_lead_what_was_in_a_directory_whose_disk_fails(
    tmp_path: Path,
) -> None:
    with three_nodes_and_a_disk(tmp_path) as (nodes, disk, probes):
        nodes.create_at(TOPIC, [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(PARTITIONS)])
        places = {node_id: described(node) for node_id, node in nodes.nodes.items()}
        for place in places.values():
            assert [len(found) for _, found in place.values()] == [PARTITIONS // 2] * 2
        disk.fail()
        lost = places[1]["second-1"][1]

        def have_moved() -> bool:
            # An error of a disk is noticed by those who write to it.
            for index, leader in enumerate(each.leader_id for each in partitions(nodes[0])):
                if leader >= 0:
                    append(nodes[leader], index)
            found = partitions(nodes[0])
            return all(
                (1 in found[each].isr_nodes) != (each in lost) for each in range(PARTITIONS)
            ) and all(found[each].leader_id in (0, 2) for each in lost)

        wait_until(have_moved, what="others lead the lost partitions, node 1 keeps the rest")
        for partition in range(PARTITIONS):

            def is_appended(partition: int = partition) -> bool:
                leader = nodes.leader_of(TOPIC, partition)
                return append(nodes[leader], partition) is ErrorCode.NONE

            # On a busy machine a node may be fenced for a moment, and the leader change.
            wait_until(is_appended, what=f"partition {partition} is written")
        assert not any(1 in partitions(nodes[0])[each].isr_nodes for each in lost)
        check_is_told(nodes, probes, lost)

        nodes[1].stop()
        disk.mend()
        nodes[1].start()
        nodes.wait_until_whole(TOPIC)
        assert described(nodes[1]) == places[1]
        # Not ready, and an error, until the replicas of other topics are in sync, too.
        ready = wait_until(lambda: page(f"{probes}/readyz"), what="node 1 is ready")
        assert "offline" not in ready


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def check_is_told(nodes: Cluster, probes: str, lost: list[int]) -> None:
    """Every place that an operator may look at names the directory and the reason."""
    assert described(nodes[1])["second-1"] == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    ready, metrics = page(f"{probes}/readyz"), page(f"{probes}/metrics")
    assert 'odradek_offline_log_directories{process="supervisor"} 1' in metrics
    problem = f"log directory {nodes[1].settings['log.dirs']} is offline: "
    assert problem in ready
    assert "Read-only file system" in ready
    names = ", ".join(f"{TOPIC}-{each}" for each in lost)
    for line in (("cluster", "status"), ("topic", "explain", TOPIC)):
        text = run(nodes[0], *line).stdout
        assert f"Broker 1 has lost a part of its replicas: {problem}" in text
        assert f"these replicas are in a log directory that is offline: {names}." in text
        assert "catches up" not in text
    doctor = run(nodes[0], "doctor")
    assert doctor.returncode == 1
    assert f"Broker 1 has lost a part of its replicas: {problem}" in doctor.stderr
