"""Requests over TLS: order, congestion, certificates of clients, and bytes that are not TLS."""

import asyncio
import contextlib
import logging
import random
import ssl
import struct
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.bus.arena import UNIT_BYTES
from odradek.node.wire.acceptor import Acceptor
from odradek.node.wire.connection import ANONYMOUS, Connection, Slot
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.tls_context import TlsListener, make_tls_context
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_lines, log_text

World = Any  # tests/node/wire/conftest.py: WireWorld
PATIENCE_S = 20.0


class SecureWorld:
    """A listener with TLS in a world of sockets."""

    def __init__(self, world: World, folder: Path, **settings: Any) -> None:  # noqa: ANN401 - of TlsSettings
        self.world = world
        self.authority = TestAuthority(folder)
        self.settings = TlsSettings(
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(self.authority.issue("broker.pem")),
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(self.authority.certificate),
            **settings,
        )
        self.tls = TlsListener("SSL", make_tls_context(self.settings))
        world.listener = Acceptor(
            world.wire,
            ClientListener(name="SSL", security_protocol="SSL"),
            host="127.0.0.1",
            port=0,
            tls=self.tls,
        )
        self._writers: list[asyncio.StreamWriter] = []

    async def client(
        self, certificate: Path | None = None, *, authority: Path | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=authority or self.authority.certificate)
        if certificate is not None:
            context.load_cert_chain(certificate)
        reader, writer = await self.open(context)
        return reader, writer

    async def open(
        self, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.world.listener.port == 0:
            await self.world.listener.start()
        name = None if context is None else "localhost"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.world.listener.port, ssl=context, server_hostname=name
        )
        self._writers.append(writer)
        return reader, writer

    def run(self, scenario: Awaitable[None]) -> None:
        async def whole() -> None:
            try:
                await scenario
            finally:
                for writer in self._writers:
                    writer.transport.abort()

        self.world.run(whole())
        self.world.run(self.world.until(lambda: not self.world.wire.connections))
        assert self.world.arena.used_bytes == UNIT_BYTES


def echo(slot: Slot, frame: bytes) -> None:
    slot.complete([frame])


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


async def receive(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), PATIENCE_S))
    return await asyncio.wait_for(reader.readexactly(length), PATIENCE_S)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return not await asyncio.wait_for(reader.read(1), PATIENCE_S)
    except (ConnectionError, ssl.SSLError):
        return True


def the_connection(world: World) -> Connection:
    (connection,) = world.wire.connections.values()
    assert isinstance(connection, Connection)
    return connection


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("seed", range(2))
def test_pipelined_requests_of_any_size_are_answered_in_order(
    world: World, tmp_path: Path, version: str, seed: int
) -> None:
    secure = SecureWorld(world, tmp_path, ssl_enabled_protocols=(version,))
    rng = random.Random(seed)
    frames = [
        rng.randbytes(rng.choice((0, 1, 300, 16_384, 20_000, 400_000, 3_000_000)))
        for _ in range(40)
    ]

    def answer(slot: Slot, frame: bytes) -> None:
        cut = rng.randrange(len(frame) + 1)
        buffers = [frame[:cut], memoryview(frame)[cut:]]
        world.loop.call_later(rng.random() / 100, slot.complete, buffers)

    async def scenario() -> None:
        world.answer = answer
        reader, writer = await secure.client()
        stream = framed(*frames)

        async def send() -> None:
            at = 0
            while at < len(stream):
                take = rng.choice((3, 1_000, 100_000, 2_000_000))
                writer.write(stream[at : at + take])
                await writer.drain()
                at += take

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for frame in frames:
                assert await receive(reader) == frame
        assert world.wire.counters.tls_handshakes == 1

    secure.run(scenario())


def test_a_response_that_is_not_read_is_encrypted_no_further(world: World, tmp_path: Path) -> None:
    """32 MB of a map may not become 32 MB of memory for each client that does not read."""
    secure = SecureWorld(world, tmp_path)
    answer = random.Random(1).randbytes(32 << 20)

    async def scenario() -> None:
        reader, writer = await secure.client()
        writer.write(framed(b"one", b"two"))
        await world.until(lambda: len(world.waiting) == 2)
        connection = the_connection(world)
        hold = {"released": False}

        class Hold:
            def __del__(self) -> None:
                hold["released"] = True

        world.waiting[0][0].complete([memoryview(answer)], Hold())
        world.waiting[1][0].complete([b"done"])
        del world.waiting[:]
        await world.until(lambda: connection.overdue(connection.wire.now_ms + 10**9))
        assert connection.overdue(connection.wire.now_ms + 10**9) == "stalled"
        assert not hold["released"]
        assert await receive(reader) == answer
        assert await receive(reader) == b"done"
        await world.until(lambda: hold["released"])

    secure.run(scenario())


def test_a_connection_that_may_not_read_keeps_what_has_arrived(
    world: World, tmp_path: Path
) -> None:
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        world.settings.inflight_requests_max = 4
        reader, writer = await secure.client()
        frames = [b"%d" % index * 50 for index in range(400)]
        writer.write(framed(*frames))
        await world.until(lambda: len(world.waiting) == 4)
        for index, expected in enumerate(frames):
            await world.until(lambda: world.waiting)
            slot, frame = world.waiting.pop(0)
            assert frame == expected, index
            slot.complete([frame])
            assert await receive(reader) == expected

    secure.run(scenario())


def test_the_certificate_of_a_client_is_its_principal(world: World, tmp_path: Path) -> None:
    secure = SecureWorld(
        world,
        tmp_path,
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=([a-z]+),.*$/$1/U",
    )

    async def scenario() -> None:
        world.answer = echo
        principals = {}
        for name in ("alice", None, "no letters: 1"):
            certificate = (
                None if name is None else secure.authority.issue("client.pem", common_name=name)
            )
            reader, writer = await secure.client(certificate)
            writer.write(framed(b"hello"))
            if name == "no letters: 1":
                assert await is_closed(reader)
                continue
            assert await receive(reader) == b"hello"
            principals[name] = list(world.wire.connections.values())[-1].peer_principal
        assert principals == {"alice": "User:ALICE", None: ANONYMOUS}

    secure.run(scenario())


def test_clients_without_an_acceptable_certificate_are_refused(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secure = SecureWorld(world, tmp_path, ssl_client_auth="required")
    (tmp_path / "other").mkdir()
    stranger = TestAuthority(tmp_path / "other", "stranger").issue("client.pem")
    expired = secure.authority.issue("expired.pem", valid_s=-60.0)

    async def scenario() -> None:
        for certificate in (None, stranger, expired):
            for _ in range(3):
                try:
                    reader, writer = await secure.client(certificate)
                    writer.write(framed(b"hello"))
                    assert await is_closed(reader)
                except (ConnectionError, ssl.SSLError):
                    continue
        await world.until(lambda: not world.wire.connections)
        assert world.frames_seen == 0
        assert world.wire.counters.tls_handshakes_failed == 9

    with caplog.at_level(logging.WARNING):
        secure.run(scenario())
    lines = [text for text in log_lines(caplog) if "TLS handshake failed" in text]
    assert len(lines) == 1, "one line a minute for each address"
    assert "the client has no certificate (ssl.client.auth=required)" in lines[0]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP request"),
        (struct.pack(">ihhi", 10, 18, 3, 1), "security.protocol=SSL"),
        (bytes(2_000), "TLS handshake failed"),
    ],
)
def test_what_is_not_tls_is_refused_with_the_reason(
    world: World, tmp_path: Path, raw: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        reader, writer = await secure.open(None)
        writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        await world.until(lambda: not world.wire.connections)

    with caplog.at_level(logging.WARNING):
        secure.run(scenario())
    assert says in log_text(caplog)
    assert world.frames_seen == 0


def test_a_client_that_never_completes_its_handshake_is_closed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.node.wire.tls_transport.HANDSHAKE_S_MAX", 0.05)
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        world.settings.connections_max = 2
        silent, _ = await secure.open(None)
        slow, writer = await secure.open(None)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        await world.until(lambda: len(world.wire.connections) == 2)
        assert await is_closed(silent)
        assert await is_closed(slow)
        assert world.wire.counters.tls_handshakes_failed == 2

    secure.run(scenario())


def test_a_replaced_certificate_leaves_open_connections_alone(world: World, tmp_path: Path) -> None:
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        world.answer = echo
        before, writer = await secure.client()
        writer.write(framed(b"before"))
        assert await receive(before) == b"before"
        (tmp_path / "next").mkdir()
        following = TestAuthority(tmp_path / "next", "next")
        settings = replace(
            secure.settings, ssl_keystore_location=str(following.issue("broker.pem"))
        )
        secure.tls.follow(settings)
        assert secure.tls.problem == ""
        with pytest.raises(ssl.SSLCertVerificationError):
            await secure.client()
        after, other = await secure.client(authority=following.certificate)
        for reader, sender in ((before, writer), (after, other)):
            sender.write(framed(b"after"))
            assert await receive(reader) == b"after"

    secure.run(scenario())


def test_requests_before_the_end_of_a_client_are_handled(world: World, tmp_path: Path) -> None:
    """A client that says that it sends no more may not wait for a response, as with PLAINTEXT."""
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        _, writer = await secure.client()
        writer.write(framed(b"last"))
        writer.close()
        await world.until(lambda: len(world.disconnected) == 1)
        assert world.frames_seen == 1
        for slot, _ in world.waiting:
            slot.complete([b"nobody hears this"])

    secure.run(scenario())


def test_close_sends_what_is_ready_and_says_that_no_more_comes(
    world: World, tmp_path: Path
) -> None:
    secure = SecureWorld(world, tmp_path)

    async def scenario() -> None:
        reader, writer = await secure.client()
        writer.write(framed(b"slow"))
        await world.until(lambda: world.waiting)
        the_connection(world).close()
        world.waiting[0][0].complete([b"done"])
        assert await receive(reader) == b"done"
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""

    secure.run(scenario())


FUZZED = 150


def damage(rng: random.Random, data: bytes) -> bytes:
    """One of the ways in which bytes go wrong."""
    changed = bytearray(data)
    match rng.randrange(5):
        case 0 if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case 1:
            del changed[rng.randrange(len(changed) + 1) :]
        case 2:
            at = rng.randrange(len(changed) + 1)
            changed[at:at] = rng.randbytes(rng.randrange(1, 600))
        case 3:
            changed[:0] = bytes((rng.choice((20, 21, 22, 23, 24)), 3, rng.randrange(5))) + (
                rng.randbytes(2)
            )
        case _:
            changed = bytearray(rng.randbytes(rng.randrange(1, 3_000)))
    return bytes(changed)


async def damaged_exchange(
    rng: random.Random,
    context: ssl.SSLContext,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """A client one of whose flights is damaged: of the handshake, or of the requests after it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    damaged = rng.randrange(4)
    with contextlib.suppress(ssl.SSLError, ConnectionError, TimeoutError):
        for flight in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                client.write(framed(rng.randbytes(rng.randrange(2_000))))
            data = outgoing.read()
            writer.write(damage(rng, data) if flight == damaged else data)
            async with asyncio.timeout(0.02):
                incoming.write(await reader.read(1 << 16))


def test_damaged_records_close_their_connection_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    secure = SecureWorld(world, tmp_path)
    rng = random.Random(7)
    context = ssl.create_default_context(cafile=secure.authority.certificate)

    async def scenario() -> None:
        world.answer = echo
        bystander, writer = await secure.client()
        for index in range(FUZZED):
            reader, fuzzing = await secure.open(None)
            await damaged_exchange(rng, context, reader, fuzzing)
            fuzzing.transport.abort()
            if index % 50 == 0:
                writer.write(framed(b"still here"))
                assert await receive(bystander) == b"still here"
        await world.until(lambda: len(world.wire.connections) == 1)

    secure.run(scenario())
