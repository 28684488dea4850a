"""Replication as clients see it, on three nodes in three racks.

Consumers fetch from the nearest replica (KIP-392), and from the leader if that replica is gone. A
request to the wrong broker is answered with the leader (KIP-951). Deletions reach every replica.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.cluster.metadata.broker_settings import RACK_AWARE_SELECTOR
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import ElectLeadersRequest, ElectLeadersResponse
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.protocol.messages.partitions import TopicName, TopicPartitions
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.conformance.dialogue import append, batch_of, values_of
from tests.e2e.checker import anomalies
from tests.e2e.cluster import WAIT_S, Cluster, cluster
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

FETCH = 18
FETCH_BY_NAME = 12


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR}
    with cluster(tmp_path_factory.mktemp("racks"), settings=settings) as nodes:
        for node_id, node in nodes.nodes.items():
            node.settings["broker.rack"] = f"rack-{node_id}"
        nodes.start()
        yield nodes


class NearbyReader:
    """A consumer of one partition in a rack. `broker` is the broker that its library fetches
    from."""

    def __init__(self, nodes: Cluster, topic: str, rack: str, start: int) -> None:
        self.broker = -1
        self.errors: list[KafkaError] = []
        self.values: list[bytes] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": nodes.bootstrap_servers,
                "group.id": "nobody",
                "client.rack": rack,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "statistics.interval.ms": 100,
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, start)])

    def wait_for(self, values: list[bytes], broker: int) -> None:
        def has_come() -> bool:
            message: Message | None = self._consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                self.values.append(message.value() or b"")
            return len(self.values) >= len(values) and self.broker == broker

        wait_until(has_come, timeout_s=WAIT_S, what=f"{len(values)} records from node {broker}")
        assert self.values == values

    def _on_statistics(self, text: str) -> None:
        topic = json.loads(text)["topics"].get(self._topic)
        if topic is not None and "0" in topic["partitions"]:
            self.broker = topic["partitions"]["0"]["broker"]

    def _on_error(self, error: KafkaError) -> None:
        self.errors.append(error)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def reading(nodes: Cluster, topic: str, rack: str, start: int = 0) -> Iterator[NearbyReader]:
    reader = NearbyReader(nodes, topic, rack, start)
    try:
        yield reader
    finally:
        reader.close()


def produce(nodes: Cluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def asked(
    nodes: Cluster, at: int, topic: str, offset: int, *, epoch: int = -1, rack: str = ""
) -> PartitionData:
    """The response of one node to a fetch from that offset, without waiting."""
    partition = FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
        rack_id=rack,
    )
    with WireClient(nodes[at].bootstrap_servers) as wire:
        answer = wire.ask(request, FETCH_BY_NAME, FetchResponse)
    return answer.responses[0].partitions[0]


def test_a_consumer_reads_from_its_rack_and_from_the_leader_when_that_is_gone(
    nodes: Cluster, report: Report
) -> None:
    nodes.create_at("near", [[0, 1, 2]], {"min.insync.replicas": "2"})
    values = [b"%d" % number for number in range(500)]
    produce(nodes, "near", values)
    with reading(nodes, "near", "rack-1") as near, reading(nodes, "near", "rack-9") as far:
        near.wait_for(values, broker=1)
        far.wait_for(values, broker=0)
        # New records arrive through the follower as well, without a delay of a second.
        values += [b"news"]
        produce(nodes, "near", [b"news"])
        near.wait_for(values, broker=1)

        nodes[1].kill()
        begin = time.monotonic()
        values += [b"without it"]
        produce(nodes, "near", [b"without it"])
        near.wait_for(values, broker=0)
        report(f"back with the leader {time.monotonic() - begin:.1f} s after the follower's death")
        nodes[1].start()
        nodes.wait_until_whole("near")
    with reading(nodes, "near", "rack-1") as again:
        again.wait_for(values, broker=1)


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafkas_own_consumer_reads_from_a_follower(nodes: Cluster, tmp_path: Path) -> None:
    nodes.create_at("java", [[0, 1, 2]])
    values = [b"%d" % number for number in range(100)]
    produce(nodes, "java", values)
    log = "org.apache.kafka.clients.consumer.internals"
    done = run_java_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", nodes.bootstrap_servers, "--topic", "java", "--from-beginning"),
        *("--max-messages", "100", "--command-property", "client.rack=rack-2"),
        directory=tmp_path,
        debug=log,
    )
    assert done.stdout.split() == [value.decode() for value in values], done.stderr[-2000:]
    assert "preferred read replica" in done.stderr.lower()
    assert "(id: 2 rack: rack-2" in done.stderr


def test_a_follower_knows_its_epoch_and_how_far_it_may_read(nodes: Cluster) -> None:
    nodes.create_at("seen", [[0, 1, 2]])
    produce(nodes, "seen", [b"a", b"b"])
    (state,) = nodes.partitions("seen")
    epoch = state.leader_epoch
    wait_until(
        lambda: [asked(nodes, n, "seen", 2).high_watermark for n in (1, 2)] == [2, 2],
        what="the high watermark of an idle partition is everywhere",
    )
    assert asked(nodes, 0, "seen", 0, rack="rack-2").preferred_read_replica == 2
    assert asked(nodes, 1, "seen", 0, rack="rack-2").preferred_read_replica == -1
    assert asked(nodes, 1, "seen", 0, epoch=epoch).error_code == ErrorCode.NONE
    assert asked(nodes, 1, "seen", 0, epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    beyond = asked(nodes, 1, "seen", 3)
    assert (beyond.error_code, beyond.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_whoever_asks_a_former_leader_is_told_the_new_one_by_every_api(nodes: Cluster) -> None:
    nodes.create_at("led", [[0, 1, 2]])
    with WireClient(nodes[0].bootstrap_servers) as wire:
        append(wire, "led", b"a", b"b", b"c")
        before = nodes.partitions("led")[0].leader_epoch
        nodes.reassign("led", {0: [1, 0, 2]})
        named = [TopicPartitions(name="led", partitions=[0])]
        elected = wire.ask(ElectLeadersRequest(topic_partitions=named), 2, ElectLeadersResponse)
        assert elected.replica_election_results[0].partitions[0].error_code == ErrorCode.NONE
        wait_until(
            lambda: all(nodes.leader_of("led", at=n) == 1 for n in nodes.nodes),
            what="everybody knows",
        )
        state = nodes.partitions("led", at=0)[0]
        assert state.leader_epoch > before
        known = (1, state.leader_epoch)
        topic_id = nodes.topic_id("led")

        batch = PartitionProduceData(index=0, records=memoryview(batch_of(b"d")))
        for version in (9, 10, 13):
            topic = TopicProduceData(
                name="led" if version < 13 else "",
                topic_id=topic_id if version >= 13 else bytes(16),
                partition_data=[batch],
            )
            request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
            told = wire.ask(request, version, ProduceResponse)
            (answer,) = told.responses[0].partition_responses
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            if version < 10:
                assert (answer.current_leader, told.node_endpoints) == (None, [])
                continue
            assert answer.current_leader is not None
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == known
            assert [(e.node_id, e.port, e.rack) for e in told.node_endpoints] == [
                (1, int(nodes[1].bootstrap_servers.rpartition(":")[2]), "rack-1")
            ]

        partition = FetchPartition(
            partition=0, fetch_offset=0, current_leader_epoch=before, partition_max_bytes=1 << 20
        )
        fetch = FetchRequest(
            session_epoch=-1, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])]
        )
        for version in (15, FETCH):
            fetched = wire.ask(fetch, version, FetchResponse)
            (data,) = fetched.responses[0].partitions
            assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
            if version < 16:
                assert (data.current_leader, fetched.node_endpoints) == (None, [])
                continue
            assert data.current_leader is not None
            assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == known
            assert [endpoint.node_id for endpoint in fetched.node_endpoints] == [1]

        for epoch, code in (
            (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (before, ErrorCode.FENCED_LEADER_EPOCH),
            (state.leader_epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (state.leader_epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            assert listed(wire, "led", epoch) == code
            assert end_of_epoch(wire, "led", before, epoch)[0] == code
    with WireClient(nodes[1].bootstrap_servers) as wire:
        append(wire, "led", b"d")
        # The end of the requested epoch, not of the present one.
        ended = (ErrorCode.NONE, before, 3)
        assert end_of_epoch(wire, "led", before, state.leader_epoch) == ended
        now = (ErrorCode.NONE, state.leader_epoch, 4)
        assert end_of_epoch(wire, "led", state.leader_epoch, state.leader_epoch) == now
        assert end_of_epoch(wire, "led", state.leader_epoch + 1, -1) == (ErrorCode.NONE, -1, -1)
        wait_until(lambda: listed(wire, "led", -1) == ErrorCode.NONE, what="its end is known")
        assert values_of(asked(nodes, 1, "led", 0)) == [b"a", b"b", b"c", b"d"]


def test_partitions_are_described_page_by_page(nodes: Cluster) -> None:
    nodes.create_at("paged", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    nodes.create_at("paged-too", [[1, 0, 2]])
    pages: list[tuple[str | None, int, int, list[int]]] = []
    cursor: Cursor | None = None
    with WireClient(nodes[2].bootstrap_servers) as wire:
        for _ in range(2):
            request = DescribeTopicPartitionsRequest(
                topics=[
                    TopicName(name="paged-too"),
                    TopicName(name="paged"),
                ],
                response_partition_limit=2,
                cursor=cursor,
            )
            page = wire.ask(request, 0, DescribeTopicPartitionsResponse)
            described = [(topic.name, p) for topic in page.topics for p in topic.partitions]
            assert len(described) == 2
            pages += [
                (name, p.partition_index, p.leader_id, sorted(p.isr_nodes)) for name, p in described
            ]
            cursor = page.next_cursor
    assert cursor is None
    everybody = [0, 1, 2]
    assert pages == [
        ("paged", 0, 0, everybody),
        ("paged", 1, 1, everybody),
        ("paged", 2, 2, everybody),
        ("paged-too", 0, 1, everybody),
    ]


def test_deletions_reach_every_replica_before_they_are_answered(nodes: Cluster) -> None:
    nodes.create_at("short", [[2, 0, 1]])
    produce(nodes, "short", [b"%d" % number for number in range(10)])
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition("short", 0, 6)]).values()
    assert deleted.result(WAIT_S).low_watermark == 6
    for node_id in nodes.nodes:
        assert asked(nodes, node_id, "short", 5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert asked(nodes, node_id, "short", 6).log_start_offset == 6
    with reading(nodes, "short", "rack-1", start=6) as reader:
        reader.wait_for([b"6", b"7", b"8", b"9"], broker=1)


@pytest.mark.slow
def test_readers_of_followers_lose_and_double_nothing_when_nodes_die(
    nodes: Cluster, report: Report
) -> None:
    nodes[0].create_topic("watched", partitions=6, configs={"min.insync.replicas": "2"})
    nodes.wait_until_whole("watched")
    workload = Workload(nodes.bootstrap_servers, "watched", 6, racks=["rack-1", "rack-2"])
    workload.begin()
    gaps = []
    for victim in (1, 2, 1):
        gaps.append(workload.measure(nodes[victim].kill))
        nodes[victim].start()
        nodes.wait_until_whole("watched")
        workload.wait_for_progress()
    workload.end()
    report(f"longest gaps of a producer {', '.join(f'{gap:.2f}' for gap in gaps)} s")
    assert anomalies(workload.history) == []


def listed(wire: WireClient, topic: str, epoch: int) -> int:
    """The error code of ListOffsets for the log end."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    return wire.ask(request, 7, ListOffsetsResponse).topics[0].partitions[0].error_code


def end_of_epoch(wire: WireClient, topic: str, epoch: int, current: int) -> tuple[int, int, int]:
    """(error, epoch, end offset)"""
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    )
    answer = wire.ask(request, 4, OffsetForLeaderEpochResponse).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset
