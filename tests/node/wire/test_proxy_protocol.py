"""Headers of the PROXY protocol: who is believed, what is read, and what is refused."""

import asyncio
import ipaddress
import logging
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.metadata.connection_settings import ConnectionSettings
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.wire.acceptor import Acceptor
from odradek.node.wire.connection import Slot
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.proxy_protocol import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    ProxiedAddresses,
    header_rest_bytes,
    is_trusted,
    proxied_addresses,
    trusted_proxies,
)
from odradek.node.wire.tls_context import TlsListener, make_tls_context
from odradek.protocol.errors import ProtocolError
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_text

World = Any  # tests/node/wire/conftest.py: WireWorld
LOOPBACK = trusted_proxies(
    ConnectionSettings(
        proxy_protocol_enable=True, proxy_protocol_trusted_addresses=("127.0.0.0/8", "::1")
    )
)


def header(
    source: str = "203.0.113.7", port: int = 5_000, *, command: int = 1, extra: bytes = b""
) -> bytes:
    address = ipaddress.ip_address(source)
    target = ipaddress.ip_address("192.0.2.1" if address.version == 4 else "2001:db8::1")
    family = 0x11 if address.version == 4 else 0x21
    body = address.packed + target.packed + struct.pack("!HH", port, 9_092) + extra
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, family, len(body)) + body


def echo(slot: Slot, frame: bytes) -> None:
    slot.complete([frame])


def test_addresses_of_both_families_are_read() -> None:
    assert proxied_addresses(header(extra=b"\x03\0\x04abcd")) == ProxiedAddresses(
        "203.0.113.7", 5_000, "192.0.2.1", 9_092
    )
    found = proxied_addresses(header("2001:db8::7"))
    assert found == ProxiedAddresses("2001:db8::7", 5_000, "2001:db8::1", 9_092)
    assert proxied_addresses(header(command=0)) is None, "a health check of the proxy"
    unknown = SIGNATURE + struct.pack("!BBH", 0x21, 0x00, 0)
    assert proxied_addresses(unknown) is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"PROXY TCP4 192.0", "does not begin with a header"),
        (SIGNATURE + struct.pack("!BBH", 0x11, 0x11, 12), "not of version 2"),
        (SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 65_535), "has 65535 bytes"),
    ],
)
def test_other_headers_are_refused(raw: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        header_rest_bytes(raw[:16])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_an_error(rest: bytes) -> None:
    fixed = SIGNATURE + rest[:4].ljust(4, b"\0")
    try:
        size = header_rest_bytes(fixed)
        assert 0 <= size <= HEADER_BYTES_MAX
        proxied_addresses(fixed + rest[4 : 4 + size])
    except ProtocolError:
        return


def test_only_named_networks_are_trusted() -> None:
    assert trusted_proxies(ConnectionSettings()) is None
    assert LOOPBACK is not None
    assert is_trusted("127.1.2.3", LOOPBACK)
    assert is_trusted("::1", LOOPBACK)
    assert not is_trusted("10.0.0.1", LOOPBACK)
    assert not is_trusted("", LOOPBACK)
    assert trusted_proxies(ConnectionSettings(proxy_protocol_enable=True)) == ()


def listen(world: World, *, trusted: bool = True, tls: TlsListener | None = None) -> None:
    world.answer = echo
    name = "PLAINTEXT" if tls is None else "SSL"
    world.listener = Acceptor(
        world.wire,
        ClientListener(name=name, security_protocol=name),
        host="127.0.0.1",
        port=0,
        tls=tls,
        proxies=lambda: LOOPBACK if trusted else (),
    )


@pytest.mark.parametrize("size_of_write", [1, 7, 1_000])
def test_a_connection_is_that_of_the_client_behind_the_proxy(
    world: World, size_of_write: int
) -> None:
    async def scenario() -> None:
        listen(world)
        world.settings.connections_per_ip_max_overrides["203.0.113.7"] = 1
        client = await world.connect()
        stream = header(extra=bytes(300)) + struct.pack(">i", 5) + b"hello"
        for at in range(0, len(stream), size_of_write):
            await client.send_raw(stream[at : at + size_of_write])
        assert await client.receive() == b"hello"
        (connection,) = world.wire.connections.values()
        assert (connection.client_host, connection.client_port) == ("203.0.113.7", 5_000)
        assert (connection.local_host, connection.local_port) == ("192.0.2.1", 9_092)
        another = await world.connect()
        await another.send_raw(header())
        assert await another.is_closed_by_peer()
        check = await world.connect()
        await check.send_raw(header(command=0) + struct.pack(">i", 5) + b"check")
        assert await check.receive() == b"check"

    world.run(scenario())


def test_a_client_without_a_header_or_from_elsewhere_is_refused(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.node.wire.proxy_protocol.HEADER_S_MAX", 0.05)

    async def scenario() -> None:
        listen(world)
        direct = await world.connect()
        await direct.send(b"a request without a header")
        assert await direct.is_closed_by_peer()
        silent = await world.connect()
        assert await silent.is_closed_by_peer()
        world.listener.stop()
        listen(world, trusted=False)
        stranger = await world.connect()
        await stranger.send_raw(header())
        assert await stranger.is_closed_by_peer()
        await world.until(lambda: not world.wire.connection_quotas.count)
        assert world.frames_seen == 0

    with caplog.at_level(logging.WARNING):
        world.run(scenario())
    assert "does not begin with a header of the PROXY protocol" in log_text(caplog)
    assert "no header of the PROXY protocol in" in log_text(caplog)
    assert "not in proxy.protocol.trusted.addresses" in log_text(caplog)


def test_tls_begins_behind_the_header(world: World, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    settings = TlsSettings(
        ssl_keystore_type="PEM", ssl_keystore_location=str(authority.issue("broker.pem"))
    )
    context = ssl.create_default_context(cafile=authority.certificate)

    async def scenario() -> None:
        listen(world, tls=TlsListener("SSL", make_tls_context(settings)))
        client = await world.connect()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            secure.do_handshake()
        await client.send_raw(header() + outgoing.read())
        while True:
            incoming.write(await world.loop.sock_recv(client.sock, 1 << 16))
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.send_raw(outgoing.read())
        secure.write(struct.pack(">i", 5) + b"hello")
        await client.send_raw(outgoing.read())
        answer = b""
        while len(answer) < 9:
            incoming.write(await asyncio.wait_for(world.loop.sock_recv(client.sock, 1 << 16), 10.0))
            try:
                answer += secure.read(100)
            except ssl.SSLWantReadError:
                continue
        assert answer == b"\0\0\0\x05hello"
        (connection,) = world.wire.connections.values()
        assert connection.client_host == "203.0.113.7"

    world.run(scenario())
