"""A cluster of real processes on loopback, with helpers that query its nodes."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.cli.quorum import quorum_request
from odradek.node.embedded import BrokerFailure, EmbeddedBroker
from odradek.node.local_cluster import ClusterLayout, LocalCluster, LocalNode, write_layout
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeQuorumResponsePartitionData,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.protocol.messages.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from odradek.protocol.types import Uuid
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

CREATE_TIMEOUT_MS = 10_000
WAIT_S = 60.0
SMALL = {
    "profile": "dev",
    "workers": "1",
    "arena.bytes": "32MiB",
    "socket.request.max.bytes": str(8 << 20),
}


class Cluster:
    """Nodes by id, as LocalCluster makes them. A test may change their settings before a start.
    Queries go to node `at`, or to any running node."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.nodes = local.nodes
        self.bootstrap_servers = local.bootstrap_servers

    def __getitem__(self, node_id: int) -> EmbeddedBroker:
        return self.nodes[node_id]

    def start(self, *node_ids: int) -> None:
        """Start these nodes, or all of them, at the same time: the first ones wait for a
        majority."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda n: self.nodes[n].start(), node_ids or self.nodes))

    def join(self, node_id: int) -> EmbeddedBroker:
        """Add one node, without starting it."""
        return self.local.join(LocalNode(node_id, free_port(), free_pair()))

    def start_in_vain(self, node_id: int, told_there: str, told_here: str) -> None:
        """Start a node that must be refused, wait until it and node 0 have logged the reason, and
        kill it."""
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(self.nodes[node_id].start)
            try:
                self.wait_until_said(node_id, told_there)
                self.wait_until_said(0, told_here)
                assert not starting.done()
            finally:
                self.nodes[node_id].kill()
            with pytest.raises(BrokerFailure):
                starting.result()

    def wait_until_said(self, node_id: int, text: str) -> None:
        """Wait until the text is in the node's log. It may be written a moment after the event."""
        wait_until(
            lambda: text in self.nodes[node_id].log(),
            timeout_s=WAIT_S,
            what=f"node {node_id} says {text!r}",
        )

    def others(self, *node_ids: int) -> list[int]:
        return [n for n in self.nodes if n not in node_ids]

    def any(self) -> int:
        """Any running node."""
        return next(n for n, node in self.nodes.items() if node.is_running)

    # -- the quorum --------------------------------------------------------------------------------

    def quorum(self, at: int) -> DescribeQuorumResponsePartitionData:
        answer = self.nodes[at].ask(quorum_request())
        return answer.topics[0].partitions[0]

    def leader(self, at: int | None = None) -> int:
        """The leader of the quorum (the active controller), once there is one. Metadata may name
        any broker as controller."""
        asked = self.any() if at is None else at
        found = wait_until(lambda: [q for q in (self.quorum(asked),) if not q.error_code])
        return found[0].leader_id

    def brokers(self, at: int) -> set[int]:
        """The brokers in this node's Metadata response."""
        answer = self.nodes[at].ask(DescribeClusterRequest())
        return {broker.broker_id for broker in answer.brokers}

    def wait_for_brokers(self, at: int, wanted: set[int]) -> None:
        wait_until(
            lambda: self.brokers(at) == wanted,
            timeout_s=WAIT_S,
            what=f"node {at} shows {wanted}",
        )

    # -- topics ------------------------------------------------------------------------------------

    def create(self, at: int, name: str, timeout_ms: int = CREATE_TIMEOUT_MS) -> int:
        """Create a topic with one replica; returns the error code."""
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        return self.nodes[at].ask(request).topics[0].error_code

    def create_at(
        self, name: str, replicas: list[list[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic whose partitions have these replicas, the leader first. Returns when all
        nodes know it and all replicas are in sync."""
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in enumerate(replicas)
            ],
            configs=[
                CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
        (created,) = self.nodes[replicas[0][0]].ask(request).topics
        assert not created.error_code, created.error_message
        running = [n for n, node in self.nodes.items() if node.is_running]
        wait_until(
            lambda: all(len(self.partitions(name, n)) == len(replicas) for n in running),
            what=f"all nodes have {name}",
        )
        self.wait_until_whole(name)

    def reassign(self, name: str, replicas: Mapping[int, list[int] | None]) -> None:
        """Begin to reassign partitions of a topic to these replicas (an empty list cancels)."""
        partitions = [
            ReassignablePartition(partition_index=index, replicas=brokers)
            for index, brokers in replicas.items()
        ]
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name, partitions=partitions)]
        )
        answer = self.nodes[self.any()].ask(request)
        assert not answer.error_code, answer.error_message
        assert not any(p.error_code for topic in answer.responses for p in topic.partitions)

    def topic_id(self, name: str) -> Uuid:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        return self.nodes[self.any()].ask(request).topics[0].topic_id

    def topics(self, at: int) -> set[str]:
        answer = self.nodes[at].ask(MetadataRequest(topics=None))
        return {topic.name for topic in answer.topics if topic.name is not None}

    def wait_for_topics(self, at: int, wanted: set[str]) -> None:
        wait_until(lambda: self.topics(at) == wanted, what=f"node {at} has {wanted}")

    def partitions(self, topic: str, at: int | None = None) -> list[MetadataResponsePartition]:
        """The topic's partitions in order."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        answer = self.nodes[self.any() if at is None else at].ask(request)
        return sorted(answer.topics[0].partitions, key=lambda p: p.partition_index)

    def leader_of(self, topic: str, partition: int = 0, at: int | None = None) -> int:
        """The leader of the partition, once there is one."""
        return wait_until(
            lambda: [
                p.leader_id for p in self.partitions(topic, at)[partition:] if p.leader_id >= 0
            ],
            timeout_s=WAIT_S,
        )[0]

    def is_whole(self, topic: str) -> bool:
        """Whether every replica of every partition is in sync."""
        return all(
            p.leader_id >= 0 and set(p.isr_nodes) == set(p.replica_nodes)
            for p in self.partitions(topic)
        )

    def wait_until_whole(self, topic: str) -> None:
        wait_until(lambda: self.is_whole(topic), timeout_s=WAIT_S, what="all replicas are in sync")


@contextmanager
def cluster(
    folder: Path,
    node_count: int = 3,
    *,
    settings: Mapping[str, str] | None = None,
    layout: ClusterLayout | None = None,
) -> Iterator[Cluster]:
    """Nodes that are not started yet; they are closed at the end of the test."""
    chosen = layout or ClusterLayout(
        "cluster-of-the-test",
        tuple(LocalNode(n, free_port(), free_pair()) for n in range(node_count)),
    )
    write_layout(folder, chosen)
    local = LocalCluster(folder, chosen, settings={**SMALL, **(settings or {})})
    try:
        yield Cluster(local)
    except BaseException as error:
        for node_id, node in local.nodes.items():
            error.add_note(f"-- node {node_id}\n{node.log()[-4000:]}")
        raise
    finally:
        local.kill()


@contextmanager
def running_cluster(
    folder: Path, node_count: int = 3, *, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Nodes that run already."""
    with cluster(folder, node_count, settings=settings) as nodes:
        nodes.start()
        yield nodes
