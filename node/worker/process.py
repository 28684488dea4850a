"""A worker: the process that owns stores and writes them. The composition root of the write path.

One thread, one loop, no event loop library: wait for a message, drain what has arrived, carry it out in
one turn (turns.py), send the replies, and between turns do a slice of housekeeping. Order of duties in a
turn: write, commit, publish in the status table, reply. Started as `python -m node.worker.process CONFIG INDEX`.
"""

import logging
import os
import sys
import time
from pathlib import Path

import msgspec
import zmq

from cluster.metadata.image import MetadataImage
from node.bus.arena import Arena
from node.bus.endpoint import Link, drain, encode, ipc_address
from node.bus.messages import (
    Applied,
    Follow,
    FromController,
    MetadataRecords,
    MetadataSnapshot,
    RouterGreeting,
    ToRouter,
    ToWorker,
    WorkerGreeting,
)
from node.bus.metadata_feed import apply_metadata
from node.config import NodeConfig
from node.observability import ChildLink, configure_logging
from node.worker.housekeeping import Housekeeping
from node.worker.partitions import Partitions
from node.worker.turns import Request, RouterState, Turns
from storage.settings import StoreOptions

log = logging.getLogger(__name__)

_BIG_MESSAGE_BYTES = 65_536
_IDLE_POLL_MS = 1_000


class _RouterLink:
    """The worker's end of the bus to one router."""

    __slots__ = ("arena_path", "link", "state")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.state = RouterState()
        self.arena_path = ""


class WorkerProcess:
    """See the module's docstring."""

    def __init__(self, config: NodeConfig, index: int, supervisor: ChildLink) -> None:
        self._config = config
        self._index = index
        self._supervisor = supervisor
        self._incarnation = time.time_ns()
        self._name = f"worker-{index}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._decode_requests = msgspec.msgpack.Decoder(list[ToWorker]).decode
        self._decode_metadata = msgspec.msgpack.Decoder(list[FromController]).decode
        self._image = MetadataImage.empty()
        self._is_stopping = False
        self._partitions = Partitions(
            folder=config.stores_folder,
            worker=index,
            worker_count=config.worker_count,
            store_count=config.store_count,
            node_id=config.node_id,
            static_configs=config.static_configs,
            options=StoreOptions(durability=config.durability),
            now_ms=_now_ms(),
        )
        self._housekeeping = Housekeeping(self._partitions.stores, _now_ms())
        self._turns = Turns(self._partitions, self._broadcast)
        run = config.run_folder
        self._routers = [
            _RouterLink(Link(self._context, ipc_address(run, f"router-{r}"), self._name.encode()))
            for r in range(config.router_count)
        ]
        self._controller = Link(self._context, ipc_address(run, "controller"), self._name.encode())
        self._poller = zmq.Poller()
        for link in (*(router.link for router in self._routers), self._controller):
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
        for socket in supervisor.sockets:
            self._poller.register(socket, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the supervisor says stop; then sync and close the stores."""
        try:
            while not self._is_stopping:
                now_ms = _now_ms()
                self._housekeeping.run_slice(now_ms)
                wait_ms = min(self._housekeeping.next_ms(now_ms) - now_ms, _IDLE_POLL_MS)
                self._on_ready(dict(self._poller.poll(max(0, wait_ms))))
        finally:
            self._partitions.close()
            log.info("stores are closed")

    def _on_ready(self, ready: "dict[object, int]") -> None:
        requests: list[tuple[RouterState, Request]] = []
        for router in self._routers:
            if router.link.monitor in ready and router.link.take_connected():
                self._send(router, [WorkerGreeting(self._index, self._incarnation)])
            if router.link.socket in ready:
                self._receive(router, requests)
        if self._controller.monitor in ready and self._controller.take_connected():
            self._follow()
        if self._controller.socket in ready:
            self._receive_metadata()
        if requests:
            self._turns.run(requests, _now_ms())
            self._send_replies()
        if self._supervisor.poll():
            self._is_stopping = True

    def _receive(self, router: _RouterLink, requests: list[tuple[RouterState, Request]]) -> None:
        state = router.state
        for payload in drain(router.link.socket, at_most=256):
            for message in self._decode_requests(payload):
                if type(message) is RouterGreeting:
                    self._open_arena(router, message.arena_path)
                else:
                    requests.append((state, message))  # type: ignore[arg-type]  # all others are requests

    def _open_arena(self, router: _RouterLink, path: str) -> None:
        router.state.arena = Arena.open(Path(path)).view
        router.arena_path = path

    def _send_replies(self) -> None:
        for router in self._routers:
            if router.state.replies:
                self._send(router, router.state.replies)
                router.state.replies.clear()

    def _broadcast(self, message: ToRouter) -> None:
        for router in self._routers:
            router.state.replies.append(message)

    def _send(self, router: _RouterLink, messages: "list[ToRouter]") -> None:
        payload = encode(messages)
        try:
            router.link.socket.send(payload, zmq.NOBLOCK, copy=len(payload) <= _BIG_MESSAGE_BYTES)
        except zmq.Again:
            log.warning("a router is away; its replies are dropped with its connections")

    # -- metadata ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        self._tell_controller(
            Follow(self._name, self._incarnation, self._image.offset, self._config.cluster_id)
        )

    def _tell_controller(self, message: "Follow | Applied") -> None:
        try:
            self._controller.socket.send(encode([message]), zmq.NOBLOCK)
        except zmq.Again:
            log.info("the controller is away")

    def _receive_metadata(self) -> None:
        image = self._image
        for payload in drain(self._controller.socket):
            for message in self._decode_metadata(payload):
                if isinstance(message, MetadataRecords | MetadataSnapshot):
                    applied = apply_metadata(image, message)
                    if applied is None:
                        self._follow()
                    else:
                        image = applied
        if image is not self._image:
            is_first = self._image.offset == 0
            self._image = image
            vanished = self._partitions.follow(image)
            for store, number in vanished:
                self._turns.notify(store, (number,))
            self._send_replies()
            self._tell_controller(Applied(self._name, image.offset))
            if is_first:
                self._supervisor.ready()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    config = NodeConfig.load_json(Path(sys.argv[1]))
    index = int(sys.argv[2])
    configure_logging(config, f"worker-{index}")
    with ChildLink.connect(config, f"worker-{index}") as supervisor:
        WorkerProcess(config, index, supervisor).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
