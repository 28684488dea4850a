"""What all client connections of one router share: memory, limits, counters, and who is connected.

It knows of a connection only what it counts it by. One invariant: what `admit` counts is given back
by `forget`, once. Called by connections, acceptors and the router's process.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from odradek.node.bus.arena import Arena
from odradek.node.wire.connection_rates import ConnectionRates
from odradek.node.wire.flush_queue import FlushQueue
from odradek.node.wire.limits import ConnectionQuotas, WireCounters, WireSettings
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.receive_buffer import ReceiveBuffer
from odradek.node.wire.request_times import RequestTimes


class ServedConnection(Protocol):
    """What is read of a connection here, and done to it."""

    id: int
    client_host: str
    listener: ClientListener

    def resume_starved(self) -> None: ...


C = TypeVar("C", bound=ServedConnection)
S = TypeVar("S")
"""The place of a request in its connection."""


class SocketServer(Generic[C, S]):
    """What all client connections of one router share.

    `on_request(slot, frame, arena_offset)` is called for every frame, in the order of the
    connection. The slot must be completed once, in the call or later. ProtocolError closes the
    connection. `frame` is a view of the arena at `arena_offset`. It is valid until the call
    returns or, after `slot.retain()`, until the slot is completed. `on_connected(connection)` is
    called before its first frame. `on_disconnected(connection)` is called once when a connection is
    gone. Completing its slots later has no effect.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        arena: Arena,
        on_request: Callable[[S, memoryview, int], None],
        on_connected: Callable[[C], None] = lambda _connection: None,
        on_disconnected: Callable[[C], None] = lambda _connection: None,
        settings: WireSettings | None = None,
    ) -> None:
        self.loop = loop
        self.arena = arena
        self.receive_buffer = ReceiveBuffer(arena)
        self.on_request = on_request
        self.on_connected = on_connected
        self.on_disconnected = on_disconnected
        self.settings = settings or WireSettings()
        self.counters = WireCounters()
        self.request_times = RequestTimes()
        self.flush_queue = FlushQueue(loop)
        self.connections: dict[int, C] = {}
        self.connection_quotas = ConnectionQuotas(self.settings)
        self.connection_rates = ConnectionRates()
        self.next_connection_id = 1
        self.now_ms = int(loop.time() * 1000)
        """The loop's time at the last check of the reaper. For timeouts of minutes."""
        self.starved: list[C] = []
        self._empty: asyncio.Event | None = None
        arena.on_freed = self._on_freed

    def close(self) -> None:
        """Release the receive block. There must be no connections."""
        self.arena.on_freed = None
        self.receive_buffer.close()

    def admit(self, connection: C) -> str | None:
        """Count a new connection, or return why it is refused."""
        refusal = self.connection_quotas.admit(connection.client_host)
        if refusal is not None:
            self.counters.connections_refused += 1
            return refusal
        self.counters.connections_accepted += 1
        self.connections[connection.id] = connection
        self.on_connected(connection)
        return None

    def forget(self, connection: C) -> None:
        """Remove a closed connection, if it was counted."""
        self.connection_quotas.release(connection.listener.name)
        if self.connections.pop(connection.id, None) is None:
            return
        self.connection_quotas.leave(connection.client_host)
        if not self.connections and self._empty is not None:
            self._empty.set()
        self.on_disconnected(connection)

    async def wait_until_empty(self) -> None:
        self._empty = asyncio.Event()
        if self.connections:
            await self._empty.wait()

    def _on_freed(self) -> None:
        if self.starved:
            self.loop.call_soon(self._resume_starved)

    def _resume_starved(self) -> None:
        starved, self.starved = self.starved, []
        for connection in starved:
            connection.resume_starved()
