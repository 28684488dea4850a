"""What connections share: what is counted of one is given back when it is gone."""

import asyncio
from typing import Any

from odradek.node.wire.connection import Slot

World = Any  # tests/node/wire/conftest.py: WireWorld


def echo(slot: Slot, frame: bytes) -> None:
    slot.complete([frame])


def test_a_connection_is_known_from_its_begin_to_its_end(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        first, second = await world.connect(), await world.connect()
        for client in (first, second):
            await client.send(b"hello")
            assert await client.receive() == b"hello"
        wire, quotas = world.wire, world.wire.connection_quotas
        assert len(wire.connections) == quotas.count == 2
        assert quotas.count_of_listener == {"PLAINTEXT": 2}
        empty = asyncio.get_running_loop().create_task(wire.wait_until_empty())
        first.close()
        await world.until(lambda: len(wire.connections) == 1)
        assert not empty.done()
        second.close()
        await asyncio.wait_for(empty, 5)
        assert quotas.count == 0
        assert len(world.disconnected) == 2
        assert wire.counters.connections_accepted == 2

    world.run(scenario())


def test_a_connection_above_a_limit_is_refused_and_forgotten(world: World) -> None:
    async def scenario() -> None:
        world.settings.connections_per_ip_max = 0
        client = await world.connect()
        assert await client.is_closed_by_peer()
        await world.until(lambda: world.wire.connection_quotas.count == 0)
        assert not world.wire.connections
        assert not world.disconnected, "it was never connected"
        assert world.wire.counters.connections_refused == 1

    world.run(scenario())
