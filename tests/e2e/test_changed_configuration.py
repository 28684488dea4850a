"""The configuration files of running nodes change under load: what a process reads at its start
takes effect by replacing it, and clients lose nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from odradek.node.blocking_client import BlockingClient
from odradek.node.config import NodeConfig
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 4
WAIT_S = 60.0
BROKER, SET, DELETE = 4, 0, 1
IN_EFFECT = "the changed configuration file is in effect"


class FileNode:
    """A node that `odradek node start` runs from a configuration file."""

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self.settings = {
            "data": str(folder / "data"),
            "run": str(folder / "run"),
            "node.id": "0",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "profile": "dev",
            "workers": "2",
            "arena.bytes": "33554432",
            "socket.request.max.bytes": str(8 << 20),
            "log.format": "text",
        } | {key.replace("_", "."): value for key, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def write(self, **changes: str) -> None:
        self.settings |= {key.replace("_", "."): value for key, value in changes.items()}
        text = "".join(f"{key}={value}\n" for key, value in self.settings.items())
        path = self.folder / "node.properties"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def start(self) -> None:
        self.write()
        command = [sys.executable, "-P", "-m", "odradek", "node", "start", "--format"]
        command += ["--config", str(self.folder / "node.properties")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        process = self._process
        assert process is not None
        wait_until(lambda: self.state().pid == process.pid, timeout_s=WAIT_S, what=str(self.folder))

    def state(self) -> NodeState:
        return msgspec.json.decode((self.folder / "data" / STATE_NAME).read_bytes(), type=NodeState)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(*nodes: FileNode) -> Iterator[None]:
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        for node in nodes:
            node.wait_ready()
        yield


def create_topic(node: FileNode, replicas: int) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=replicas)
    with BlockingClient("127.0.0.1", node.port, timeout_s=20) as client:
        answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert answer.topics[0].error_code == 0, answer


def alter(node: FileNode, key: str, value: str | None) -> tuple[int, str | None]:
    """Set (or with None delete) a config of the broker: error code and message."""
    config = IncrementalAlterableConfig(
        name=key, config_operation=DELETE if value is None else SET, value=value
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER, resource_name=node.settings["node.id"], configs=[config]
    )
    with BlockingClient("127.0.0.1", node.port, timeout_s=40) as client:
        (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    return answer.error_code, answer.error_message


def settings_of(node: FileNode) -> NodeConfig:
    """What a process of the node that starts now starts with."""
    return NodeConfig.load_json(Path(node.settings["run"]) / "config.json")


def in_sync_counts(node: FileNode) -> list[int]:
    with BlockingClient("127.0.0.1", node.port, timeout_s=20) as client:
        answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
    return [len(each.isr_nodes) for each in answer.topics[0].partitions]


def test_a_file_changes_under_load(tmp_path: Path, report: Report) -> None:
    node = FileNode(tmp_path / "node")
    with running(node):
        create_topic(node, 1)
        workload = Workload(node.bootstrap, TOPIC, PARTITIONS)
        workload.begin()
        for changes, replaced in (
            ({"durability": "commit"}, set()),
            ({"durability": "interval", "arena_bytes": "50331648"}, {"router-0"}),
            ({"processor_placement": "shared"}, {"worker-0", "worker-1", "router-0"}),
        ):
            gap_s = workload.measure(lambda c=changes, r=replaced: change([node], c, r))  # type: ignore[misc]
            report(f"{', '.join(changes)}: longest time without acknowledgement {gap_s:.2f} s")
        before = node.state().children
        node.write(arena_bytes="900000GiB")
        wait_until(lambda: "arena.bytes=966367641600000: Cannot allocate" in node.log())
        assert node.state().children == before
        alter_under_load(node, workload, report)

        before = node.state().children
        # The supervisor is killed while processes are being replaced.
        count = node.log().count("processes of this node are replaced")
        # The refused value of the file does not come back with it.
        node.settings["arena.bytes"] = "33554432"
        node.write(audit_log_path=str(tmp_path / "other.log"))
        wait_until(
            lambda: node.log().count("processes of this node are replaced") > count,
            timeout_s=WAIT_S,
        )
        node.kill()
        wait_until(lambda: not any(map(is_running, before.values())), what="nothing is left")
        node.start()
        node.wait_ready()
        # What is set through the cluster wins over the file, also after a start.
        wait_until(lambda: settings_of(node).arena_bytes == 64 << 20, timeout_s=WAIT_S)
        workload.wait_for_progress()
        workload.end()
        assert anomalies(workload.history) == []


def alter_under_load(node: FileNode, workload: Workload, report: Report) -> None:
    """Through the cluster: the answer comes when all but the router have it, which is next."""

    def place() -> None:
        workers = {node.state().children[f"worker-{number}"] for number in (0, 1)}
        assert alter(node, "processor.placement", "split") == (0, None)
        assert settings_of(node).processor_placement == "split"
        wait_until(lambda: workers.isdisjoint(node.state().children.values()))

    def enlarge() -> None:
        router = node.state().children["router-0"]
        assert alter(node, "arena.bytes", str(64 << 20)) == (0, None)
        assert settings_of(node).arena_bytes == 64 << 20
        wait_until(lambda: node.state().children["router-0"] != router, timeout_s=WAIT_S)

    for action in (place, enlarge):
        gap_s = workload.measure(action)
        report(f"{action.__name__}: longest time without acknowledgement {gap_s:.2f} s")
    before = node.state().children
    code, text = alter(node, "arena.bytes", str(900_000 << 30))
    assert (code, text) == (40, "arena.bytes=966367641600000: Cannot allocate memory")
    assert alter(node, "arena.bytes", str(8 << 20))[0] == 42
    assert alter(node, "log.level", "DEBUG") == (0, None)
    assert (settings_of(node).log_level, node.state().children) == ("DEBUG", before)
    assert alter(node, "log.level", None) == (0, None)
    assert alter(node, "peer.listen", "127.0.0.1:1")[0] == 42


def change(nodes: Sequence[FileNode], changes: dict[str, str], *replaced: set[str]) -> None:
    """Change the files of these nodes at the same time and wait until they are in effect, with new
    processes of these names: one set for each node."""
    before = [(node.state().children, node.log().count(IN_EFFECT)) for node in nodes]
    for node in nodes:
        node.write(**changes)
    for node, (children, count), names in zip(nodes, before, replaced, strict=True):
        wait_until(
            lambda n=node, c=count: n.log().count(IN_EFFECT) > c,  # type: ignore[misc]
            timeout_s=WAIT_S,
            what=f"{changes} is in effect in {node.folder}",
        )
        now = node.state().children
        assert {name for name, pid in now.items() if children[name] != pid} == names


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_files_of_three_nodes_change_under_load(tmp_path: Path, report: Report) -> None:
    ports = [free_pair() for _ in range(3)]

    def peers() -> str:
        return ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))

    nodes = [
        FileNode(
            tmp_path / f"node-{number}",
            node_id=str(number),
            cluster_id="a-cluster-of-three",
            peers=peers(),
            workers="1",
            min_insync_replicas="2",
        )
        for number in range(3)
    ]
    with running(*nodes):
        create_topic(nodes[0], 3)
        # All routers are replaced at once: for longer than librdkafka tries again to commit there
        # may be no coordinator.
        bootstrap = ",".join(node.bootstrap for node in nodes)
        workload = Workload(bootstrap, TOPIC, PARTITIONS, is_patient=True)
        workload.begin()

        def to_commit() -> None:
            change(nodes, {"durability": "commit"}, set(), set(), set())

        def move_bus() -> None:
            ports[2] = free_pair()
            # None waits for another: if the moved node leads the quorum, no other one can be ready
            # before it has moved.
            others = {"controller"}
            change(nodes, {"peers": peers()}, others, others, {"controller", "worker-0"})

        def enlarge() -> None:
            routers = [{"router-0"}] * len(nodes)
            change(nodes, {"arena_bytes": "50331648"}, *routers)

        for action in (to_commit, move_bus, enlarge):
            gap_s = workload.measure(action)
            report(f"{action.__name__}: longest time without acknowledgement {gap_s:.2f} s")
        wait_until(lambda: in_sync_counts(nodes[0]) == [3] * PARTITIONS, timeout_s=WAIT_S)
        workload.end()
        assert anomalies(workload.history) == []
