"""`odradek cluster up` with `stop-node` and `start-node`, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from odradek.node.blocking_client import BlockingClient
from odradek.node.child import python_command
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.cluster_up import interruptions
from odradek.node.cli.connection import make_connection
from odradek.node.cli.quorum import quorum_state
from odradek.node.local_cluster import ClusterLayout, LocalNode, new_layout, write_layout
from odradek.protocol.messages.metadata import MetadataRequest
from tests.node.cli.conftest import Run
from tests.support.ports import free_pair, free_port, is_listening
from tests.support.waiting import is_readable, wait_until

NODES = 3


@dataclass
class Ready:
    """What `odradek cluster up` printed."""

    bootstrap: str
    folder: str
    nodes: list[dict[str, str]]

    def pid(self, node_id: int) -> int:
        return int(self.nodes[node_id]["pid"])


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Ready]]:
    """`odradek cluster up` in the folder, until the end of the block."""
    command = python_command("odradek", "cluster", "up", *arguments)
    command += ["--data", str(folder), "--output", "json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, Ready(**json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def one_node(folder: Path) -> int:
    """Write the layout of a cluster of one node; its port."""
    port = free_port()
    write_layout(folder, ClusterLayout("cluster-of-the-test", (LocalNode(0, port, free_pair()),)))
    return port


@pytest.mark.e2e
def test_a_cluster_runs_until_a_signal_and_restarts_a_killed_node(tmp_path: Path) -> None:
    port = one_node(tmp_path)
    state = tmp_path / "node-0" / "data" / "node.json"
    with running(tmp_path) as (_, ready):
        assert ready.bootstrap == f"127.0.0.1:{port}"
        assert ready.folder == str(tmp_path)
        killed = json.loads(state.read_bytes())["pid"]
        assert ready.pid(0) == killed
        first, last = map(int, ready.nodes[0]["peer_ports"].split("-"))
        assert all(is_listening(peer_port) for peer_port in range(first, last + 1))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: state.exists() and json.loads(state.read_bytes())["pid"] != killed)
        with BlockingClient("127.0.0.1", port, 10.0) as asker:
            assert asker.ask(MetadataRequest(topics=[])).brokers
    assert not is_listening(port)


@pytest.mark.e2e
@pytest.mark.parametrize("how", [(), ("--kill",)], ids=["stop", "kill"])
def test_a_node_is_held_down_until_it_is_started(
    tmp_path: Path, odradek: Run, how: tuple[str, ...]
) -> None:
    # Deeper than the 108 bytes that the address of a socket may have.
    folder = tmp_path / ("deep" * 25)
    port = one_node(folder)
    where = ("--data", str(folder))
    with running(folder) as (_, ready):
        stopped = odradek("cluster", "stop-node", "0", *how, *where)
        assert stopped.stdout == "Node 0 is down.\n"
        # The processes of a killed node end a moment after it.
        wait_until(lambda: not is_listening(port))
        again = odradek("cluster", "stop-node", "0", *where, "-o", "json").json()
        assert again == {"node": 0, "pid": None, "is_changed": False}
        back = odradek("cluster", "start-node", "0", *where, "-o", "json").json()
        assert isinstance(back, dict)
        assert back["is_changed"]
        assert back["pid"] != ready.pid(0)
        assert is_listening(port)
        already = odradek("cluster", "start-node", "0", *where).stdout
        assert already == f"Node 0 runs already, process {back['pid']}.\n"
        wrong = odradek("cluster", "stop-node", "7", *where)
        assert wrong.exit_code == 1
        assert wrong.stderr == "Error: 7: no such node; the cluster has 0\n"


@pytest.mark.e2e
def test_without_restarts_a_node_that_has_ended_stays_down(tmp_path: Path, odradek: Run) -> None:
    port = one_node(tmp_path)
    with running(tmp_path, "--no-restart") as (_, ready):
        os.kill(ready.pid(0), signal.SIGKILL)
        wait_until(lambda: not is_listening(port))
        where = ("--data", str(tmp_path))
        assert odradek("cluster", "stop-node", "0", *where).stdout.startswith("Node 0 is down")
        assert odradek("cluster", "start-node", "0", *where).exit_code == 0
        assert is_listening(port)


class RaisesInDestructor:
    """Where it is lost, an exception of a signal handler is only printed."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_ends_a_wait() -> None:
    with interruptions() as interrupted:
        assert not is_readable(interrupted)
        RaisesInDestructor()
        assert is_readable(interrupted)
    with pytest.raises(KeyboardInterrupt), interruptions():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.e2e
def test_a_second_cluster_in_the_folder_is_refused_and_leaves_its_files_alone(
    tmp_path: Path, odradek: Run
) -> None:
    one_node(tmp_path)

    def files() -> dict[str, int]:
        found = tmp_path.rglob("*.log"), tmp_path.glob("*")
        return {str(path): path.stat().st_mtime_ns for each in found for path in each}

    with running(tmp_path) as (process, ready):
        before = files()
        second = odradek("cluster", "up", "--data", str(tmp_path), "--nodes", "2")
        assert second.exit_code == 1
        assert f"a cluster is running in this folder (process {process.pid})" in second.stderr
        assert files() == before
        # Nor is anything started where a port is in use.
        other = tmp_path / "other"
        port = ready.bootstrap.rpartition(":")[2]
        taken = odradek("cluster", "up", "--data", str(other), "--port", port, "--nodes", "1")
        assert taken.exit_code == 1
        assert taken.stderr.startswith(f"Error: ports in use on 127.0.0.1: {port}. ")
        assert not list(other.glob("node-*"))
    with running(tmp_path):
        pass  # the folder is free again


def test_where_no_cluster_runs_there_is_no_node_to_stop(tmp_path: Path, odradek: Run) -> None:
    for command in ("stop-node", "start-node"):
        ran = odradek("cluster", command, "0", "--data", str(tmp_path))
        assert ran.exit_code == 1
        assert f"no cluster runs in {tmp_path}: start one with" in ran.stderr
    missing = odradek("cluster", "stop-node", "0", "--data", str(tmp_path / "missing"))
    assert "no cluster runs in" in missing.stderr


@pytest.mark.e2e
def test_a_cluster_of_one_node_grows_with_nodes(tmp_path: Path) -> None:
    port = free_range(NODES)
    write_layout(tmp_path, new_layout(1, port))
    settings = ("arena.bytes=32MiB", "socket.request.max.bytes=8388608", "workers=1")
    given = [part for setting in settings for part in ("--set", setting)]
    with running(tmp_path, "--nodes", str(NODES), *given) as (_, ready):
        assert [int(node["node"]) for node in ready.nodes] == [0, 1, 2]
        local = make_connection(f"127.0.0.1:{port}", 10.0, None, ())
        with ClusterClient(local) as client:
            quorum = quorum_state(client)
        assert quorum is not None
        assert sorted(voter.replica_id for voter in quorum.current_voters) == [0, 1, 2]


def free_range(count: int) -> int:
    """The first of so many ports for clients, with those of the peers a thousand above."""
    while True:
        port = free_port()
        layout = new_layout(count, port)
        if not any(is_listening(p) for n in layout.nodes for p in (n.port, n.peer_port)):
            return port


def test_fewer_nodes_and_other_ports_are_refused(odradek: Run, tmp_path: Path) -> None:
    write_layout(tmp_path, new_layout(3, 9092))
    for option, value in (("--nodes", "2"), ("--port", "9000")):
        ran = odradek("cluster", "up", option, value, "--data", str(tmp_path))
        assert ran.exit_code == 1
        assert "has 3 nodes from port 9092 on" in ran.stderr
    both = odradek("cluster", "up", "--temporary", "--data", str(tmp_path))
    assert both.exit_code == 2
