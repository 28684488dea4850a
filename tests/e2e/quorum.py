"""Three nodes of one cluster as real processes on loopback, and questions to them."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from node.embedded import EmbeddedBroker
from protocol.apis import ApiKey
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
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

SECRET = "the secret of the nodes of a test"
CREATE_TIMEOUT_MS = 10_000


class QuorumOfNodes:
    """The nodes by id. `settings` are each node's, which a test may change before a start."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str], node_count: int = 3) -> None:
        ports = [free_pair() for _ in range(2 * node_count)]
        peers = ",".join(f"{n}@127.0.0.1:{ports[node_count + n]}" for n in range(node_count))
        self._folder = folder
        self._settings = settings
        self.peer_ports = dict(enumerate(ports[node_count:]))
        self.nodes = {
            n: self._node(n, ports[n], {"peers": peers} if node_count > 1 else {})
            for n in range(node_count)
        }

    def _node(self, node_id: int, port: int, place: Mapping[str, str]) -> EmbeddedBroker:
        return EmbeddedBroker(
            self._folder / f"node-{node_id}",
            settings={
                "node.id": str(node_id),
                "cluster.id": "cluster-of-the-test",
                "cluster.secret": SECRET,
                "workers": "1",
                "arena.bytes": "32MiB",
                "socket.request.max.bytes": str(8 << 20),
                **place,
                **self._settings,
            },
            timeout_s=30.0,
            port=port,
        )

    def open(self, node_id: int) -> None:
        """A node that was on its own shall be found by others from its next start on."""
        peer_port = self.peer_ports[node_id]
        self.nodes[node_id].settings["peer.listen"] = f"127.0.0.1:{peer_port}"

    def add(self, node_id: int, *, join: Iterable[int]) -> EmbeddedBroker:
        """A node that joins by some of the others; it is not started yet."""
        self.peer_ports[node_id] = free_pair()
        place = {
            "join": ",".join(f"127.0.0.1:{self.peer_ports[n]}" for n in join),
            "peer.listen": f"127.0.0.1:{self.peer_ports[node_id]}",
        }
        self.nodes[node_id] = self._node(node_id, free_port(), place)
        return self.nodes[node_id]

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
        answer = self.nodes[at]._ask(ApiKey.DESCRIBE_QUORUM, 2, request)
        assert isinstance(answer, DescribeQuorumResponse)
        return answer.topics[0].partitions[0]

    def leader(self, at: int) -> int:
        """Who leads the quorum, once somebody does."""
        return wait_until(lambda: [q.leader_id for q in (self.quorum(at),) if not q.error_code])[0]

    def create(self, at: int, name: str, timeout_ms: int = CREATE_TIMEOUT_MS) -> int:
        """Create a topic; the error code."""
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        answer = self.nodes[at]._ask(ApiKey.CREATE_TOPICS, 5, request)
        assert isinstance(answer, CreateTopicsResponse)
        return answer.topics[0].error_code

    def topics(self, at: int) -> set[str]:
        answer = self.nodes[at]._ask(ApiKey.METADATA, 5, MetadataRequest(topics=None))
        assert isinstance(answer, MetadataResponse)
        return {topic.name for topic in answer.topics if topic.name is not None}

    def brokers(self, at: int) -> set[int]:
        """Who serves, as this node tells clients."""
        answer = self.nodes[at]._ask(ApiKey.DESCRIBE_CLUSTER, 0, DescribeClusterRequest())
        assert isinstance(answer, DescribeClusterResponse)
        return {broker.broker_id for broker in answer.brokers}

    def wait_for_topics(self, at: int, wanted: set[str]) -> None:
        wait_until(lambda: self.topics(at) == wanted, what=f"node {at} has {wanted}")

    def wait_for_brokers(self, at: int, wanted: set[int]) -> None:
        wait_until(lambda: self.brokers(at) == wanted, what=f"node {at} shows {wanted}")


@contextmanager
def quorum_of_nodes(
    folder: Path, settings: Mapping[str, str] | None = None, node_count: int = 3
) -> Iterator[QuorumOfNodes]:
    """Nodes that are not started yet, and end with the test."""
    nodes = QuorumOfNodes(folder, settings=settings or {}, node_count=node_count)
    try:
        yield nodes
    finally:
        nodes.kill()
