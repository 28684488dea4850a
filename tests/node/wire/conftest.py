"""A socket server with real sockets: a listener, an arena, and clients that send raw frames."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop

from odradek.node.bus.arena import UNIT_BYTES, Arena
from odradek.node.wire.acceptor import Acceptor
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.limits import WireSettings
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.socket_server import SocketServer

T = TypeVar("T")
PATIENCE_S = 10.0


class RawConnection:
    """A client that sends any bytes and reads whole frames."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.loop = loop
        self.sock = sock
        self._received = bytearray()

    async def send(self, *frames: bytes) -> None:
        """Send whole frames in one call."""
        await self.send_raw(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    async def send_raw(self, raw: bytes) -> None:
        await asyncio.wait_for(self.loop.sock_sendall(self.sock, raw), PATIENCE_S)

    async def receive(self) -> bytes:
        """The next frame; EOFError when the connection is closed instead."""
        (length,) = struct.unpack(">i", await self._receive_exactly(4))
        return await self._receive_exactly(length)

    async def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; False if there is something to read."""
        try:
            return not await self._receive_some()
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()

    async def _receive_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            more = await self._receive_some()
            if not more:
                raise EOFError
            self._received += more
        out = bytes(self._received[:count])
        del self._received[:count]
        return out

    async def _receive_some(self) -> bytes:
        return await asyncio.wait_for(self.loop.sock_recv(self.sock, 1 << 20), PATIENCE_S)


class WireWorld:
    """A socket server on a loop. `answer` completes requests; without it they are in `waiting`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.loop = loop
        self.folder = folder
        self.settings = WireSettings()
        self.answer: Callable[[Slot, bytes], None] | None = None
        self.waiting: list[tuple[Slot, bytes]] = []
        self.disconnected: list[Connection] = []
        self.frames_seen = 0
        self._clients: list[RawConnection] = []
        self.open_arena(64 * UNIT_BYTES)

    def open_arena(self, size: int) -> None:
        """Start over with an arena of this size. Only before the first connection."""
        self.arena = Arena.create(self.folder / "arena", size)
        self.wire = SocketServer(
            loop=self.loop,
            arena=self.arena,
            on_request=self._on_request,
            on_disconnected=self.disconnected.append,
            settings=self.settings,
        )
        self.listener = Acceptor(
            self.wire, ClientListener(name="PLAINTEXT"), host="127.0.0.1", port=0
        )

    async def connect(self, *, receive_buffer: int = 0) -> RawConnection:
        """A new client."""
        if self.listener.port == 0:
            await self.listener.start()
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, ("127.0.0.1", self.listener.port))
        client = RawConnection(self.loop, sock)
        self._clients.append(client)
        return client

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until the condition holds."""
        deadline = self.loop.time() + PATIENCE_S
        while not condition():
            assert self.loop.time() < deadline, "the condition never came to hold"
            await asyncio.sleep(0.001)

    def run(self, scenario: Awaitable[T]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(scenario, 6 * PATIENCE_S)

        return self.loop.run_until_complete(bounded())

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for connection in list(self.wire.connections.values()):
            connection.abort()
        self.listener.stop()
        self.run(self.until(lambda: not self.wire.connections))
        self.wire.close()
        self.arena.close()

    def _on_request(self, slot: Slot, frame: memoryview, arena_offset: int) -> None:
        self.frames_seen += 1
        assert self.arena.view[arena_offset : arena_offset + len(frame)] == frame
        if self.answer is not None:
            self.answer(slot, bytes(frame))
        else:
            self.waiting.append((slot, bytes(frame)))


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of the broker: uvloop, or the standard one where there is no uvloop."""
    loop = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def world(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[WireWorld]:
    world = WireWorld(loop, tmp_path)
    yield world
    world.close()
