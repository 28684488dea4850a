"""Three nodes of one cluster as real processes on loopback, and questions to them."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from node.embedded import EmbeddedBroker
from protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
)
from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.support.ports import free_pair
from tests.support.waiting import wait_until

SECRET = "the secret of the nodes of a test"
CREATE_TIMEOUT_MS = 10_000


class QuorumOfNodes:
    """The nodes by id. `settings` are each node's, which a test may change before a start."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str], node_count: int = 3) -> None:
        ports = [free_pair() for _ in range(2 * node_count)]
        peers = ",".join(f"{n}@127.0.0.1:{ports[node_count + n]}" for n in range(node_count))
        self.nodes = {
            n: EmbeddedBroker(
                folder / f"node-{n}",
                settings={
                    "node.id": str(n),
                    "peers": peers,
                    "cluster.id": "cluster-of-the-test",
                    "cluster.secret": SECRET,
                    "workers": "1",
                    "arena.bytes": "32MiB",
                    "socket.request.max.bytes": str(8 << 20),
                    **settings,
                },
                timeout_s=30.0,
                port=ports[n],
            )
            for n in range(node_count)
        }

    def __getitem__(self, node_id: int) -> EmbeddedBroker:
        return self.nodes[node_id]

    def start(self, *node_ids: int) -> None:
        """Start nodes at once: the first ones wait for a majority."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda n: self.nodes[n].start(), node_ids or self.nodes))

    def others(self, *node_ids: int) -> list[int]:
        return [n for n in self.nodes if n not in node_ids]

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    # -- asking ------------------------------------------------------------------------------------

    def quorum(self, at: int) -> DescribeQuorumResponsePartitionData:
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        answer = self.nodes[at].ask(request, DescribeQuorumResponse)
        return answer.topics[0].partitions[0]

    def leader(self, at: int) -> int:
        """Who leads the quorum, once somebody does."""
        return wait_until(lambda: [q.leader_id for q in (self.quorum(at),) if not q.error_code])[0]

    def create(self, at: int, name: str, timeout_ms: int = CREATE_TIMEOUT_MS) -> int:
        """Create a topic; the error code."""
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        answer = self.nodes[at].ask(request, CreateTopicsResponse)
        return answer.topics[0].error_code

    def topics(self, at: int) -> set[str]:
        answer = self.nodes[at].ask(MetadataRequest(topics=None), MetadataResponse)
        return {topic.name for topic in answer.topics if topic.name is not None}

    def brokers(self, at: int) -> set[int]:
        """Who serves, as this node tells clients."""
        answer = self.nodes[at].ask(DescribeClusterRequest(), DescribeClusterResponse)
        return {broker.broker_id for broker in answer.brokers}

    def wait_for_topics(self, at: int, wanted: set[str]) -> None:
        wait_until(lambda: self.topics(at) == wanted, what=f"node {at} has {wanted}")

    def wait_for_brokers(self, at: int, wanted: set[int]) -> None:
        wait_until(lambda: self.brokers(at) == wanted, what=f"node {at} shows {wanted}")


@contextmanager
def quorum_of_nodes(
    folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[QuorumOfNodes]:
    """Nodes that are not started yet, and end with the test."""
    nodes = QuorumOfNodes(folder, settings=settings or {})
    try:
        yield nodes
    finally:
        nodes.kill()
