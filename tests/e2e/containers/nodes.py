"""Nodes of a cluster in containers, as somebody would run them with the Docker SDK.

Each has a host name with its number, a volume, and a port on the host; all are on one network.
Clients of a test are on the host.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container

from odradek.node.blocking_client import BlockingClient
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
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
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.support.ports import free_port
from tests.support.waiting import wait_until

WAIT_S: Final = 90.0
STOP_S: Final = 60
PEER_PORT: Final = 9192
CLIENT_PORT: Final = 19092
"""Of the listener for other containers."""
MIB: Final = 1 << 20
LABEL: Final = "odradek-test"
FAST_HEALTH: Final = {"Interval": 500_000_000}
"""Nanoseconds: a test should not wait for the image's own interval."""


def remove_all(engine: docker.DockerClient, prefix: str) -> None:
    """Remove the containers with this value of LABEL, and the volumes whose names begin so."""
    for container in engine.containers.list(all=True, filters={"label": f"{LABEL}={prefix}"}):
        with suppress(DockerException):
            container.remove(force=True, v=True)
    for volume in engine.volumes.list():
        if volume.name.startswith(f"{prefix}-"):
            volume.remove(force=True)


class ContainerNode:
    """One container."""

    def __init__(self, container: Container, name: str, port: int) -> None:
        self.container = container
        self.name = name
        self.port = port

    @property
    def bootstrap_servers(self) -> str:
        """Its address for clients on the host."""
        return f"localhost:{self.port}"

    @property
    def health(self) -> str:
        """`starting`, `healthy` or `unhealthy`."""
        self.container.reload()
        return str(self.container.attrs["State"].get("Health", {}).get("Status", ""))

    @property
    def is_running(self) -> bool:
        self.container.reload()
        return bool(self.container.status == "running")

    def wait_until_healthy(self) -> None:
        """Wait until the health check has passed."""
        wait_until(lambda: self.health == "healthy", timeout_s=WAIT_S, what=f"{self.name} healthy")

    def log(self) -> str:
        """All that it has written."""
        return bytes(self.container.logs()).decode(errors="replace")

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in the container: its exit code, and its output."""
        done = self.container.exec_run(list(command))
        return int(done.exit_code), done.output.decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to all processes of the container."""
        self.container.kill()
        self.container.wait()

    def stop(self) -> int:
        """SIGTERM, as `docker stop` sends it; the exit code."""
        self.container.stop(timeout=STOP_S)
        return int(self.container.wait()["StatusCode"])

    def start(self) -> None:
        """Start it again; it keeps its volume."""
        self.container.start()

    def received_bytes(self) -> int:
        """What it has received over the network since its start."""
        interfaces = self.container.stats(stream=False)["networks"].values()
        return sum(int(each["rx_bytes"]) for each in interfaces)

    def memory(self) -> "Memory":
        """Its use of memory, as the engine counts it."""
        stats = self.container.stats(stream=False)["memory_stats"]
        return Memory(stats)


class Memory:
    """A container's memory. The working set is what Kubernetes shows and evicts by."""

    def __init__(self, stats: Mapping[str, object]) -> None:
        details = stats["stats"]
        assert isinstance(details, dict)
        counts: dict[str, int] = details
        usage, peak = stats["usage"], stats.get("max_usage", 0)
        assert isinstance(usage, int)
        assert isinstance(peak, int)
        # cgroup v1 has total_..., which counts what is below; v2 has the plain names.
        inactive = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        self.working_set_bytes = usage - inactive
        self.own_bytes = counts.get("total_rss", counts.get("anon", 0))
        self.peak_bytes = peak

    def __str__(self) -> str:
        return (
            f"working set {self.working_set_bytes / MIB:.0f} MiB, of which"
            f" {self.own_bytes / MIB:.0f} MiB are anonymous"
        )


class ContainerCluster:
    """See the module's docstring."""

    def __init__(self, engine: docker.DockerClient, image: str, prefix: str) -> None:
        self._engine = engine
        self._image = image
        self._prefix = prefix
        self._secret = secrets.token_urlsafe(32)
        self._cluster_id = f"{prefix}-cluster"
        self._nodes: dict[int, ContainerNode] = {}
        self.network = engine.networks.create(prefix, driver="bridge", labels={LABEL: prefix})

    def __getitem__(self, node_id: int) -> ContainerNode:
        return self._nodes[node_id]

    def all(self) -> list[ContainerNode]:
        """All containers that exist."""
        return list(self._nodes.values())

    @property
    def ids(self) -> list[int]:
        return sorted(self._nodes)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes for clients on the host."""
        return ",".join(node.bootstrap_servers for node in self.all())

    def start(
        self,
        node_ids: Iterable[int],
        *,
        voters: Iterable[int] = (),
        join: Iterable[int] = (),
        settings: Mapping[str, str] | None = None,
        limits: Mapping[str, object] | None = None,
    ) -> float:
        """Run new nodes, and wait until they are healthy; how long that took, in seconds.

        With `voters` they bootstrap the cluster, with `join` they join it. `limits` are arguments
        of the SDK, as mem_limit and nano_cpus.
        """
        chosen = list(node_ids)
        cluster = {}
        if voters:
            cluster["ODRADEK_PEERS"] = ",".join(f"{n}@{host_name(n)}:{PEER_PORT}" for n in voters)
        if join:
            cluster["ODRADEK_JOIN"] = ",".join(f"{host_name(n)}:{PEER_PORT}" for n in join)
        began = time.monotonic()
        with ThreadPoolExecutor(len(chosen)) as pool:
            list(pool.map(lambda n: self._run(n, cluster | dict(settings or {}), limits), chosen))
        for node_id in chosen:
            self[node_id].wait_until_healthy()
        return time.monotonic() - began

    def _run(
        self, node_id: int, settings: Mapping[str, str], limits: Mapping[str, object] | None
    ) -> None:
        port = self._nodes[node_id].port if node_id in self._nodes else free_port()
        name = f"{self._prefix}-{node_id}"
        environment = {
            "ODRADEK_NODE_ID": "auto",
            "ODRADEK_CLUSTER_ID": self._cluster_id,
            "ODRADEK_CLUSTER_SECRET": self._secret,
            "ODRADEK_PEER_LISTEN": f"0.0.0.0:{PEER_PORT}",
            "ODRADEK_PEER_ADVERTISED": f"{host_name(node_id)}:{PEER_PORT}",
            "ODRADEK_LISTENERS": f"PLAINTEXT://:{CLIENT_PORT},HOST://:9092",
            "ODRADEK_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT",
            "ODRADEK_ADVERTISED_LISTENERS": (
                f"PLAINTEXT://{host_name(node_id)}:{CLIENT_PORT},HOST://localhost:{port}"
            ),
            **settings,
        }
        container = self._engine.containers.run(
            self._image,
            detach=True,
            name=name,
            hostname=host_name(node_id),
            environment=environment,
            labels={LABEL: self._prefix},
            read_only=True,
            tmpfs={"/tmp": ""},
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            ports={"9092/tcp": ("127.0.0.1", port)},
            volumes={self._volume(node_id): {"bind": "/var/lib/odradek", "mode": "rw"}},
            healthcheck=FAST_HEALTH,
            network=self._prefix,
            networking_config={
                self._prefix: self._engine.api.create_endpoint_config(aliases=[host_name(node_id)])
            },
            **(limits or {}),
        )
        self._nodes[node_id] = ContainerNode(container, name, port)

    def remove_node(self, node_id: int) -> None:
        """Remove a container, and its data."""
        self.replace_volume(node_id)
        del self._nodes[node_id]

    def replace_volume(self, node_id: int) -> None:
        """Destroy a node's container and volume. `start` makes new ones at the same port."""
        self[node_id].container.remove(force=True)
        self._engine.volumes.get(self._volume(node_id)).remove()

    def disconnect(self, node_id: int) -> None:
        """Take a node off the network: neither other nodes nor clients reach it."""
        self.network.disconnect(self[node_id].container)

    def connect(self, node_id: int) -> None:
        """Undo `disconnect`."""
        self.network.connect(self[node_id].container, aliases=[host_name(node_id)])

    def remove(self) -> None:
        """Remove all containers, volumes and the network."""
        remove_all(self._engine, self._prefix)
        with suppress(NotFound):
            self.network.remove()

    def _volume(self, node_id: int) -> str:
        return f"{self._prefix}-data-{node_id}"

    # -- queries -----------------------------------------------------------------------------------

    def client(self, node_id: int) -> BlockingClient:
        """A connection of a client on the host."""
        return BlockingClient("localhost", self[node_id].port, timeout_s=10)

    def brokers(self, at: int) -> dict[int, tuple[str, int]]:
        """The addresses of the brokers, as node `at` tells a client on the host."""
        with self.client(at) as client:
            answer = client.ask(DescribeClusterRequest())
        return {each.broker_id: (each.host, each.port) for each in answer.brokers}

    def partitions(self, topic: str, at: int) -> list[MetadataResponsePartition]:
        """The partitions of a topic, in order."""
        with self.client(at) as client:
            answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        return sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)

    def all_partitions(self, at: int) -> list[MetadataResponsePartition]:
        """The partitions of all topics."""
        with self.client(at) as client:
            answer = client.ask(MetadataRequest(topics=None))
        return [each for topic in answer.topics for each in topic.partitions]

    def is_whole(self, topic: str, at: int, replicas: int) -> bool:
        """Whether every partition has a leader and so many replicas in sync."""
        found = self.partitions(topic, at)
        return bool(found) and all(
            each.leader_id >= 0
            and set(each.isr_nodes) == set(each.replica_nodes)
            and len(each.replica_nodes) == replicas
            for each in found
        )

    def create_topic(self, name: str, partitions: int, replicas: int, **configs: str) -> None:
        """Create a topic, and wait until all its replicas are in sync."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        first = self.ids[0]
        with self.client(first) as client:
            answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert not answer.topics[0].error_code, answer.topics[0].error_message
        self.wait_until_whole(name, first, replicas)

    def replicate(self, topic: str, replicas: list[list[int]]) -> None:
        """Have these replicas for the partitions of a topic."""
        partitions = [
            ReassignablePartition(partition_index=index, replicas=each)
            for index, each in enumerate(replicas)
        ]
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=partitions)]
        )
        with self.client(self.ids[0]) as client:
            answer = client.ask(request)
        assert not answer.error_code, answer.error_message
        assert not any(p.error_code for topic in answer.responses for p in topic.partitions)

    def command(self, at: int, *words: str) -> str:
        """Run `odradek` in a node's container, against that node; what it prints."""
        code, text = self[at].run("odradek", "-b", f"{host_name(at)}:{CLIENT_PORT}", *words)
        assert code == 0, text
        return text

    def wait_until_whole(self, topic: str, at: int, replicas: int = 3) -> None:
        wait_until(
            lambda: self.is_whole(topic, at, replicas),
            timeout_s=WAIT_S,
            what=f"{replicas} replicas of {topic} are in sync",
        )


def host_name(node_id: int) -> str:
    """Of a node's container."""
    return f"node-{node_id}"
