"""One client connection: requests are handled concurrently, responses leave in request order.

Every frame gets a `Slot` in the connection's queue before it is handed to the dispatcher. Slots are
completed in any order. The completed head of the queue is written at once. Large response buffers
are not copied: the transport refers to them until the kernel has taken them, and `hold` keeps their
memory as long.

Reading is paused while there is a reason: too many requests in flight or bytes of them, responses
that the client does not read, a throttle, no room in the arena, too many requests in one iteration
of the loop, a large request that is still being decoded, or a worker that reads instead. One
invariant: the reasons are only set and cleared here, and the transport reads if there are none.

Called by the event loop (get_buffer, buffer_updated...) and by the code that completes slots.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, cast

from odradek.node.bus.arena import NO_BLOCK
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection_hooks import ConnectionGate, Handover
from odradek.node.wire.framing import (
    LENGTH_BYTES,
    Buffer,
    explain_bad_frame,
    host_and_port,
    pack_length,
    read_length,
)
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.receive_buffer import KEPT_BYTES_MAX, FrameReceiver
from odradek.node.wire.request_times import RequestTiming
from odradek.node.wire.socket_server import SocketServer
from odradek.protocol.errors import ProtocolError

log = get_logger(__name__)

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of a client that has not authenticated."""

REQUESTS_PER_TURN_MAX = 128
"""Requests of one connection in one iteration of the loop."""
TURN_NS_MAX = 2_000_000
"""Time for one connection in one iteration of the loop, but at least one request."""

_JOINED_BYTES_MAX = 32 * 1024
_WRITE_BYTES_MAX = 8 << 20

# The reasons why a connection does not read, as bits.
INFLIGHT, UNSENT, CONGESTED, THROTTLED, STARVED = 1, 2, 4, 8, 16
TURN_LIMIT, CLOSING, DECODING, HANDED_OVER = 32, 64, 128, 256


ConnectionServer: TypeAlias = "SocketServer[Connection, Slot]"
"""What all connections of a router share."""


class Slot:
    """A request's place in its connection's queue."""

    __slots__ = ("_block", "buffers", "connection", "hold", "is_done", "received", "size", "timing")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.timing: RequestTiming | None = None
        """Of a request that is measured or traced."""
        self.is_done = False
        self.size = self.received = 0
        """Bytes of the response, and of the request if it counts."""
        self.buffers: Sequence[Buffer] | None = None
        self.hold: object = None
        self._block = NO_BLOCK

    def retain(self) -> None:
        """Keep the request's bytes in the arena until the slot is completed.

        Only during `on_request`. A second call changes nothing.
        """
        if self._block == NO_BLOCK:
            connection = self.connection
            self._block = connection.input.block_in_use
            connection.wire.arena.retain(self._block)

    def complete(self, buffers: Sequence[Buffer] | None, hold: object = None) -> None:
        """Set the response: header and body, without the length. None for a request without one.

        It is sent after the responses to all earlier requests. The buffers must not change until
        then. `hold` is kept until the kernel has them. Exactly once per slot.
        """
        assert not self.is_done, "a slot was completed twice"
        self.is_done = True
        connection = self.connection
        if self.timing is not None:
            self.timing.done_ns = time.perf_counter_ns()
            if connection.is_closed:
                connection.wire.request_times.abandon(self.timing)
        if self._block != NO_BLOCK:
            connection.wire.arena.release(self._block)
        if connection.is_closed:
            return
        if buffers is not None:
            self.buffers = buffers
            self.hold = hold
            self.size = sum(map(len, buffers))
        connection.completed(self)


class Connection(asyncio.BufferedProtocol):
    """A client's connection, as an asyncio protocol. `authentication` is set by the router.

    `gate` gets its frames first, as long as it is set.
    """

    __slots__ = (
        "_activity_ms",
        "_authenticated_by_ms",
        "_congested_since_ms",
        "_congestion_bytes",
        "_frame_bytes_max",
        "_has_unparsed",
        "_holds",
        "_inflight_bytes",
        "_is_in_flush_queue",
        "_is_parsing",
        "_is_reading",
        "_is_turn_continued",
        "_stops",
        "_throttle",
        "_transport",
        "_unparsed_since_ms",
        "_unsent_bytes",
        "authentication",
        "client_host",
        "client_port",
        "gate",
        "handover",
        "id",
        "input",
        "is_closed",
        "listener",
        "local_host",
        "local_port",
        "peer_principal",
        "received_ns",
        "remembered",
        "request_count",
        "slots",
        "wire",
    )

    _transport: asyncio.Transport

    def __init__(self, wire: ConnectionServer, listener: ClientListener) -> None:
        self.wire = wire
        self.listener = listener
        self.peer_principal = ANONYMOUS
        """Who the transport says the client is: of its certificate, or nobody."""
        self.id = wire.next_connection_id
        wire.next_connection_id += 1
        self.authentication: object | None = None
        self.gate: ConnectionGate[Slot] | None = None
        self.handover: Handover | None = None
        self._frame_bytes_max: int | None = None
        self._authenticated_by_ms: int | None = None
        self.client_host = self.local_host = ""
        self.client_port = self.local_port = 0
        self.is_closed = False
        self.received_ns = 0
        """When the requests that are being parsed were read."""
        self._is_turn_continued = False
        """The next turn is for requests that an earlier one has read and left."""
        self.request_count = 0
        self.remembered: object | None = None
        """What the router remembers of the connection's requests."""
        self.slots: deque[Slot] = deque()
        self.input = FrameReceiver(wire.receive_buffer)
        self._stops = 0
        self._is_parsing = False
        self._is_in_flush_queue = False
        self._is_reading = True
        self._has_unparsed = False
        self._unsent_bytes = self._inflight_bytes = 0
        self._holds: list[object] | None = None
        self._throttle: asyncio.TimerHandle | None = None
        self._activity_ms = self._unparsed_since_ms = self._congested_since_ms = wire.now_ms
        self._congestion_bytes = 0

    # -- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected. It is refused if a connection limit is reached."""
        # uvloop's transports have the methods without the base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        if not self.client_host:  # else a proxy has named it
            self.client_host, self.client_port = host_and_port(transport.get_extra_info("peername"))
            self.local_host, self.local_port = host_and_port(transport.get_extra_info("sockname"))
        # Everything that the kernel does not take at once counts as congestion.
        transport.set_write_buffer_limits(high=0)
        wire = self.wire
        now_ms = int(1000 * wire.loop.time())
        throttle_ms = wire.connection_rates.throttle_ms(self.client_host, now_ms)
        if throttle_ms:
            # Closed later: a client that connects again at once would spin.
            self.is_closed = True
            transport.pause_reading()
            self._throttle = wire.loop.call_later(throttle_ms / 1000, transport.close)
            return
        refusal = wire.admit(self)
        if refusal is not None:
            self.is_closed = True
            log.warning("refused the connection", **self.log_fields(), reason=refusal)
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self.input.next_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        wire = self.wire
        self._activity_ms = wire.now_ms
        wire.counters.received_bytes += nbytes
        start, end = self.input.arrived(nbytes)
        self._advance(start, end)

    def eof_received(self) -> bool:
        """The client closed its side: its requests in flight need no response."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.input.release()
        for slot in self.slots:
            if slot.timing is not None and slot.is_done:
                self.wire.request_times.abandon(slot.timing)
        self.slots.clear()
        self._holds = None
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None
        if self.handover is not None:
            self.handover.lost()
        self.wire.forget(self)

    def pause_writing(self) -> None:
        """The kernel's buffer is full: pause reading and writing."""
        self._congested_since_ms = self.wire.now_ms
        self._congestion_bytes = self._transport.get_write_buffer_size()
        self._stops |= CONGESTED

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._holds = None
        self._stops &= ~CONGESTED
        self._flush_soon()

    # -- requests ----------------------------------------------------------------------------------

    def _advance(self, start: int, end: int) -> None:
        """Parse `[start, end)`, then what an earlier call left, until reading must stop."""
        while True:
            try:
                is_everything_parsed = self._parse_frames(start, end)
            except ProtocolError as error:
                self.input.discard(end)
                self._refuse(str(error))
                return
            except Exception:
                self.input.discard(end)
                log.exception("a request failed; closing its connection", **self.log_fields())
                self.abort()
                return
            finally:
                self._is_parsing = False
            slots = self.slots
            if slots and slots[0].is_done:
                self._write()
            if self._stops:
                self._pause()
                return
            if is_everything_parsed:
                if not self._is_reading:
                    self._is_reading = True
                    self._transport.resume_reading()
                return
            start, end = self.input.pending()

    def _parse_frames(self, start: int, end: int) -> bool:
        """Call `on_request` with the whole frames of `[start, end)`. False if reading must stop."""
        wire = self.wire
        view = wire.arena.view
        settings = wire.settings
        on_request = wire.on_request
        slots = self.slots
        bytes_max = self._frame_bytes_max or settings.request_bytes_max
        count = size = 0
        clock = time.perf_counter_ns
        began_ns = clock()
        if self._is_turn_continued:
            self._is_turn_continued = False
        else:
            self.received_ns = began_ns
        until = began_ns + TURN_NS_MAX
        self._is_parsing = True
        while end - start >= LENGTH_BYTES:
            if self._stops:
                break
            (length,) = read_length(view, start)
            if not 0 <= length <= bytes_max:
                # The client may have authenticated in this loop.
                bytes_max = self._frame_bytes_max or settings.request_bytes_max
                if 0 <= length <= bytes_max:
                    continue
                raise ProtocolError(explain_bad_frame(bytes(view[start : start + 8]), length))
            frame_start = start + LENGTH_BYTES
            frame_end = frame_start + length
            if frame_end > end:
                break
            if count == REQUESTS_PER_TURN_MAX or (count and clock() > until):
                self._stops |= TURN_LIMIT
                self._is_turn_continued = True
                wire.loop.call_soon(self.clear_stop, TURN_LIMIT)
                break
            slot = Slot(self)
            slots.append(slot)
            if len(slots) >= settings.inflight_requests_max:
                self._stops |= INFLIGHT
            count += 1
            size = LENGTH_BYTES + length
            if size > KEPT_BYTES_MAX:
                slot.received = size
                self._inflight_bytes += size
                if self._inflight_bytes >= settings.inflight_bytes_max:
                    self._stops |= INFLIGHT
            on_request(slot, view[frame_start:frame_end], frame_start)
            start = frame_end
        self.request_count += count
        wire.counters.requests += count
        if start == end:
            self._has_unparsed = False
        elif count or not self._has_unparsed:
            self._has_unparsed = True
            self._unparsed_since_ms = wire.now_ms
        receiver = self.input
        receiver.settle(start, end, size)
        if receiver.is_starved:
            self._stops |= STARVED
            wire.starved.append(self)
            wire.counters.starvations += 1
        return not self._stops

    def _refuse(self, message: str) -> None:
        """Close the connection after invalid bytes. Completed responses are still sent."""
        self.wire.counters.protocol_errors += 1
        self.log_refusal(message)
        self._write()
        self._close_transport()

    def require_authentication(self, gate: ConnectionGate[Slot], frame_bytes_max: int) -> None:
        """Give all frames to the gate. Until `on_authenticated` they are limited to that size, and
        there is as much time as for one request."""
        self.gate = gate
        self.authentication = gate
        self._frame_bytes_max = min(frame_bytes_max, self.wire.settings.request_bytes_max)
        now_ms = int(self.wire.loop.time() * 1000)
        self._authenticated_by_ms = now_ms + self.wire.settings.half_open_ms_max

    def on_authenticated(self, *, is_watched: bool) -> None:
        """The client has authenticated. With `is_watched` the gate still gets all frames."""
        self._frame_bytes_max = self._authenticated_by_ms = None
        if not is_watched:
            self.gate = None

    def log_refusal(self, reason: str, **fields: object) -> None:
        """Log why it is closed. A `kind` among the fields says which reasons are the same one."""
        log.warning("closing the connection", **self.log_fields(), reason=reason, **fields)

    def log_fields(self) -> dict[str, object]:
        """Who a line is about."""
        return {
            "client_address": self.client_host,
            "client_port": self.client_port,
            "listener": self.listener.name,
        }

    def hold_back(self) -> None:
        """Hand over no later request until `resume`. Only during `on_request`."""
        self._stops |= DECODING

    def resume(self) -> None:
        """The request of `hold_back` has reached its handler."""
        self.clear_stop(DECODING)

    # -- handing over ------------------------------------------------------------------------------

    def hand_over(self, handover: Handover) -> None:
        """Read no more, and call `handover.begin` when all responses are written. Only during
        `on_request`."""
        self.handover = handover
        self._stops |= HANDED_OVER

    def descriptor(self) -> int | None:
        """Of the socket, if the client's bytes go through it as they are."""
        found = None if self.listener.is_tls else self._transport.get_extra_info("socket")
        return None if found is None else found.fileno()

    def take_back(self, received: bytes = b"", unsent: bytes = b"") -> None:
        """Read again. `received` comes before what is read, `unsent` is the end of responses that
        are not written yet."""
        self.handover = None
        if self.is_closed:
            return
        self._stops &= ~HANDED_OVER
        self._activity_ms = self.wire.now_ms
        if unsent:
            self._transport.write(unsent)
        if received:
            self.input.give_back(received)
        if self._stops & CLOSING and not self.slots:
            self._close_transport()
        else:
            self._resume()

    def note_served(self, request_count: int) -> None:
        """A worker has answered so many requests."""
        self.request_count += request_count
        self._activity_ms = self.wire.now_ms

    def _begin_handover(self) -> None:
        is_ready = self._stops == HANDED_OVER and not self.slots and not self.is_closed
        if is_ready and self.handover is not None:
            self.handover.begin()

    # -- responses ---------------------------------------------------------------------------------

    def completed(self, slot: Slot) -> None:
        self._inflight_bytes -= slot.received
        self._unsent_bytes += slot.size
        if self._unsent_bytes > self.wire.settings.unsent_bytes_max:
            self._stops |= UNSENT
        if self.slots[0] is slot and not self._is_parsing:
            self._flush_soon()

    def flush(self) -> None:
        """Write what is ready, and resume reading if possible. Called by the flush queue."""
        self._is_in_flush_queue = False
        if self.is_closed:
            return
        self._write()
        self._resume()

    def _flush_soon(self) -> None:
        if not self._is_in_flush_queue:
            self._is_in_flush_queue = True
            self.wire.flush_queue.add(self)

    def _write(self) -> None:
        """Write the completed head of the queue, unless earlier responses are still unsent."""
        slots = self.slots
        while slots and slots[0].is_done and not self._stops & CONGESTED and not self.is_closed:
            out: list[Buffer] = []
            holds: list[object] = []
            size = count = 0
            while slots and slots[0].is_done and size < _WRITE_BYTES_MAX:
                slot = slots.popleft()
                if slot.timing is not None:
                    self.wire.request_times.observe(slot.timing, time.perf_counter_ns(), slot.size)
                if slot.buffers is not None:
                    size += slot.size
                    count += 1
                    out.append(pack_length(slot.size))
                    out += slot.buffers
                    if slot.hold is not None:
                        holds.append(slot.hold)
                        slot.buffers = slot.hold = None
            self._unsent_bytes -= size
            self.wire.counters.sent_bytes += size + count * LENGTH_BYTES
            if size <= _JOINED_BYTES_MAX:
                if out:
                    self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
                if self._stops & CONGESTED:
                    self._holds = holds
        if self._stops:
            self._clear_stops_after_write()

    def _clear_stops_after_write(self) -> None:
        settings = self.wire.settings
        is_behind = self._inflight_bytes > settings.inflight_bytes_max // 2
        if not is_behind and len(self.slots) <= settings.inflight_requests_max // 2:
            self._stops &= ~INFLIGHT
        if self._unsent_bytes <= settings.unsent_bytes_max // 2:
            self._stops &= ~UNSENT
        if self._stops & HANDED_OVER and not self.slots:
            self.wire.loop.call_soon(self._begin_handover)
        elif self._stops & CLOSING and not self.slots and not self.is_closed:
            self._close_transport()

    # -- pausing and closing -----------------------------------------------------------------------

    def throttle(self, throttle_ms: int) -> None:
        """Do not read for this time. The longest of several throttles counts."""
        if self.is_closed or throttle_ms <= 0:
            return
        loop = self.wire.loop
        until = loop.time() + throttle_ms / 1000
        if self._throttle is not None:
            if self._throttle.when() >= until:
                return
            self._throttle.cancel()
        self._throttle = loop.call_at(until, self._end_throttle)
        self._stops |= THROTTLED
        if not self._is_parsing:
            self._pause()

    def close(self) -> None:
        """Stop reading, and close the connection when all responses are sent."""
        if self.is_closed:
            return
        self._stops |= CLOSING
        if self.handover is not None:
            self.handover.recall()
        if self._is_parsing:
            return
        self._pause()
        if not self.slots and not self._stops & HANDED_OVER:
            self._close_transport()

    def abort(self) -> None:
        """Close the connection now. Unsent responses are lost."""
        if not self.is_closed:
            self.is_closed = True
            self._stops |= CLOSING
            self._transport.abort()

    def overdue(self, now_ms: int) -> str | None:
        """`stalled`, `half-open`, `not authenticated` or `idle` if the client has taken too long,
        else None."""
        settings = self.wire.settings
        if self._authenticated_by_ms is not None and now_ms > self._authenticated_by_ms:
            return "not authenticated"
        rate = settings.transfer_bytes_per_s_min / 1000
        if self._stops & CONGESTED:
            allowed_ms = settings.write_stall_ms_max + self._congestion_bytes / rate
            return "stalled" if now_ms - self._congested_since_ms > allowed_ms else None
        if self._stops or self.slots:
            return None
        if self._has_unparsed or not self.request_count:
            allowed_ms = settings.half_open_ms_max + self.input.unparsed_bytes / rate
            return "half-open" if now_ms - self._unparsed_since_ms > allowed_ms else None
        return "idle" if now_ms - self._activity_ms > settings.connections_idle_ms_max else None

    def idle_ms(self) -> int:
        """How long no bytes have come, to within the period of the reaper."""
        return self.wire.now_ms - self._activity_ms

    def __str__(self) -> str:
        return f"{self.client_host}:{self.client_port} on listener {self.listener.name}"

    def _end_throttle(self) -> None:
        self._throttle = None
        self.clear_stop(THROTTLED)

    def resume_starved(self) -> None:
        """There is room in the arena again."""
        self.clear_stop(STARVED)

    def clear_stop(self, stop: int) -> None:
        """A reason is gone: resume reading if it was the last one."""
        self._stops &= ~stop
        self._resume()

    def _resume(self) -> None:
        """Resume reading if there is no reason to pause, after parsing what was received."""
        if self._stops:
            self._pause()
            if self._stops == HANDED_OVER:
                self.wire.loop.call_soon(self._begin_handover)
        elif not self._is_reading and not self.is_closed:
            self._unparsed_since_ms = self.wire.now_ms
            start, end = self.input.pending()
            self._advance(start, end)

    def _pause(self) -> None:
        if self._is_reading and not self.is_closed:
            self._is_reading = False
            self._transport.pause_reading()

    def _close_transport(self) -> None:
        """Close after the transport has sent its data. At once if the client does not read."""
        if self.is_closed:
            return
        self.is_closed = True
        end = self._transport.abort if self._stops & CONGESTED else self._transport.close
        end()
