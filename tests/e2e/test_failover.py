"""Nodes of a cluster are killed under load: what was acknowledged is on the others, once, in order.

Three replicas, min.insync.replicas 2, a producer with its defaults (idempotent, acks=all) and a
group of readers. Whole nodes are SIGKILLed, the leader of a partition and the active controller
among them, and come back; afterwards the history is checked in the manner of Jepsen.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.asker import Asker
from node.cli.client import split_address
from node.cli.cluster import METADATA_TOPIC
from node.local_cluster import Layout, LocalCluster, LocalNode, keep
from protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.e2e.checker import History, anomalies
from tests.e2e.conftest import Report
from tests.e2e.load import Reader, Writer, read_log
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
READERS = 2
WAIT_S = 60.0


@contextmanager
def cluster(folder: Path, node_count: int = 3) -> Iterator[LocalCluster]:
    layout = Layout(
        "cluster-of-the-test",
        tuple(LocalNode(n, free_port(), free_pair()) for n in range(node_count)),
    )
    keep(folder, layout)
    settings = {
        "profile": "dev",
        "workers": "1",
        "arena.bytes": "32MiB",
        "socket.request.max.bytes": str(8 << 20),
    }
    nodes = LocalCluster(folder, layout, settings=settings)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.kill()


def described(nodes: LocalCluster, topic: str) -> MetadataResponse:
    """What a node that is there says of the topic."""
    address = next(n.bootstrap_servers for n in nodes.nodes.values() if n.is_running)
    with Asker(*split_address(address), 10.0) as asker:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        return asker.ask(request, MetadataResponse)


def is_whole(nodes: LocalCluster, topic: str) -> bool:
    """Whether every replica of every partition is in sync."""
    partitions = described(nodes, topic).topics[0].partitions
    return all(p.leader_id >= 0 and set(p.isr_nodes) == set(p.replica_nodes) for p in partitions)


def leader_of(nodes: LocalCluster, partition: int) -> int:
    partitions = described(nodes, TOPIC).topics[0].partitions
    return next(p.leader_id for p in partitions if p.partition_index == partition)


def active_controller(nodes: LocalCluster) -> int:
    """The leader of the quorum; Metadata may name any broker."""
    address = next(n.bootstrap_servers for n in nodes.nodes.values() if n.is_running)
    topic = DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC,
        partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
    )
    with Asker(*split_address(address), 10.0) as asker:
        answer = asker.ask(DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse)
    return answer.topics[0].partitions[0].leader_id


class Scene:
    """A cluster and its clients."""

    def __init__(self, nodes: LocalCluster) -> None:
        self.nodes = nodes
        self.history = History()
        bootstrap = nodes.bootstrap_servers
        nodes.nodes[0].create_topic(
            TOPIC, partitions=PARTITIONS, configs={"min.insync.replicas": "2"}
        )
        self.wait_until_whole()
        self.writer = Writer(bootstrap, TOPIC, PARTITIONS, self.history)
        self.readers = [
            Reader(bootstrap, TOPIC, "shippers", f"reader-{number}", self.history)
            for number in range(READERS)
        ]
        self.writer.start()
        for reader in self.readers:
            reader.start()
        self.wait_for_progress()

    def wait_until_whole(self) -> None:
        wait_until(
            lambda: is_whole(self.nodes, TOPIC), timeout_s=WAIT_S, what="all replicas are in sync"
        )

    def wait_for_progress(self) -> None:
        """Return when each partition has taken a record of after now, and the group has read it."""
        mark = self.writer.next_number
        wait_until(
            lambda: all(newest > mark for newest in self.writer.newest),
            timeout_s=WAIT_S,
            what="every partition takes new records",
        )
        wait_until(
            lambda: all(newest > mark for newest in self.read_up_to()),
            timeout_s=WAIT_S,
            what="the group reads new records of every partition",
        )

    def read_up_to(self) -> list[int]:
        return [
            max(reader.newest.get(partition, -1) for reader in self.readers)
            for partition in range(PARTITIONS)
        ]

    def kill(self, node_id: int) -> float:
        """SIGKILL a node under load, start it again; the longest gap a partition has seen."""
        begin = time.monotonic()
        self.nodes.nodes[node_id].kill()
        self.wait_for_progress()
        gap_s = self.writer.longest_gap_s(begin, time.monotonic())
        self.nodes.nodes[node_id].start()
        self.wait_until_whole()
        self.wait_for_progress()
        return gap_s

    def end(self) -> None:
        """Finish writing and reading, then read the whole log."""
        self.writer.stop()
        newest = list(self.writer.newest)
        wait_until(lambda: self.read_up_to() == newest, timeout_s=WAIT_S, what="all is read")
        for reader in self.readers:
            reader.stop()
        self.history.log = read_log(self.nodes.bootstrap_servers, TOPIC, range(PARTITIONS))


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_nodes_die(tmp_path: Path, report: Report) -> None:
    with cluster(tmp_path) as nodes:
        scene = Scene(nodes)
        gaps = [scene.kill(leader_of(nodes, 0)), scene.kill(active_controller(nodes))]
        gaps.append(scene.kill(random.Random(8).randrange(3)))
        scene.end()
        report(f"longest gaps of a producer {', '.join(f'{gap:.2f}' for gap in gaps)} s")
        assert anomalies(scene.history) == []


def test_a_minority_takes_no_record_that_must_be_on_two_nodes(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.nodes[0].create_topic(TOPIC, configs={"min.insync.replicas": "2"})
        wait_until(lambda: is_whole(nodes, TOPIC), timeout_s=WAIT_S)
        survivor = leader_of(nodes, 0)
        history = History()
        writer = Writer(nodes.bootstrap_servers, TOPIC, 1, history)
        writer.start()
        wait_until(lambda: writer.newest[0] > 50, timeout_s=WAIT_S)
        for node_id, node in nodes.nodes.items():
            if node_id != survivor:
                node.kill()
        acknowledged = writer.newest[0]
        for node_id, node in nodes.nodes.items():
            if node_id != survivor:
                node.start()
        wait_until(
            lambda: writer.newest[0] > acknowledged,
            timeout_s=WAIT_S,
            what="writing goes on when the others are back",
        )
        writer.stop()
        wait_until(lambda: is_whole(nodes, TOPIC), timeout_s=WAIT_S)
        history.log = read_log(nodes.bootstrap_servers, TOPIC, range(1))
        assert anomalies(history) == []
