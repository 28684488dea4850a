"""Connections of consumers that ask again and again while there is nothing to read.

A connection whose idle fetch (idle_fetches.py) was repeated REPEATS_MIN times is taken from the
event loop's transport. Here its requests are compared with that fetch as the bytes that they are,
wait in a list for their time, and the response is written to the socket: a third of the work. It
goes back with everything else that comes: another request, a part of one, the end of the
connection, a response that the client does not read, and as soon as a partition changes. Nothing is
lost on the way: a request that waits is read again by the connection, for the rest of its time.

Invariants: a connection is taken while none of its requests is under way, so requests and responses
keep their order. A fetch is answered here only if it could have waited in idle_fetches.py when it
came. A fetch of the purgatory stands for each connection, so that it is woken like any other.
Called by the event loop, by idle_fetches.py and by connections
(docs/adr/0026-repeated-requests.md).
"""

import asyncio
import os
import select
from collections import deque
from contextlib import suppress
from functools import partial
from struct import Struct
from time import perf_counter_ns
from typing import Final

from odradek.node.router.context import Services
from odradek.node.router.fetch_activity import ConnectionFetches
from odradek.node.router.fetch_purgatory import TICK_S
from odradek.node.router.idle_fetches import SAMPLE_MASK, IdleFetch, IdleFetches
from odradek.node.wire.connection import Connection, ConnectionServer
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import ApiKey

REPEATS_MIN: Final = 1
"""So often an idle fetch is repeated before its connection is taken."""
UNUSED_S: Final = 1.0
"""A connection without a request for so long goes back, up to twice that: the rules for idle
connections are the transport's."""
PER_TURN_MAX: Final = 256
"""Requests that are read, or responses that are written, before the loop does something else."""
LONG_WAIT_MS: Final = 500
"""A fetch that waits so long may be answered up to a tenth of its time earlier, with others: a
response that is one of two hundred takes half of the Python time of one of forty. MaxWaitMs of the
protocol guide is the most that a fetch wants to wait."""
_TICKS_OF_LONG_WAITS: Final = 5
_LATE_TICKS: Final = 0.2
"""They may be answered two milliseconds late, as by Kafka: a client that asks again at a tick, and
is read a moment before it by the clock of the loop, has to wait for the whole time."""
WOKEN_PER_TURN_MAX: Final = 32
"""Connections that go back because there is something to read, which they do at once."""
_LENGTH_BYTES: Final = 4
_CORRELATION_ID_AT: Final = 8
_BEHIND_AT: Final = 12
_pack_length = Struct(">i").pack
_pack_start = Struct(">ii").pack
_write_int32 = Struct(">i").pack_into


def tick_after(now_s: float, wait_ms: int) -> int:
    """The tick of TICK_S at which a fetch that waits from now on is answered: the first one after
    its time, or one of several before it if it waits LONG_WAIT_MS or more."""
    ticks = (now_s + wait_ms / 1000) / TICK_S
    if wait_ms < LONG_WAIT_MS:
        return int(ticks) + 1
    return int(ticks + _LATE_TICKS) // _TICKS_OF_LONG_WAITS * _TICKS_OF_LONG_WAITS


class _IdleConnection:
    """One connection that is taken, or about to be. A Handover of connection_hooks.py."""

    __slots__ = (
        "_owner",
        "activity",
        "connection",
        "correlation_id",
        "descriptor",
        "due_ms",
        "fetch",
        "is_away",
        "received_ns",
        "request_start",
        "response_start",
        "size",
        "tick",
        "used_s",
    )

    def __init__(self, owner: "IdleConnections", connection: Connection, fetch: IdleFetch) -> None:
        self._owner = owner
        self.connection = connection
        self.fetch = fetch
        self.size = _BEHIND_AT + len(fetch.behind)
        self.request_start = _pack_start(self.size - _LENGTH_BYTES, fetch.key_and_version)
        self.response_start = _pack_length(_LENGTH_BYTES + len(fetch.response))
        self.descriptor = -1
        self.is_away = False
        self.activity = ConnectionFetches()
        self.correlation_id: bytes | None = None
        """Of the request that waits."""
        self.tick = self.due_ms = self.received_ns = 0
        """When it is answered, in two clocks, and when it came."""
        self.used_s = 0.0

    def begin(self) -> None:
        if not self.is_away:
            self._owner.take(self)

    def recall(self) -> None:
        if self.is_away:
            self._owner.give_back(self)
        else:
            self.connection.take_back()

    def lost(self) -> None:
        self._owner.forget(self)


class IdleConnections:
    """See the module's docstring."""

    def __init__(self, services: Services, wire: ConnectionServer, fetches: IdleFetches) -> None:
        self._services = services
        self._wire = wire
        self._fetches = fetches
        self._tracer = services.tracer
        fetches.consider_taking = self.consider
        self._epoll = select.epoll()
        wire.loop.add_reader(self._epoll.fileno(), self._receive)
        self._by_descriptor: dict[int, _IdleConnection] = {}
        self._by_tick: dict[int, list[_IdleConnection]] = {}
        self._woken: deque[_IdleConnection] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._has_stopped = False

    @property
    def count(self) -> int:
        """Connections that are here."""
        return len(self._by_descriptor)

    def consider(self, connection: Connection, fetch: IdleFetch) -> None:
        """Take the connection when the fetch that waits now is answered, if that is possible. Only
        while this request of the connection is begun."""
        if (
            fetch.repeat_count >= REPEATS_MIN
            and not self._has_stopped
            and connection.gate is None
            and connection.handover is None
            and connection.descriptor() is not None
        ):
            connection.hand_over(_IdleConnection(self, connection, fetch))

    def take(self, idle: _IdleConnection) -> None:
        """All responses are written: take the connection, or let it be read again."""
        connection = idle.connection
        descriptor = connection.descriptor()
        activity = self._services.fetch_activity.of_connection(connection.id)
        if (
            self._has_stopped
            or descriptor is None
            or activity is None
            or connection.remembered is not idle.fetch
            or not self._fetches.is_valid(idle.fetch, connection)
            or connection.input.take_away(0) is None
        ):
            connection.take_back()
            return
        idle.is_away = True
        idle.descriptor = descriptor
        idle.activity = activity
        idle.used_s = self._wire.loop.time()
        self._by_descriptor[descriptor] = idle
        self._epoll.register(descriptor, select.EPOLLIN)
        if self._sweep is None:
            self._sweep = self._wire.loop.call_later(UNUSED_S, self._give_back_unused)
        standing = self._services.fetch_purgatory.park(
            idle.fetch.locations, None, idle.fetch.has_advanced, owner=connection.id
        )
        standing.on_done(partial(self._wake, idle))

    def give_back(self, idle: _IdleConnection, received: bytes = b"", unsent: bytes = b"") -> None:
        """Let the connection be read again, from a request that waits here on, then `received`.
        `unsent` is the rest of a response."""
        if not idle.is_away:
            return
        if idle.correlation_id is not None:
            received = self._waiting_request(idle, idle.correlation_id) + received
        self.forget(idle)
        idle.connection.take_back(received, unsent)

    def forget(self, idle: _IdleConnection) -> None:
        """The connection is closed, or goes back."""
        if idle.is_away:
            idle.is_away = False
            idle.correlation_id = None
            del self._by_descriptor[idle.descriptor]
            with suppress(OSError):
                self._epoll.unregister(idle.descriptor)
            self._services.fetch_purgatory.abandon(idle.connection.id)

    def stop(self) -> None:
        """Give all connections back, and take no more."""
        self._has_stopped = True
        for idle in list(self._by_descriptor.values()):
            self.give_back(idle)

    def close(self) -> None:
        """After `stop`."""
        self._wire.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        if self._sweep is not None:
            self._sweep.cancel()

    def _wake(self, idle: _IdleConnection) -> None:
        """There may be something to read. One record may wake thousands of connections."""
        if idle.is_away:
            if not self._woken:
                self._wire.loop.call_soon(self._give_back_woken)
            self._woken.append(idle)

    def _give_back_woken(self) -> None:
        for _ in range(min(len(self._woken), WOKEN_PER_TURN_MAX)):
            self.give_back(self._woken.popleft())
        if self._woken:
            self._wire.loop.call_soon(self._give_back_woken)

    # -- requests ----------------------------------------------------------------------------------

    def _receive(self) -> None:
        counters, loop = self._wire.counters, self._wire.loop
        now_s, now_ms, now_ns = loop.time(), self._services.now_ms(), perf_counter_ns()
        is_traced, is_same = self._tracer.is_active, self._fetches.has_same_response
        by_descriptor, read, byte_count = self._by_descriptor, os.read, 0
        due: list[_IdleConnection] = []
        tick, wait_ms = 0, -1
        for descriptor, _ in self._epoll.poll(0, PER_TURN_MAX):
            idle = by_descriptor.get(descriptor)
            if idle is None:
                continue  # it has just gone back
            try:
                received = read(descriptor, idle.size + 1)
            except BlockingIOError:
                continue
            except OSError:
                received = b""  # The transport meets the error, too.
            byte_count += len(received)
            fetch = idle.fetch
            if (
                len(received) != idle.size
                or idle.correlation_id is not None
                or not received.startswith(idle.request_start)
                or not received.endswith(fetch.behind)
                or is_traced
                or not is_same(fetch)
            ):
                self.give_back(idle, received)
                continue
            idle.correlation_id = received[_CORRELATION_ID_AT:_BEHIND_AT]
            idle.received_ns = now_ns
            idle.used_s = now_s
            idle.due_ms = now_ms + fetch.wait_ms
            idle.activity.last_ms = now_ms
            if fetch.wait_ms != wait_ms:
                wait_ms = fetch.wait_ms
                tick, due = self._due_after(now_s, wait_ms)
            idle.tick = tick
            due.append(idle)
        counters.received_bytes += byte_count

    def _due_after(self, now_s: float, wait_ms: int) -> tuple[int, list[_IdleConnection]]:
        """When a fetch that waits so long is answered, and those that are answered then."""
        tick = tick_after(now_s, wait_ms)
        due = self._by_tick.get(tick)
        if due is None:
            due = self._by_tick[tick] = []
            self._wire.loop.call_at(tick * TICK_S, self._expire, tick)
        return tick, due

    def _waiting_request(self, idle: _IdleConnection, correlation_id: bytes) -> bytes:
        """With its length, and the rest of its time."""
        request = bytearray(b"".join((idle.request_start, correlation_id, idle.fetch.behind)))
        left_ms = max(0, idle.due_ms - self._services.now_ms())
        _write_int32(request, _LENGTH_BYTES + idle.fetch.wait_at, left_ms)
        return bytes(request)

    # -- responses ---------------------------------------------------------------------------------

    def _expire(self, tick: int) -> None:
        """Answer the requests whose time is over."""
        due = self._by_tick.pop(tick)
        if len(due) > PER_TURN_MAX:
            self._by_tick[tick] = due[PER_TURN_MAX:]
            self._wire.loop.call_soon(self._expire, tick)
        write, answered = os.write, dict[tuple[int, int], int]()
        byte_count = 0
        for idle in due[:PER_TURN_MAX]:
            correlation_id = idle.correlation_id
            if idle.tick != tick or correlation_id is None:
                continue  # It has gone back meanwhile, and perhaps come again.
            fetch = idle.fetch
            response = b"".join((idle.response_start, correlation_id, fetch.response))
            idle.correlation_id = None
            try:
                sent = write(idle.descriptor, response)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.give_back(idle)  # Nobody waits for the response any more.
                continue
            byte_count += len(response)
            idle.connection.note_served(1)
            answered[fetch.count_key] = answered.get(fetch.count_key, 0) + 1
            if fetch.session is not None:
                self._fetches.advance_session(fetch)
            if not correlation_id[-1] & SAMPLE_MASK:
                timing = RequestTiming(ApiKey.FETCH, idle.received_ns, idle.received_ns)
                timing.done_ns = sent_ns = perf_counter_ns()
                self._wire.request_times.observe(timing, sent_ns)
            if sent < len(response):
                self.give_back(idle, unsent=response[sent:])
        counters = self._wire.counters
        counters.sent_bytes += byte_count
        for key_and_version, request_count in answered.items():
            counters.requests += request_count
            self._fetches.count_requests(key_and_version, request_count)

    def _give_back_unused(self) -> None:
        self._sweep = None
        since_s = self._wire.loop.time() - UNUSED_S
        for idle in list(self._by_descriptor.values()):
            if idle.correlation_id is None and idle.used_s < since_s:
                self.give_back(idle)
        if self._by_descriptor:
            self._sweep = self._wire.loop.call_later(UNUSED_S, self._give_back_unused)
