"""A cluster of nodes on this machine, each in processes and a folder of its own.

For `odradek cluster up` and for tests of clients when a node fails. Ids, ports, cluster id and
secret are chosen once and stored in the folder, so that the same cluster starts again.
"""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from odradek.node.data_folder import new_cluster_id
from odradek.node.embedded import BrokerFailure, EmbeddedBroker

LAYOUT_NAME: Final = "cluster.json"
SECRET_NAME: Final = "cluster.secret"
NODES_MAX: Final = 9
_PEER_PORTS_ABOVE: Final = 1_000
_PORTS_OF_A_NODE: Final = 20
"""A node's workers listen at the ports after its peer port."""
REPLICAS_MAX: Final = 3


class LocalNode(msgspec.Struct, frozen=True):
    """A node's ports, for clients and for the other nodes."""

    node_id: int
    port: int
    peer_port: int


class ClusterLayout(msgspec.Struct, frozen=True):
    """What all nodes have to agree on."""

    cluster_id: str
    nodes: tuple[LocalNode, ...]
    bootstrap_count: int = msgspec.field(default=0, name="founder_count")
    """How many of the first nodes bootstrapped the cluster; the others joined. 0: all."""

    @property
    def bootstrap_nodes(self) -> tuple[LocalNode, ...]:
        """The bootstrap voters."""
        return self.nodes[: self.bootstrap_count or None]

    @property
    def joined(self) -> tuple[LocalNode, ...]:
        """The nodes that joined."""
        return self.nodes[len(self.bootstrap_nodes) :]


def new_layout(node_count: int, first_port: int) -> ClusterLayout:
    """A new cluster: clients' ports start at `first_port`, peer ports a thousand above."""
    if not 1 <= node_count <= NODES_MAX:
        raise ValueError(f"{node_count} nodes: the number must be 1 to {NODES_MAX}.")
    return ClusterLayout(
        new_cluster_id(),
        tuple(
            LocalNode(
                node_id,
                first_port + node_id,
                first_port + _PEER_PORTS_ABOVE + _PORTS_OF_A_NODE * node_id,
            )
            for node_id in range(node_count)
        ),
    )


def extended_layout(layout: ClusterLayout, node_count: int) -> ClusterLayout:
    """The same cluster with more nodes, at the next ports."""
    first = layout.nodes[0]
    more = new_layout(node_count, first.port).nodes[len(layout.nodes) :]
    return msgspec.structs.replace(
        layout, nodes=(*layout.nodes, *more), bootstrap_count=len(layout.bootstrap_nodes)
    )


def read_layout(folder: Path) -> ClusterLayout | None:
    """The layout stored in the folder; None if there is none. Raises ValueError."""
    try:
        return msgspec.json.decode((folder / LAYOUT_NAME).read_bytes(), type=ClusterLayout)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(f"{folder / LAYOUT_NAME} is damaged: {error}") from error


def write_layout(folder: Path, layout: ClusterLayout) -> None:
    """Store the layout and, for a new cluster, the secret, which only the owner can read."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / SECRET_NAME
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(32))
    (folder / LAYOUT_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(layout)))


class LocalCluster:
    """The nodes of a layout, each an EmbeddedBroker."""

    def __init__(
        self,
        folder: Path,
        layout: ClusterLayout,
        *,
        settings: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.layout = layout
        self.nodes: dict[int, EmbeddedBroker] = {}
        self._folder = folder
        self._settings = settings or {}
        self._timeout_s = timeout_s
        self._replicas = str(min(REPLICAS_MAX, len(layout.nodes)))
        for node in layout.nodes:
            self._add(node)

    def _add(self, node: LocalNode) -> None:
        voters = self.layout.bootstrap_nodes
        if node in voters:
            peers = ",".join(f"{n.node_id}@127.0.0.1:{n.peer_port}" for n in voters)
            settings = {"peers": peers}
        else:
            others = (n.peer_port for n in self.layout.nodes if n != node)
            settings = {
                "join": ",".join(f"127.0.0.1:{port}" for port in others),
                "peer.listen": f"127.0.0.1:{node.peer_port}",
            }
        self.nodes[node.node_id] = EmbeddedBroker(
            self._folder / f"node-{node.node_id}",
            settings={
                "node.id": str(node.node_id),
                "cluster.id": self.layout.cluster_id,
                # The file, not the secret: all users can read the arguments of a process.
                "cluster.secret.file": str(self._folder / SECRET_NAME),
                "default.replication.factor": self._replicas,
                **settings,
                **self._settings,
            },
            timeout_s=self._timeout_s,
            port=node.port,
        )

    def join(self, node: LocalNode) -> EmbeddedBroker:
        """Add a node that joins the others. It is not started yet."""
        self.layout = msgspec.structs.replace(
            self.layout,
            nodes=(*self.layout.nodes, node),
            bootstrap_count=len(self.layout.bootstrap_nodes),
        )
        self._add(node)
        return self.nodes[node.node_id]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes for Kafka clients."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.layout.nodes)

    def start(self) -> None:
        """Start all nodes at once: a majority has to be up. Raises BrokerFailure."""
        failures = self._run(EmbeddedBroker.start)
        if failures:
            self.kill()
            raise BrokerFailure("\n".join(failures))

    def stop(self) -> None:
        """Shut all nodes down."""
        failures = self._run(EmbeddedBroker.stop)
        if failures:
            raise BrokerFailure("\n".join(failures))

    def _run(self, action: Callable[[EmbeddedBroker], None]) -> list[str]:
        """Do this for all nodes at once; the errors."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            running = [pool.submit(action, node) for node in self.nodes.values()]
        return [str(error) for each in running if (error := each.exception()) is not None]

    def kill(self) -> None:
        """SIGKILL all nodes."""
        for node in self.nodes.values():
            node.kill()
