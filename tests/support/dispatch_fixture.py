"""A dispatcher over real sockets: a listener, an arena and a router harness behind it."""

import asyncio
import struct
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import uvloop

from odradek.node.bus.arena import UNIT_BYTES, Arena
from odradek.node.router.dispatch import HANDLERS, Dispatcher
from odradek.node.wire.acceptor import Acceptor
from odradek.node.wire.connection import ConnectionServer
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.socket_server import SocketServer
from odradek.protocol.apis import APIS
from odradek.protocol.codec import decode_response, decode_response_header
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.router_harness import RouterHarness
from tests.support.wire import frame_of

T = TypeVar("T")
R = TypeVar("R")
DEADLINE_S = 10.0


class DispatchClient:
    """A client that sends frames and reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    async def ask(self, message: object, version: int, response: type[R]) -> R:
        """The response, which must carry the request's correlation id."""
        correlation_id = self.post(message, version)
        return await self.receive(correlation_id, message, version, response)

    def post(self, message: object, version: int) -> int:
        self._correlation_id += 1
        self.writer.write(frame_of(message, version, self._correlation_id))
        return self._correlation_id

    def send(self, body: bytes) -> None:
        self.writer.write(struct.pack(">i", len(body)) + body)

    async def receive(
        self, correlation_id: int, message: object, version: int, response: type[R]
    ) -> R:
        (key,) = (api.key for api in APIS.values() if api.request is type(message))
        frame = await self.frame()
        answered, at = decode_response_header(key, version, frame)
        assert answered == correlation_id
        decoded = decode_response(key, version, frame, at)
        assert isinstance(decoded, response)
        return decoded

    async def frame(self) -> memoryview:
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return memoryview(await self.reader.readexactly(size))

    async def is_closed(self) -> bool:
        """Wait until the connection is closed; False if there is something to read instead."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


class DispatchFixture:
    """A router harness with a real listener, arena and dispatcher."""

    def __init__(
        self,
        folder: Path,
        loop: asyncio.AbstractEventLoop,
        harness_type: type[RouterHarness] = RouterHarness,
    ) -> None:
        self.loop = loop
        self.arena = Arena.create(folder / "arena", 64 * UNIT_BYTES)
        self.harness = harness_type(folder / "stores", loop=loop)
        self.harness.arena = self.arena.view
        self.harness.services.served_apis = tuple(HANDLERS)
        self.dispatcher = Dispatcher(self.harness.services, self.arena.view)
        self.wire: ConnectionServer = SocketServer(
            loop=loop, arena=self.arena, on_request=self.dispatcher.on_request
        )
        self.listener = Acceptor(
            self.wire, ClientListener(name="PLAINTEXT"), host="127.0.0.1", port=0
        )
        self._writers: list[asyncio.StreamWriter] = []
        self.harness.controller.has("t", 1, 2)
        self.harness.follow()

    async def connect(self) -> DispatchClient:
        if self.listener.port == 0:
            await self.listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        self._writers.append(writer)
        return DispatchClient(reader, writer)

    def run(self, scenario: Awaitable[T]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(scenario, 3 * DEADLINE_S)

        return self.loop.run_until_complete(bounded())

    def close(self) -> None:
        async def end() -> None:
            for writer in self._writers:
                writer.close()
            self.listener.stop()
            async with asyncio.timeout(DEADLINE_S):
                await self.wire.wait_until_empty()

        self.loop.run_until_complete(end())
        self.wire.close()
        self.harness.close()


@contextmanager
def dispatch_fixture(
    folder: Path, harness_type: type[RouterHarness] = RouterHarness
) -> Iterator[DispatchFixture]:
    """A topic `t` with two partitions is there."""
    loop = uvloop.new_event_loop()
    fixture = DispatchFixture(folder, loop, harness_type)
    yield fixture
    fixture.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def produce_request(*batches: bytes, acks: int = -1) -> ProduceRequest:
    partitions = [
        PartitionProduceData(index=index, records=memoryview(batch))
        for index, batch in enumerate(batches)
    ]
    topic = TopicProduceData(name="t", partition_data=partitions)
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic])
