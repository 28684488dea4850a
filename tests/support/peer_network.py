"""Nodes that exchange messages over real TCP, each with its peer directory only."""

from odradek.cluster.raft.messages import FollowRequest
from odradek.node.bus.endpoint import Socket
from odradek.node.bus.peer_messages import (
    ForwardRequest,
    PeerDirectoryUpdate,
    PeerMessage,
    PeerRejected,
)
from odradek.node.bus.peers import PeerAddress
from odradek.node.config import NodeConfig, load
from odradek.node.controller.peer_directory import PeerDirectory
from tests.support.ports import free_port
from tests.support.waiting import wait_until

HELLO = ForwardRequest(1, b"", 1)
SECRET = "the secret of this very test"


class PeerNode:
    """A node, and the messages that it received."""

    def __init__(self, config: NodeConfig, own_id: int) -> None:
        self.config = config
        self.own_id = own_id
        self.watched: set[Socket] = set()
        self.heard: list[tuple[int, PeerMessage]] = []
        self.now_ms = 0
        self.directory = PeerDirectory(
            config, own_id, refuses=lambda _header: self.refusal, watch=self._watch
        )
        self.refusal: PeerRejected | None = None
        """The refusal that every peer of this node gets."""

    def _watch(self, socket: Socket, is_new: bool) -> None:
        if is_new:
            self.watched.add(socket)
        else:
            self.watched.remove(socket)

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.config.peer_host, self.config.peer_port)

    @property
    def known(self) -> dict[int, PeerAddress]:
        bus = self.directory.bus
        assert bus is not None
        return dict(bus.others)

    def listen(self) -> None:
        bus = self.directory.bus
        assert bus is not None
        for member in bus.poll_events():
            self.directory.announce(member)
        for header, messages in bus.receive():
            self.directory.record_header(header, self.now_ms)
            for message in messages:
                self.heard.append((header.member, message))
                if isinstance(message, FollowRequest):
                    self.directory.send_directory(header.member)
                if isinstance(message, PeerDirectoryUpdate):
                    self.directory.add_reported(message, self.now_ms)
        bus.flush()

    def close(self) -> None:
        if self.directory.bus is not None:
            self.directory.bus.close()


class PeerNetwork:
    """The running nodes."""

    def __init__(self) -> None:
        self.nodes: list[PeerNode] = []

    def come(self, node_id: int, own_id: int | None = None, **options: str) -> PeerNode:
        keys = {key.replace("_", "."): text for key, text in options.items()}
        defaults = {
            "node.id": str(node_id),
            "peer.listen": f"127.0.0.1:{free_port()}",
            "cluster.secret": SECRET,
            "cluster.id": "c",
            "stores": "8",
        }
        config = load(environment={}, options={**defaults, **keys})
        peer_node = PeerNode(config, node_id if own_id is None else own_id)
        self.nodes.append(peer_node)
        return peer_node

    def talk(self) -> None:
        for peer_node in self.nodes:
            peer_node.listen()


def wait_until_received(network: PeerNetwork, speaker: PeerNode, to: int, hearer: PeerNode) -> None:
    def is_heard() -> bool:
        speaker.directory.send(to, HELLO)
        network.talk()
        return (speaker.own_id, HELLO) in hearer.heard

    wait_until(is_heard, what="it is heard")
