"""The worker's side of the bus to the routers: requests in, replies out, and when to sleep.

Each router has a ring per direction in its arena (node/bus/ring.py), a wakeup pipe on each side,
and a ZeroMQ link, over which the two exchange greetings after each start. After a turn with a
single request the worker spins for a moment before it sleeps, if that has paid off lately
(node/bus/adaptive_spin.py)."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from odradek.node.bus.adaptive_spin import SPIN_S, AdaptiveSpin
from odradek.node.bus.arena import Arena
from odradek.node.bus.endpoint import DealerLink, drain, encode, ipc_address
from odradek.node.bus.messages import (
    RelayRequest,
    RelayResponse,
    RouterGreeting,
    ToRouter,
    ToWorker,
    TraceRequest,
    WorkerGreeting,
)
from odradek.node.bus.ring import RingReader, RingWriter
from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter
from odradek.node.structured_log import get_logger
from odradek.node.worker.request_traces import WorkerTraces
from odradek.node.worker.turn_requests import Request, RouterState

log = get_logger(__name__)

_MESSAGES_PER_TURN = 64
_NO_REQUESTS = frozenset({RelayResponse, TraceRequest})
"""The other messages in the rings."""


@dataclass(slots=True, eq=False)
class _RouterLink:
    """The link to one router. It has no rings until the router has answered the greeting."""

    link: DealerLink
    incarnation: int | None = None
    """Of the router that has answered."""
    state: RouterState = field(default_factory=RouterState)
    arena: Arena | None = None
    requests: RingReader | None = None
    replies: RingWriter | None = None
    wakeup_writer: WakeupWriter | None = None


class RouterLinks:
    """All routers of the node, seen from one worker."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        run_folder: Path,
        *,
        router_count: int,
        worker: int,
        incarnation: int,
        worker_count: int = 0,
        processors: int = 1,
    ) -> None:
        identity = f"worker-{worker}".encode()
        wakeup_path = run_folder / f"worker-{worker}.wakeup"
        self.wakeup_pipe = WakeupPipe(wakeup_path)
        """Written by routers while the worker sleeps. To be polled like the sockets."""
        self._greeting = encode(
            [WorkerGreeting(worker, incarnation, str(wakeup_path), worker_count=worker_count)]
        )
        self._routers = [
            _RouterLink(DealerLink(context, ipc_address(run_folder, f"router-{router}"), identity))
            for router in range(router_count)
        ]
        self._decode = msgspec.msgpack.Decoder(list[ToWorker]).decode
        self._spin = AdaptiveSpin(processors)
        self.traces = WorkerTraces()
        """Of the requests that a router wants traced; replaced by those of the turns."""
        self.on_relayed: Callable[[bytes, bytes], None] = lambda _identity, _payload: None
        """Called with (identity, payload) of this node's router's response to another node's."""

    @property
    def sockets(self) -> "Iterator[zmq.Socket[bytes]]":
        """The sockets to poll while asleep."""
        for router in self._routers:
            yield router.link.socket
            yield router.link.monitor

    @property
    def are_open(self) -> bool:
        """Whether all routers have answered the greeting, so that none uses an old ring."""
        return all(router.requests is not None for router in self._routers)

    def read(self) -> list[tuple[RouterState, Request]]:
        """The requests in the rings, up to a bounded number of messages."""
        requests: list[tuple[RouterState, Request]] = []
        for router in self._routers:
            ring = router.requests
            if ring is None:
                continue
            state = router.state
            for _ in range(_MESSAGES_PER_TURN):
                payload = ring.read()
                if payload is None:
                    break
                for message in self._decode(payload):
                    if type(message) in _NO_REQUESTS:
                        self._on_other(state, message)
                    else:
                        requests.append((state, message))  # type: ignore[arg-type]  # else requests
        return requests

    def has_requests(self) -> bool:
        """Whether there is something in the rings."""
        for router in self._routers:
            ring = router.requests
            if ring is not None and ring.has_message:
                return True
        return False

    def _on_other(self, state: RouterState, message: ToWorker) -> None:
        if type(message) is RelayResponse:
            self.on_relayed(message.identity, message.payload)
        elif type(message) is TraceRequest:
            self.traces.begin(state, message)

    def read_or_spin(self, last_count: int) -> list[tuple[RouterState, Request]]:
        """The requests in the rings. After a turn with a single request, spins for the next one, if
        that pays off. Empty when it is time to sleep."""
        requests = self.read()
        if requests or last_count != 1 or not self._spin.should_spin():
            return requests
        clock = time.perf_counter
        until = clock() + SPIN_S
        while not requests and clock() < until:
            requests = self.read()
        self._spin.spin_ended(has_message=bool(requests))
        return requests

    def fall_asleep(self) -> bool:
        """Have every router wake this worker. False if a request has come in the meantime."""
        for router in self._routers:
            if router.requests is not None and not router.requests.fall_asleep():
                return False
        return True

    def wake_up(self) -> None:
        """Withdraw the request to be woken."""
        for router in self._routers:
            if router.requests is not None:
                router.requests.wake_up()

    def receive(self) -> None:
        """Receive greetings."""
        for router in self._routers:
            if router.link.take_connected():
                self._greet(router)
            for payload in drain(router.link.socket):
                for message in self._decode(payload):
                    if type(message) is RouterGreeting:
                        self._open(router, message)

    def send_replies(self) -> None:
        """Send the replies, and wake the routers that sleep."""
        for router in self._routers:
            replies = router.state.replies
            if not replies:
                continue
            ring = router.replies
            if ring is not None:
                if self.traces.open:
                    replies[:] = self.traces.with_spans(router.state, replies)
                self._write(router, ring, replies)
            # A router without a ring has restarted, and does not expect these replies.
            replies.clear()

    def relay(self, identity: bytes, payload: bytes) -> None:
        """Pass a request of another node's router to the first router, with the next replies."""
        self._routers[0].state.replies.append(RelayRequest(identity, payload))

    def broadcast(self, message: ToRouter) -> None:
        """Send a message to all routers, with the next replies."""
        for router in self._routers:
            router.state.replies.append(message)

    def close(self) -> None:
        """Close the sockets."""
        for router in self._routers:
            router.link.close()

    def _write(self, router: _RouterLink, ring: RingWriter, replies: list[ToRouter]) -> None:
        payload = encode(replies)
        if len(payload) > ring.message_bytes_max:
            middle = len(replies) // 2
            self._write(router, ring, replies[:middle])
            self._write(router, ring, replies[middle:])
            return
        while not ring.write(payload):
            # The router is slow or gone. The number of outstanding answers is bounded.
            if router.wakeup_writer is None or not router.wakeup_writer.wake():
                return
            time.sleep(0.0001)
        if ring.must_wake() and router.wakeup_writer is not None:
            router.wakeup_writer.wake()

    def _greet(self, router: _RouterLink) -> None:
        try:
            router.link.socket.send(self._greeting, zmq.NOBLOCK)
        except zmq.Again:
            log.info("a router disconnected before the greeting was sent")

    def _open(self, router: _RouterLink, greeting: RouterGreeting) -> None:
        if router.arena is not None:
            self._close_arena(router)
        if router.incarnation not in (None, greeting.incarnation):
            # Requests of the router before this one may still wait in the worker. Their offsets are
            # of its arena, and their ids have other meanings here: what comes of them goes nowhere.
            router.state = RouterState()
        router.incarnation = greeting.incarnation
        arena = Arena.open(Path(greeting.arena_path))
        view = arena.view
        router.arena = arena
        router.state.arena = view
        size = greeting.ring_bytes
        first, second = greeting.requests_ring_offset, greeting.replies_ring_offset
        router.requests = RingReader(view[first : first + size])
        router.replies = RingWriter(view[second : second + size])
        if router.wakeup_writer is not None:
            router.wakeup_writer.close()
        router.wakeup_writer = WakeupWriter.open(Path(greeting.wakeup_path))

    def _close_arena(self, router: _RouterLink) -> None:
        """Release the memory of a router that is gone. Nothing refers to it between turns."""
        arena, router.arena = router.arena, None
        router.requests = router.replies = router.state.arena = None
        if arena is not None:
            with suppress(BufferError):
                arena.close()
