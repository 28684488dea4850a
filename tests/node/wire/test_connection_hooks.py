"""What a connection calls when it is handed over, and what it does when it is taken back."""

import asyncio
from typing import Any

import pytest

from odradek.node.wire.connection import Connection, Slot

World = Any  # tests/node/wire/conftest.py: WireWorld


class Steps:
    """A handover that keeps what was called."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self.called: list[str] = []

    def begin(self) -> None:
        self.called.append("begin")

    def recall(self) -> None:
        self.called.append("recall")
        assert self.connection is not None
        self.connection.take_back()

    def lost(self) -> None:
        self.called.append("lost")


class Scene:
    """A connection that is handed over with its `count`th request."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.count = count
        self.slots: list[tuple[Slot, bytes]] = []
        self.steps = Steps(None)
        self.answers = False
        """Answer at once."""
        world.answer = self._on_request

    def _on_request(self, slot: Slot, frame: bytes) -> None:
        self.slots.append((slot, frame))
        if len(self.slots) == self.count:
            self.steps.connection = slot.connection
            slot.connection.hand_over(self.steps)
        elif self.answers:
            slot.complete([frame])

    def answer(self, *indexes: int) -> None:
        for index in indexes:
            slot, frame = self.slots[index]
            slot.complete([frame])

    @property
    def connection(self) -> Connection:
        (connection,) = self.world.wire.connections.values()
        assert isinstance(connection, Connection)
        return connection


async def turns(count: int = 5) -> None:
    """Let the loop run."""
    for _ in range(count):
        await asyncio.sleep(0.001)


def test_it_begins_when_all_responses_are_written(world: World) -> None:
    async def scenario() -> None:
        scene = Scene(world, 2)
        client = await world.connect()
        await client.send(b"1", b"2", b"3")
        await world.until(lambda: len(scene.slots) == 2)
        await turns()
        assert len(scene.slots) == 2, "the third is not read"
        scene.answer(1)
        await turns()
        assert scene.steps.called == []
        scene.answer(0)
        assert [await client.receive() for _ in range(2)] == [b"1", b"2"]
        await world.until(lambda: scene.steps.called)
        assert set(scene.steps.called) == {"begin"}

    world.run(scenario())


@pytest.mark.parametrize(
    ("received", "then", "frames"),
    [
        (b"", b"\0\0\0\4last", [b"last"]),
        (b"\0\0\0\5first\0\0\0\6sec", b"ond", [b"first", b"second"]),
        (b"\0\0\0\1x" * 900, b"\0\0\0\4last", [b"x"] * 900 + [b"last"]),
    ],
    ids=["nothing", "a part", "many"],
)
def test_what_was_received_meanwhile_comes_first(
    world: World, received: bytes, then: bytes, frames: list[bytes]
) -> None:
    async def scenario() -> None:
        scene = Scene(world, 1)
        client = await world.connect()
        await client.send(b"1")
        await world.until(lambda: scene.slots)
        scene.answer(0)
        await world.until(lambda: scene.steps.called)
        scene.answers = True
        scene.connection.take_back(received, b"\0\0\0\6unsent")
        await client.send_raw(then)
        await world.until(lambda: len(scene.slots) == 1 + len(frames))
        assert [frame for _, frame in scene.slots[1:]] == frames
        for frame in (b"1", b"unsent", *frames):
            assert await client.receive() == frame

    world.run(scenario())


def test_what_the_router_has_read_is_taken_away_once(world: World) -> None:
    async def scenario() -> None:
        scene = Scene(world, 1)
        client = await world.connect()
        await client.send(b"1", b"2", b"3")
        await world.until(lambda: scene.slots)
        scene.answer(0)
        await world.until(lambda: scene.steps.called)
        receiver = scene.connection.input
        assert receiver.take_away(9) is None
        received = receiver.take_away(10)
        assert received == b"\0\0\0\0012\0\0\0\0013"
        assert receiver.take_away(10) == b""
        scene.connection.take_back(received)
        await world.until(lambda: len(scene.slots) == 3)

    world.run(scenario())


def test_a_connection_that_is_closed_is_recalled_first(world: World) -> None:
    async def scenario() -> None:
        scene = Scene(world, 1)
        client = await world.connect()
        await client.send(b"1")
        await world.until(lambda: scene.slots)
        scene.connection.close()
        scene.answer(0)
        assert await client.receive() == b"1"
        assert await client.is_closed_by_peer()
        assert scene.steps.called == ["recall"]

    world.run(scenario())


def test_a_lost_connection_is_told(world: World) -> None:
    async def scenario() -> None:
        scene = Scene(world, 1)
        client = await world.connect()
        await client.send(b"1")
        await world.until(lambda: scene.slots)
        scene.connection.abort()
        await world.until(lambda: not world.wire.connections)
        assert scene.steps.called == ["lost"]
        connection = scene.steps.connection
        assert connection is not None
        connection.take_back(b"late")

    world.run(scenario())
