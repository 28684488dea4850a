"""A router as its workers see it, which the test plays: a socket, an arena with two rings, a
wakeup pipe."""

from pathlib import Path
from typing import TypeAlias

import msgspec
import zmq

from odradek.node.bus.arena import Arena
from odradek.node.bus.endpoint import bind_endpoint, drain_with_identity, encode, ipc_address
from odradek.node.bus.messages import RouterGreeting, ToRouter, WorkerGreeting
from odradek.node.bus.ring import HEADER_BYTES, RingReader, RingWriter
from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter
from odradek.node.router.worker_client import WorkerClient
from odradek.node.worker.turn_requests import Request
from tests.support.waiting import is_readable, wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
RING_BYTES = 64 << 10


class ManualRouter:
    """One router: its socket, its arena with two rings, and its wakeup pipe."""

    def __init__(self, context: Context, folder: Path, index: int = 0) -> None:
        self._folder, self._index = folder, index
        self._socket = bind_endpoint(context, ipc_address(folder, f"router-{index}"))
        self._decode = msgspec.msgpack.Decoder(list[ToRouter]).decode
        self.wakeup_pipe = WakeupPipe(folder / f"router-{index}.bell")
        self.arena = Arena.create(folder / f"router-{index}.arena", 4 << 20)
        self.requests = RingWriter(self._ring(0))
        self.replies = RingReader(self._ring(1))
        self.wakeup_writer: WakeupWriter | None = None
        self._worker = b""

    def _ring(self, number: int) -> memoryview:
        memory = self.arena.view[number * RING_BYTES : (number + 1) * RING_BYTES]
        memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
        return memory

    def receive_greeting(self) -> WorkerGreeting | None:
        """A greeting that has come over the socket, which carries nothing else."""
        for identity, payload in drain_with_identity(self._socket):
            self._worker = identity
            (greeting,) = self._decode(payload)
            assert isinstance(greeting, WorkerGreeting)
            return greeting
        return None

    def answer_greeting(self, greeting: WorkerGreeting, incarnation: int = 1) -> None:
        self.wakeup_writer = WakeupWriter.open(Path(greeting.wakeup_path))
        answer = RouterGreeting(
            str(self._folder / f"router-{self._index}.bell"),
            str(self._folder / f"router-{self._index}.arena"),
            0,
            RING_BYTES,
            RING_BYTES,
            incarnation,
        )
        self._socket.send_multipart((self._worker, encode([answer])))

    def ask(self, *requests: Request) -> None:
        """Put requests into the ring as one message."""
        assert self.requests.write(encode(list(requests)))

    def hear(self) -> list[ToRouter]:
        """The next message in the ring of replies."""
        payload = wait_until(self.replies.read, what="a reply is in the ring")
        assert payload is not None
        return self._decode(payload)

    def is_rung(self) -> bool:
        return is_readable(self.wakeup_pipe)

    def close(self) -> None:
        self._socket.close(0)
        self.wakeup_pipe.close()


def reachable_count(client: WorkerClient) -> int:
    """How many workers are reachable."""
    return sum(worker.is_reachable for worker in client._workers)
