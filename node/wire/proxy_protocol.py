"""The PROXY protocol, version 2: who the client behind a load balancer is.

`ProxyHeaderReader` is the protocol of a connection until it has read the header and not one byte
more; then the connection's own protocol takes over. Version 1, which is text without a length, is
not read. One invariant: nothing is believed of an address that is not trusted, and no header has
more than `HEADER_BYTES_MAX` bytes. Called by acceptor.py and the event loop.
"""

import asyncio
import ipaddress
import struct
from functools import lru_cache
from typing import Final, NamedTuple, cast

from odradek.cluster.metadata.connection_settings import ConnectionSettings
from odradek.node.wire.connection import Connection
from odradek.protocol.errors import ProtocolError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
HEADER_BYTES_MAX: Final = 2_048
"""Addresses take 36 bytes at most. Load balancers add names and checksums."""
HEADER_S_MAX: Final = 10.0
_FIXED: Final = struct.Struct("!12sBBH")
_VERSION_2: Final = 0x20
_LOCAL, _PROXY = 0, 1
_TCP_IPV4: Final = 0x11
_TCP_IPV6: Final = 0x21

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxiedAddresses(NamedTuple):
    """Where the client came from, and which address it connected to."""

    client_host: str
    client_port: int
    local_host: str
    local_port: int


def header_rest_bytes(fixed: bytes) -> int:
    """How many bytes follow the first 16. Raises ProtocolError if they begin no header."""
    signature, version_and_command, _, length = _FIXED.unpack(fixed)
    if signature != SIGNATURE:
        raise ProtocolError(
            "the connection does not begin with a header of the PROXY protocol, version 2"
            " (proxy.protocol.enable=true)"
        )
    if version_and_command & 0xF0 != _VERSION_2:
        raise ProtocolError("the header of the PROXY protocol is not of version 2")
    if _FIXED.size + length > HEADER_BYTES_MAX:
        raise ProtocolError(f"a header of the PROXY protocol has {length} bytes")
    return int(length)


def proxied_addresses(header: bytes) -> ProxiedAddresses | None:
    """The addresses of a whole header; None if the proxy speaks for itself (health checks), or does
    not know them. Raises ProtocolError."""
    _, version_and_command, family, _ = _FIXED.unpack_from(header)
    command = version_and_command & 0x0F
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise ProtocolError(f"unknown command {command} of the PROXY protocol")
    size = {_TCP_IPV4: 4, _TCP_IPV6: 16}.get(family)
    if size is None:
        return None
    at = _FIXED.size
    if len(header) < at + 2 * size + 4:
        raise ProtocolError("the addresses of the PROXY protocol are cut short")
    source, target = (
        str(ipaddress.ip_address(header[start : start + size])) for start in (at, at + size)
    )
    source_port, target_port = struct.unpack_from("!HH", header, at + 2 * size)
    return ProxiedAddresses(source, source_port, target, target_port)


@lru_cache(maxsize=64)
def trusted_proxies(settings: ConnectionSettings) -> tuple[Network, ...] | None:
    """The networks of the proxies whose connections begin with a header; None if none does."""
    if not settings.proxy_protocol_enable:
        return None
    addresses = settings.proxy_protocol_trusted_addresses
    return tuple(ipaddress.ip_network(text, strict=False) for text in addresses)


def is_trusted(host: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address is in one of the networks."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return any(address in network for network in networks)


class ProxyHeaderReader(asyncio.BufferedProtocol):
    """See the module's docstring. `following` is the protocol that takes over."""

    __slots__ = ("_app", "_buffer", "_end", "_following", "_have", "_timer", "_transport")

    _transport: asyncio.Transport

    def __init__(self, app: Connection, following: asyncio.BufferedProtocol) -> None:
        self._app = app
        self._following = following
        self._buffer = memoryview(bytearray(HEADER_BYTES_MAX))
        self._have, self._end = 0, _FIXED.size
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = self._app.wire.loop
        self._timer = loop.call_later(
            HEADER_S_MAX, self._refuse, f"no header of the PROXY protocol in {HEADER_S_MAX:.0f} s"
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        # Not one byte more: what follows belongs to the next protocol.
        return self._buffer[self._have : self._end]

    def buffer_updated(self, nbytes: int) -> None:
        self._have += nbytes
        if self._have < self._end:
            return
        try:
            if self._end == _FIXED.size:
                self._end += header_rest_bytes(bytes(self._buffer[: self._end]))
            if self._have == self._end:
                self._hand_over(proxied_addresses(bytes(self._buffer[: self._end])))
        except ProtocolError as error:
            self._refuse(str(error))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._app.connection_lost(exc)

    def _hand_over(self, addresses: ProxiedAddresses | None) -> None:
        self._cancel_timer()
        app = self._app
        if addresses is not None:
            app.client_host, app.client_port, app.local_host, app.local_port = addresses
        self._transport.set_protocol(self._following)
        self._following.connection_made(self._transport)

    def _refuse(self, reason: str) -> None:
        self._cancel_timer()
        self._app.wire.counters.protocol_errors += 1
        self._app.is_closed = True
        self._app.log_refusal(reason)
        self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
