"""`odradek cluster up`, `stop-node` and `start-node`: several nodes on this machine.

`up` starts the nodes, restarts those that end, and carries out the requests of the other two
commands (node/cluster_control.py). A lock keeps a second `up` out of the folder.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.node_membership import promote_to_voters
from odradek.node.cli.output import Output, Row, with_output
from odradek.node.cli.serve import chosen_folder, with_settings

if TYPE_CHECKING:
    # The node's own modules are imported when nodes are started.
    from odradek.node.cluster_control import ControlRequest, ControlServer
    from odradek.node.embedded import EmbeddedBroker
    from odradek.node.local_cluster import ClusterLayout, LocalCluster

data_option: Final = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of all nodes' data.  [default: odradek-cluster beside that of serve]",
)


@click.command(short_help="Run several nodes on this machine, until Ctrl-C.")
@click.option(
    "--nodes",
    "node_count",
    type=click.IntRange(1, 9),
    help="Number of nodes. [default: as before, or 3]",
)
@data_option
@click.option("--temporary", is_flag=True, help="New data in a folder that is deleted at the end.")
@click.option(
    "--port",
    type=click.IntRange(1, 60_000),
    help="Client port of the first node; the others get the next ports.  [default: 9092]",
)
@click.option("--no-restart", is_flag=True, help="A node that ends stays down until start-node.")
@with_settings
@with_output
def up(
    node_count: int | None,
    data: Path | None,
    temporary: bool,
    port: int | None,
    no_restart: bool,
    settings: tuple[tuple[str, str], ...],
    output: Output,
) -> None:
    """Run several nodes of one cluster on this machine, until Ctrl-C.

    Topics get up to three replicas. A node that is killed is restarted, unless `odradek cluster
    stop-node` holds it down or with --no-restart. The next run starts the same nodes with their
    data and ports. With a larger --nodes new nodes join, and some of them become voters: the number
    of voters is odd, up to five.

    Nodes talk to each other on ports a thousand above those of clients, 20 for each node.
    """
    from odradek.node.cluster_control import ControlServer
    from odradek.node.embedded import BrokerFailure
    from odradek.node.local_cluster import LocalCluster

    with (
        chosen_folder(data, is_temporary=temporary) as chosen,
        _locked(_folder(chosen)) as folder,
        interruptions() as interrupted,
    ):
        layout = _layout(folder, node_count, port)
        _check_ports(layout)
        nodes = LocalCluster(folder, layout, settings={"profile": "dev", **dict(settings)})
        output.hint(f"Starting {len(nodes.nodes)} nodes in {folder} ...")
        try:
            nodes.start()
            if nodes.layout.joined:
                local = ClusterConnection(bootstrap=nodes.bootstrap_servers, timeout_s=30.0)
                with ClusterClient(local) as client:
                    client.time_each_answer()
                    for node_id in promote_to_voters(sorted(nodes.nodes), client, output):
                        output.hint(f"Node {node_id} has joined as a voter.")
            with ControlServer(folder) as control:
                _print_addresses(nodes, folder, output, is_default=chosen is None)
                _NodeWatch(nodes, control, output, restarts=not no_restart).run(interrupted)
        except BrokerFailure as failure:
            raise click.ClickException(str(failure)) from failure
        except KeyboardInterrupt:
            output.hint("\nStopping.")
        finally:
            nodes.stop()


@click.command("stop-node", short_help="Stop a node of a local cluster, and hold it down.")
@click.argument("node_id", type=click.IntRange(min=0))
@click.option("--kill", "is_killed", is_flag=True, help="SIGKILL, as in a crash.")
@data_option
@with_output
def stop_node(node_id: int, is_killed: bool, data: Path | None, output: Output) -> None:
    """Stop a node of a cluster that `odradek cluster up` runs, and hold it down.

    It hands over its leadership first, unless it is killed.
    """
    _control("kill" if is_killed else "stop", node_id, data, output)


@click.command("start-node", short_help="Start a node that stop-node holds down.")
@click.argument("node_id", type=click.IntRange(min=0))
@data_option
@with_output
def start_node(node_id: int, data: Path | None, output: Output) -> None:
    """Start a node that `odradek cluster stop-node` holds down; wait until it serves clients."""
    _control("start", node_id, data, output)


def _control(action: str, node_id: int, data: Path | None, output: Output) -> None:
    from odradek.node.cluster_control import ControlError, ControlRequest, NoClusterError, ask

    folder = _folder(data)
    try:
        result = ask(folder, ControlRequest(action, node_id))
    except NoClusterError as error:
        raise click.ClickException(
            f"{error}: start one with `odradek cluster up`, or name its folder with --data"
        ) from error
    except ControlError as error:
        raise click.ClickException(str(error)) from error
    state = "runs" if result.pid else "is down"
    already = "" if result.is_changed else " already"
    process = f", process {result.pid}" if result.pid else ""
    output.done(
        f"Node {node_id} {state}{already}{process}.",
        {"node": node_id, "pid": result.pid or None, "is_changed": result.is_changed},
    )


def _folder(data: Path | None) -> Path:
    from odradek.node.default_folders import default_data_folder

    return data or default_data_folder().with_name("odradek-cluster")


@contextmanager
def interruptions() -> Iterator[int]:
    """Let SIGTERM raise KeyboardInterrupt like Ctrl-C. The descriptor becomes readable with either,
    for whoever waits: an exception is lost that is raised in a destructor, and comes too late a
    moment before a system call that blocks."""
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
        wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield reading.fileno()
        finally:
            signal.set_wakeup_fd(wakeup)
            signal.signal(signal.SIGTERM, terminate)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """The folder, while no other `up` runs in it; ClickException if one does."""
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.data_folder import FolderLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder, "cluster")
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be used: {error.strerror}") from error
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    try:
        yield folder
    finally:
        lock.release()


def _layout(folder: Path, node_count: int | None, port: int | None) -> ClusterLayout:
    """The existing layout, extended to `node_count` nodes, or a new one."""
    from odradek.node.local_cluster import extended_layout, new_layout, read_layout, write_layout

    try:
        layout = read_layout(folder)
        if layout is None:
            layout = new_layout(node_count or 3, port or 9092)
            write_layout(folder, layout)
        elif node_count is not None and node_count > len(layout.nodes):
            layout = extended_layout(layout, node_count)
            write_layout(folder, layout)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    first = layout.nodes[0]
    if node_count not in (None, len(layout.nodes)) or port not in (None, first.port):
        raise click.ClickException(
            f"the cluster in {folder} has {len(layout.nodes)} nodes from port {first.port} on: it"
            " can have more, not fewer, and keeps its ports; leave --nodes and --port out, or"
            " choose another folder with --data"
        )
    return layout


def _check_ports(layout: ClusterLayout) -> None:
    """ClickException if a port is in use."""
    taken = []
    for port in sorted(port for node in layout.nodes for port in (node.port, node.peer_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(str(port))
    if taken:
        raise click.ClickException(
            f"ports in use on 127.0.0.1: {', '.join(taken)}. Stop what listens there, or choose a"
            " new folder with --data and other ports with --port"
        )


def _print_addresses(
    nodes: LocalCluster, folder: Path, output: Output, *, is_default: bool
) -> None:
    rows: list[Row] = []
    for place in nodes.layout.nodes:
        node = nodes.nodes[place.node_id]
        worker_count = sum(name.startswith("worker") for name in node.processes)
        rows.append(
            {
                "node": place.node_id,
                "address": node.bootstrap_servers,
                "pid": node.pid,
                # The node's own, and one for each worker.
                "peer_ports": f"{place.peer_port}-{place.peer_port + worker_count}",
                "log": str(node.directory / "node.log"),
                "data": str(node.data),
            }
        )
    if output.is_json:
        output.json_line(
            {"bootstrap": nodes.bootstrap_servers, "folder": str(folder), "nodes": rows}
        )
        return
    output.rows(rows, ["node", "address", "pid", "peer_ports", "log"])
    if output.is_terminal:
        where = "" if is_default else f" --data {folder}"
        click.echo(
            f"\nTry, in another shell:\n  export ODRADEK_BOOTSTRAP={nodes.bootstrap_servers}"
        )
        click.echo("  odradek cluster status\n  odradek topic create orders -p 6")
        click.echo(f"  odradek cluster stop-node 1{where}    # and start-node")
        click.echo("\nCtrl-C stops all of them.")


class _NodeWatch:
    """Restarts nodes that have ended, and stops and starts them on request."""

    def __init__(
        self, nodes: LocalCluster, control: ControlServer, output: Output, *, restarts: bool
    ) -> None:
        self._nodes = nodes.nodes
        self._control = control
        self._output = output
        self._restarts = restarts
        self._down: set[int] = set()
        """The nodes that are held down."""

    def run(self, interrupted: int) -> None:
        """Until the descriptor is readable: then it raises KeyboardInterrupt."""
        while True:
            running = [n for node_id, n in self._nodes.items() if node_id not in self._down]
            descriptors = [os.pidfd_open(node.pid) for node in running]
            try:
                # One of a process is readable when it has ended.
                awaited = [*descriptors, self._control.fileno(), interrupted]
                ready, _, _ = select.select(awaited, [], [])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if interrupted in ready:
                raise KeyboardInterrupt
            for node_id, node in self._nodes.items():
                if node_id not in self._down and not node.is_running:
                    self._on_end(node_id, node)
            if self._control.fileno() in ready:
                self._serve()

    def _on_end(self, node_id: int, node: EmbeddedBroker) -> None:
        from odradek.node.embedded import BrokerFailure

        node.kill()
        if not self._restarts:
            self._hold_down(node_id, "has ended")
            return
        self._output.hint(f"Node {node_id} has ended; restarting it.")
        try:
            node.start()
        except BrokerFailure as failure:
            self._hold_down(node_id, f"cannot be restarted: {failure}")
        else:
            self._output.hint(f"Node {node_id} is back, process {node.pid}.")

    def _hold_down(self, node_id: int, why: str) -> None:
        self._down.add(node_id)
        hint = f"`odradek cluster start-node {node_id}` starts it"
        self._output.hint(f"Node {node_id} {why}. {hint}.")

    def _serve(self) -> None:
        from odradek.node.cluster_control import ControlAnswer, ControlError, answer
        from odradek.node.embedded import BrokerFailure

        # A client that has gone, or sends nothing, is its own problem.
        with suppress(OSError, ControlError), self._control.exchange() as (request, connection):
            try:
                is_changed = self._carry_out(request)
            except (BrokerFailure, ControlError) as error:
                answer(connection, ControlAnswer(error=str(error)))
                return
            node = self._nodes[request.node_id]
            pid = node.pid if node.is_running else 0
            answer(connection, ControlAnswer(is_changed=is_changed, pid=pid))

    def _carry_out(self, request: ControlRequest) -> bool:
        """Whether the node was in another state before. Raises BrokerFailure and ControlError."""
        from odradek.node.cluster_control import ControlError

        node_id = request.node_id
        node = self._nodes.get(node_id)
        if node is None:
            known = ", ".join(map(str, self._nodes))
            raise ControlError(f"{node_id}: no such node; the cluster has {known}")
        if request.action == "start":
            if node_id not in self._down:
                return False
            node.start()
            self._down.discard(node_id)
            self._output.hint(f"Node {node_id} is back, process {node.pid}.")
            return True
        if node_id in self._down:
            return False
        self._down.add(node_id)
        if request.action == "kill":
            node.kill()
        else:
            node.stop()
        self._output.hint(f"Node {node_id} was stopped.")
        return True
