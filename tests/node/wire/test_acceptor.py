"""Listeners: limits of connections, closing of overdue ones, draining."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from odradek.node.bus.arena import UNIT_BYTES
from odradek.node.wire.acceptor import Acceptor, ConnectionReaper, drain
from odradek.node.wire.connection import Slot
from odradek.node.wire.limits import ListenerLimits
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.tls_context import TlsListener
from tests.support.log_lines import log_text

World = Any  # tests/node/wire/conftest.py: WireWorld


def echo(slot: Slot, frame: bytes) -> None:
    slot.complete([frame])


def test_the_error_for_a_port_in_use_names_the_listener(world: World) -> None:
    async def scenario() -> None:
        await world.connect()
        second = Acceptor(
            world.wire, ClientListener(name="EXTERNAL"), host="127.0.0.1", port=world.listener.port
        )
        with pytest.raises(OSError, match=r"EXTERNAL cannot bind 127\.0\.0\.1:\d+.*another port"):
            await second.start()

    world.run(scenario())


def test_several_routers_may_share_a_port(world: World) -> None:
    async def scenario() -> None:
        first = Acceptor(world.wire, ClientListener(name="P"), host="127.0.0.1", port=0)
        await first.start(reuse_port=True)
        second = Acceptor(world.wire, ClientListener(name="P"), host="127.0.0.1", port=first.port)
        await second.start(reuse_port=True)
        first.stop()
        second.stop()

    world.run(scenario())


def test_an_empty_host_means_every_address_of_this_machine(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        world.listener = Acceptor(world.wire, ClientListener(name="P"), host="", port=0)
        client = await world.connect()
        await client.send(b"hello")
        assert await client.receive() == b"hello"

    world.run(scenario())


def test_a_listener_with_tls_and_no_usable_store_accepts_nobody(world: World) -> None:
    async def scenario() -> None:
        world.listener = Acceptor(
            world.wire,
            ClientListener(name="SSL", security_protocol="SSL"),
            host="127.0.0.1",
            port=0,
            tls=TlsListener("SSL"),
        )
        client = await world.connect()
        assert await client.is_closed_by_peer()
        assert world.wire.counters.connections_refused == 1
        assert not world.wire.connections

    world.run(scenario())


def test_a_client_above_the_limit_waits_until_another_leaves(world: World) -> None:
    """As in Kafka, which accepts it and lets it wait."""

    async def scenario() -> None:
        world.answer = echo
        world.settings.connections_max = 2
        first = await world.connect()
        second = await world.connect()
        await world.until(lambda: len(world.wire.connections) == 2)
        third = await world.connect()
        fourth = await world.connect()
        await third.send(b"third")
        await fourth.send(b"fourth")
        await world.until(lambda: world.wire.counters.connections_delayed)
        await second.send(b"in")
        assert await second.receive() == b"in"
        assert len(world.wire.connections) == 2
        first.close()
        assert await third.receive() == b"third"
        assert len(world.wire.connections) == 2
        world.settings.connections_max = 3
        world.wire.connection_quotas.wake()
        assert await fourth.receive() == b"fourth"

    world.run(scenario())


def test_a_listener_has_a_limit_of_its_own(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        world.settings.listeners["OTHER"] = ListenerLimits(connections_max=1)
        other = Acceptor(world.wire, ClientListener(name="OTHER"), host="127.0.0.1", port=0)
        first = await world.connect()
        await other.start()
        world.listener, plaintext = other, world.listener
        second, third = await world.connect(), await world.connect()
        await second.send(b"second")
        assert await second.receive() == b"second"
        await third.send(b"third")
        await world.until(lambda: world.wire.counters.connections_delayed)
        world.listener = plaintext
        fourth = await world.connect()
        for client in (first, fourth):
            await client.send(b"unlimited")
            assert await client.receive() == b"unlimited"
        second.close()
        assert await third.receive() == b"third"
        other.stop()

    world.run(scenario())


def test_connections_above_the_rate_are_delayed_and_served(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        world.settings.quota_sample_count, world.settings.quota_sample_ms = 2, 20
        world.settings.creation_rate_max = 100
        began = world.loop.time()
        for index in range(12):
            client = await world.connect()
            await client.send(b"%d" % index)
            assert await client.receive() == b"%d" % index
        assert world.wire.counters.connections_delayed >= 5
        assert world.loop.time() - began >= 0.05

    world.run(scenario())


def test_a_listener_that_stops_drops_what_waits(world: World) -> None:
    async def scenario() -> None:
        world.settings.connections_max = 0
        client = await world.connect()
        await world.until(lambda: world.wire.counters.connections_delayed)
        world.listener.stop()
        assert await client.is_closed_by_peer()
        world.settings.connections_max = 1
        world.wire.connection_quotas.wake()
        assert not world.wire.connections

    world.run(scenario())


def test_the_connections_idle_longest_go_when_the_limit_is_lowered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world.answer = echo
        clients = [await world.connect() for _ in range(3)]
        await world.until(lambda: len(world.wire.connections) == 3)
        reaper = ConnectionReaper(world.wire, period_s=0.02)
        before = world.wire.now_ms
        await world.until(lambda: world.wire.now_ms > before + 10)
        await clients[0].send(b"active")
        assert await clients[0].receive() == b"active"
        world.settings.connections_max = 1
        for client in clients[1:]:
            assert await client.is_closed_by_peer()
        await clients[0].send(b"still here")
        assert await clients[0].receive() == b"still here"
        reaper.stop()

    with caplog.at_level(logging.WARNING):
        world.run(scenario())
    assert "max.connections is 1" in log_text(caplog)


def test_connections_are_counted_by_address_with_exceptions(world: World) -> None:
    async def scenario() -> None:
        world.settings.connections_per_ip_max = 1
        await world.connect()
        await world.until(lambda: world.wire.connections)
        assert await (await world.connect()).is_closed_by_peer()
        world.settings.connections_per_ip_max_overrides["127.0.0.1"] = 3
        await world.connect()
        await world.connect()
        await world.until(lambda: len(world.wire.connections) == 3)
        assert await (await world.connect()).is_closed_by_peer()
        assert world.wire.counters.connections_refused == 2

    world.run(scenario())


def test_an_idle_connection_is_closed_but_not_one_that_waits_for_a_response(world: World) -> None:
    async def scenario() -> None:
        world.settings.connections_idle_ms_max = 30
        idle = await world.connect()
        await idle.send(b"hello")
        await world.until(lambda: world.waiting)
        world.waiting.pop()[0].complete([b"hello"])
        assert await idle.receive() == b"hello"
        polling = await world.connect()
        await polling.send(b"long poll")
        await world.until(lambda: world.waiting)
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        assert await idle.is_closed_by_peer()
        sweeper.stop()
        assert len(world.wire.connections) == 1
        world.waiting[0][0].complete([b"at last"])
        assert await polling.receive() == b"at last"
        assert world.wire.counters.connections_idle_closed == 1

    world.run(scenario())


def test_a_connection_that_was_active_between_two_checks_is_not_idle(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        world.settings.connections_idle_ms_max = 5
        busy = await world.connect()
        sweeper = ConnectionReaper(world.wire, period_s=0.05)
        before = world.wire.now_ms
        while world.wire.now_ms < before + 200:
            await busy.send(b"hello")
            assert await busy.receive() == b"hello"
        assert await busy.is_closed_by_peer()
        sweeper.stop()

    world.run(scenario())


@pytest.mark.parametrize("raw", [b"", b"\0\0", struct.pack(">i", 50_000) + b"half"])
def test_a_half_open_connection_is_closed(
    world: World, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world.settings.half_open_ms_max = 30
        client = await world.connect()
        await client.send_raw(raw)
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        assert await client.is_closed_by_peer()
        sweeper.stop()
        assert world.wire.counters.connections_half_open_closed == 1

    with caplog.at_level(logging.WARNING):
        world.run(scenario())
    assert "half-open" in log_text(caplog)


def test_a_connection_that_sends_single_bytes_is_closed(world: World) -> None:
    async def scenario() -> None:
        world.settings.half_open_ms_max = 50
        client = await world.connect()
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        raw = struct.pack(">i", 10_000) + bytes(10_000)

        async def drip() -> None:
            for at in range(len(raw)):
                await client.send_raw(raw[at : at + 1])
                await asyncio.sleep(0.002)

        with pytest.raises(ConnectionError):
            await drip()
        sweeper.stop()

    world.run(scenario())


def test_a_large_request_may_take_longer(world: World) -> None:
    async def scenario() -> None:
        world.answer = echo
        world.settings.half_open_ms_max = 20
        world.settings.transfer_bytes_per_s_min = 1_000_000
        client = await world.connect()
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        raw = struct.pack(">i", 2_000_000) + bytes(2_000_000)
        for at in range(0, len(raw), 100_000):
            await client.send_raw(raw[at : at + 100_000])
            await asyncio.sleep(0.01)
        assert len(await client.receive()) == 2_000_000
        sweeper.stop()

    world.run(scenario())


def test_a_connection_that_does_not_read_its_responses_is_closed(world: World) -> None:
    async def scenario() -> None:
        world.settings.write_stall_ms_max = 30
        world.settings.transfer_bytes_per_s_min = 1 << 30
        world.answer = lambda slot, _: slot.complete([b"r" * (16 << 20)])
        client = await world.connect(receive_buffer=16_384)
        await client.send(b"fetch")
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        await world.until(lambda: world.disconnected)
        sweeper.stop()
        assert world.wire.counters.connections_stalled_closed == 1

    world.run(scenario())


def test_unneeded_arena_memory_is_returned_regularly(world: World) -> None:
    async def scenario() -> None:
        for block in [world.arena.allocate() for _ in range(10)]:
            world.arena.release(block)
        sweeper = ConnectionReaper(world.wire, period_s=0.01)
        await world.until(lambda: world.arena.resident_bytes == UNIT_BYTES)
        sweeper.stop()

    world.run(scenario())


def test_draining_completes_requests_in_flight_and_closes_all_connections(world: World) -> None:
    async def scenario() -> None:
        busy = await world.connect()
        quiet = await world.connect()
        await busy.send(b"slow")
        await world.until(lambda: world.waiting and len(world.wire.connections) == 2)
        world.listener.stop()
        world.loop.call_later(0.05, world.waiting[0][0].complete, [b"done"])
        assert await drain(world.wire, timeout_s=5) == 0
        assert await busy.receive() == b"done"
        assert await quiet.is_closed_by_peer()
        assert not world.wire.connections

    world.run(scenario())


def test_draining_aborts_connections_after_its_timeout(world: World) -> None:
    async def scenario() -> None:
        client = await world.connect()
        await client.send(b"never answered")
        await world.until(lambda: world.waiting)
        assert await drain(world.wire, timeout_s=0.05) == 1
        assert await client.is_closed_by_peer()

    world.run(scenario())
