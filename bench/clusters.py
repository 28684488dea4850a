"""The two measured clusters: three nodes each on this machine. Each node can be stopped, killed and
started on its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.brokers import (
    CLUSTER_ID,
    KAFKA_JVM,
    KAFKA_PROPERTIES,
    LOG4J,
    START_TIMEOUT_S,
    answers_metadata,
    free_port,
    kafka_version,
    revision,
)

NODE_IDS: Final = (1, 2, 3)
STOP_TIMEOUT_S: Final = 60.0
_DIRECTORY_ID: Final = "QmVuY2htYXJrTm9kZVVV{}A"
"""Kafka's directory id: 16 bytes as 22 characters of base64; the last one holds two bits."""
_PEER_PORTS: Final = range(20_000, 21_000, 20)
"""Below the range of ephemeral ports. The ports of the workers follow the peer port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchNode:
    """The command, the client address and the data directory of one node."""

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    directory: Path


class BenchCluster:
    """Nodes by id. Each has its own process group, so that `kill` reaches all of its processes."""

    def __init__(self, name: str, version: str, nodes: Mapping[int, BenchNode]) -> None:
        self.name = name
        self.version = version
        self.nodes = nodes
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    @property
    def pids(self) -> list[int]:
        """The pids of the running nodes' first processes."""
        return [each.pid for each in self._processes.values() if each.poll() is None]

    def start(self, *node_ids: int) -> None:
        """Start nodes and wait until they answer. RuntimeError if one does not."""
        for node_id in node_ids:
            node = self.nodes[node_id]
            with (node.directory / "output.log").open("ab") as output:
                self._processes[node_id] = subprocess.Popen(
                    node.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **node.environment},
                    start_new_session=True,
                )
        deadline = time.monotonic() + START_TIMEOUT_S
        for node_id in node_ids:
            while not answers_metadata(self.nodes[node_id].port):
                if self._processes[node_id].poll() is not None or time.monotonic() > deadline:
                    log = (self.nodes[node_id].directory / "output.log").read_text()
                    raise RuntimeError(f"{self.name}: node {node_id} did not start:\n{log[-2000:]}")
                time.sleep(0.02)

    def stop(self, node_id: int) -> None:
        """Stop a node with SIGTERM and wait for its end."""
        process = self._processes.pop(node_id)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._processes[node_id] = process
            self.kill(node_id)
            raise RuntimeError(f"{self.name}: node {node_id} did not stop") from None

    def kill(self, node_id: int) -> None:
        """SIGKILL all of a node's processes at once."""
        process = self._processes.pop(node_id)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Kill all nodes and remove their data."""
        for node_id in list(self._processes):
            self.kill(node_id)
        for node in self.nodes.values():
            shutil.rmtree(node.directory, ignore_errors=True)


@contextmanager
def kafka_cluster(jars: Path, directory: Path) -> Iterator[BenchCluster]:
    """Apache Kafka in combined mode (broker and controller), otherwise with default settings."""
    ports = {node_id: (free_port(), free_port()) for node_id in NODE_IDS}
    controllers = ",".join(f"127.0.0.1:{controller}" for _, controller in ports.values())
    initial = ",".join(
        f"{node_id}@127.0.0.1:{controller}:{_DIRECTORY_ID.format(node_id)}"
        for node_id, (_, controller) in ports.items()
    )
    nodes = {}
    for node_id, (port, controller) in ports.items():
        folder = directory / f"kafka-{node_id}"
        folder.mkdir(parents=True)
        text = KAFKA_PROPERTIES.format(port=port, controller_port=controller, data=folder / "data")
        changed = {
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": controllers,
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }
        kept = [line for line in text.splitlines() if line.partition("=")[0] not in changed]
        properties = folder / "server.properties"
        properties.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in changed.items()), ""]))
        log4j = folder / "log4j2.yaml"
        log4j.write_text(LOG4J)
        java = ["java", f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{jars}/*"]
        storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(
            [*java, *storage, "--initial-controllers", initial], check=True, capture_output=True
        )
        command = [*java[:1], *KAFKA_JVM, *java[1:], "kafka.Kafka", str(properties)]
        nodes[node_id] = BenchNode(command=command, environment={}, port=port, directory=folder)
    with _running(BenchCluster("Kafka", kafka_version(jars), nodes)) as cluster:
        yield cluster


@contextmanager
def odradek_cluster(repository: Path, directory: Path) -> Iterator[BenchCluster]:
    """Odradek, with keys between the nodes."""
    ports = {node_id: free_port() for node_id in NODE_IDS}
    peer_ports = dict(zip(NODE_IDS, _PEER_PORTS, strict=False))
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "cluster.secret"
    secret.touch(mode=0o600)
    secret.write_text(os.urandom(32).hex())
    nodes = {}
    for node_id, port in ports.items():
        folder = directory / f"odradek-{node_id}"
        folder.mkdir(parents=True)
        settings = {
            "node.id": str(node_id),
            "cluster.id": CLUSTER_ID,
            "cluster.secret.file": str(secret),
            "peers": ",".join(f"{n}@127.0.0.1:{port}" for n, port in peer_ports.items()),
            "default.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
        }
        command = [sys.executable, "-m", "odradek", "serve", "--profile", "standard"]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        nodes[node_id] = BenchNode(
            command=command,
            environment={"PYTHONPATH": str(repository)},
            port=port,
            directory=folder,
        )
    with _running(BenchCluster("Odradek", revision(repository), nodes)) as cluster:
        yield cluster


@contextmanager
def _running(cluster: BenchCluster) -> Iterator[BenchCluster]:
    try:
        cluster.start(*cluster.nodes)
        yield cluster
    finally:
        cluster.close()
