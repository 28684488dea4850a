"""Client connections that a router has handed over: a worker reads their requests and answers them.

The requests are Produce requests of one batch, and repeat an earlier one of their connection, but
for correlation id and records; the large ones are received elsewhere (large_requests.py). A batch
of a transaction must continue one that is under way in its partition, and not be large. `receive`
makes appends of them, which run in the worker's turn like those of routers; `send_replies` writes
the responses, in the order of the requests. Or they are fetches of one partition
(handed_fetches.py). Whatever else arrives, the connection is handed back with it: other requests,
very large ones, a closed connection, a client that does not read. So it is when an append is
refused (the router answers those), after IDLE_S, and when the router asks for it.

Invariant: a connection is handed back once, after all its requests were answered by the turns, and
then with what the router needs to go on as if it had read everything itself. Called by the worker's
loop only.
"""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from time import monotonic, perf_counter_ns, process_time
from typing import Final, TypeAlias

from odradek.node.bus.connection_handover import (
    READ_BYTES,
    Forget,
    HandedBack,
    HandOver,
    HandoverChannel,
    listen,
)
from odradek.node.bus.produce_frames import PREFIX_AT, records_at
from odradek.node.wire.request_times import SAMPLE_MASK
from odradek.node.worker.busy_share import BusyShare
from odradek.node.worker.handed_connection import (
    HandedConnection,
    Route,
    Unanswered,
    is_refused,
)
from odradek.node.worker.handed_fetches import (
    NEVER_S,
    UNWATCHED_S,
    HandedFetch,
    HandedFetches,
)
from odradek.node.worker.large_requests import ROOM_BYTES_MAX, LargeRequest, LargeRequests
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.protocol.records import producer_of

IDLE_S: Final = 1.0
"""A connection goes back when it was not used for so long, up to twice that."""
BUSY_SHARE_MAX: Final = 0.85
"""A worker that is busy for more than this part of the time hands back its consumers, and producers
of large requests: then two processors do more than one."""
LARGE_WINDOW_S: Final = 0.1
"""What the share is about for large requests."""
INFLIGHT_MAX: Final = 128
"""Requests of a connection without a response; then it is not read."""
LARGE_INFLIGHT_MAX: Final = 6
"""Large ones among them."""
BUSY_SHARE_FOR_LARGE_MAX: Final = 0.6
"""A worker that is busier than this does not take over producers of large requests, because reading
them adds a third to its work."""
EVENTS_MAX: Final = 64
REQUESTS_PER_TURN: Final = 512
REQUEST_BYTES_PER_TURN: Final = 1 << 20
"""No further connection is read for a turn after so many requests or so many bytes of them: some
milliseconds of appends."""
_TIMINGS_MAX: Final = 1_000
_LENGTH_BYTES: Final = 4
_CORRELATION_ID_END: Final = 12
_read_start = Struct(">iii").unpack_from
"""Length of the frame, API key and version, correlation id."""


_Requests: TypeAlias = list[tuple[RouterState, Request]]


class HandedConnections:
    """See the module's docstring. `fileno` is to be polled: when it is readable, call `receive`."""

    def __init__(
        self,
        path: Path,
        has_transaction: Callable[[int, int, int, int], bool],
        fetches: "HandedFetches[HandedConnection]",
        outer: select.epoll | None = None,
        used_s: Callable[[], float] = process_time,
        room: int = ROOM_BYTES_MAX,
    ) -> None:
        """`has_transaction` tells by store, number of the partition, id and epoch of a producer
        whether a transaction of this producer is under way there. All descriptors are registered
        with `outer`, too: whoever waits there gives the events to `receive`, and saves a look into
        an epoll within an epoll. `used_s` is the processor time that the worker has used, `room`
        the bytes of memory for requests that are too large for one read."""
        self._has_transaction = has_transaction
        self._fetches = fetches
        self._epoll = select.epoll()
        self._epolls = (self._epoll,) if outer is None else (self._epoll, outer)
        self._listening = listen(path)
        self._watch(self._listening.fileno())
        self._channels: dict[int, HandoverChannel] = {}
        self._by_descriptor: dict[int, HandedConnection] = {}
        self._by_id: dict[tuple[int, int], HandedConnection] = {}
        """By the channel's descriptor and the connection."""
        self._unanswered: dict[int, Unanswered] = {}
        self._next_id = 0
        self.large: Final = LargeRequests(room)
        self._state = RouterState(self.large.view)
        """Of the appends: the turns put the replies here."""
        self._turn_bytes = 0
        self._buffer = memoryview(bytearray(READ_BYTES))
        """For a read. An object of this size for each would cost more than a copy of few bytes."""
        self._passed_over: set[int] = set()
        """Descriptors that were readable and had to wait for the next turn: they come first."""
        self._tick_s = 0.0
        self._busy_share = BusyShare(used_s)
        self._large_busy_share = BusyShare(used_s, LARGE_WINDOW_S)
        self._large_share = 0.0
        self._is_stopping = False

    @property
    def count(self) -> int:
        """Connections that this worker serves."""
        return len(self._by_id)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def owns(self, descriptor: int) -> bool:
        """Whether an event of the outer epoll is for `receive`."""
        is_listening = descriptor == self._listening.fileno()
        return descriptor in self._by_descriptor or descriptor in self._channels or is_listening

    def look(self) -> list[tuple[int, int]] | None:
        """The events for `receive`, if there are any now."""
        return self._epoll.poll(0, EVENTS_MAX) or None

    def receive(self, events: list[tuple[int, int]] | None = None) -> _Requests:
        """Requests that have arrived, according to these events of the outer epoll (others than
        ours are ignored) or, without them, to a look of our own: a bounded number, and of each
        connection, too. What is left is reported again."""
        requests: _Requests = []
        self._turn_bytes = 0
        if not events:
            events = self._epoll.poll(0, EVENTS_MAX)
        if self._passed_over:
            passed_over, self._passed_over = self._passed_over, set()
            events.sort(key=lambda event: event[0] not in passed_over)
        for descriptor, _ in events:
            handed = self._by_descriptor.get(descriptor)
            if handed is not None:
                if len(requests) < REQUESTS_PER_TURN and self._turn_bytes < REQUEST_BYTES_PER_TURN:
                    self._read(handed, requests)
                else:
                    self._passed_over.add(descriptor)
            elif descriptor in self._channels:
                self._receive_messages(self._channels[descriptor], requests)
            elif descriptor == self._listening.fileno():
                self._accept()
        return requests

    def send_replies(self) -> None:
        """Write the responses to the requests whose replies are there; those of producers first,
        who send the next request meanwhile."""
        replies = self._state.replies
        if replies:
            answered: dict[HandedConnection, None] = {}
            for reply in replies:
                request = self._unanswered.pop(getattr(reply, "request_id", 0), None)
                if request is not None:
                    request.reply = reply  # type: ignore[assignment]  # of an append
                    if request.large is not None:
                        self.large.release(request.large)
                        request.handed.large_count -= 1
                    if request.received_ns:
                        request.done_ns = perf_counter_ns()
                    answered[request.handed] = None
            replies.clear()
            for handed in answered:
                self._answer(handed)
        if self._fetches.advanced:
            for following, fetch in self._fetches.woken():
                if fetch.correlation_id is not None:
                    self._answer_fetch(following, fetch)
                elif following.is_paused:
                    self._read(following, [])

    def serve_due(self, now_s: float) -> None:
        """Answer fetches whose time is over, and look for requests of consumers to whom nobody has
        listened for a moment. To be called at `next_ms`, by the monotonic clock."""
        for following, fetch in self._fetches.all():
            if fetch.watch_s <= now_s:
                self._watch_fetch(following, fetch)
            if fetch.correlation_id is not None and fetch.due_s <= now_s:
                self._answer_fetch(following, fetch, is_due=True)

    def tick(self, now_s: float) -> None:
        """Serve what is due, tell routers what was served, and hand back what is idle, or what
        others can do if the worker is too busy. To be called often."""
        self.serve_due(now_s)
        self._large_share = self._large_busy_share.of_last_window(now_s)
        if self._busy_share.of_last_window(now_s) > BUSY_SHARE_MAX:
            for following, _ in self._fetches.all():
                self._leave_overloaded(following)
        if self._large_share > BUSY_SHARE_MAX:
            for handed in list(self._by_id.values()):
                if handed.expected_bytes:
                    self._leave_overloaded(handed)
        if now_s < self._tick_s:
            return
        self._tick_s = now_s + IDLE_S
        self._fetches.release_segments()
        self.large.trim()
        for channel in self._channels.values():
            channel.flush()
        for handed in list(self._by_id.values()):
            if handed.is_active:
                handed.is_active = False
                handed.tell_served()
            elif not handed.queue:
                self._leave(handed, handed.received)

    def hand_back_all(self) -> None:
        """The worker stops: read none of them any more, and take over no others."""
        self._is_stopping = True
        for handed in list(self._by_id.values()):
            self._leave(handed, handed.received)

    def close(self) -> None:
        """Close everything. Routers close the connections that were not handed back."""
        for descriptor in list(self._channels):
            self._close_channel(descriptor)
        self._listening.close()
        self._epoll.close()
        self._fetches.close()
        self.large.close()

    def next_ms(self) -> int:
        """When `serve_due` has something to do, by the monotonic clock."""
        return self._fetches.next_ms()

    def _watch(self, descriptor: int) -> None:
        for epoll in self._epolls:
            epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        for epoll in self._epolls:
            epoll.unregister(descriptor)

    def _set_mask(self, handed: HandedConnection, mask: int) -> None:
        for epoll in self._epolls:
            epoll.modify(handed.socket, mask)

    # -- channels ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            channel = HandoverChannel(self._listening.accept()[0])
            self._channels[channel.fileno()] = channel
            self._watch(channel.fileno())

    def _receive_messages(self, channel: HandoverChannel, requests: _Requests) -> None:
        descriptor = channel.fileno()
        while True:
            try:
                received = channel.receive()
            except EOFError:
                self._close_channel(descriptor)
                return
            if received is None:
                return
            message, file = received
            if isinstance(message, HandOver):
                is_overloaded = message.is_large and self._large_share > BUSY_SHARE_FOR_LARGE_MAX
                if file is None or self._is_stopping or is_overloaded:
                    if file is not None:
                        os.close(file)
                    back = HandedBack(
                        message.connection, message.received, is_overloaded=is_overloaded
                    )
                    channel.send(back)
                    continue
                handed = HandedConnection(channel, message, socket.socket(fileno=file))
                self._by_id[descriptor, message.connection] = handed
                self._by_descriptor[file] = handed
                self._watch(file)
                if handed.fetch is not None:
                    self._fetches.follow(handed, handed.fetch)
                if handed.received:
                    self._take(handed, message.received, requests)
                continue
            found = self._by_id.get((descriptor, message.connection))
            if found is None:
                continue  # it was handed back meanwhile
            if isinstance(message, Forget):
                self._forget(found)
            else:
                self._leave(found, found.received)

    def _close_channel(self, descriptor: int) -> None:
        channel = self._channels.pop(descriptor)
        for handed in [each for each in self._by_id.values() if each.channel is channel]:
            self._forget(handed)
        self._unwatch(descriptor)
        channel.close()

    # -- requests ----------------------------------------------------------------------------------

    def _read(self, handed: HandedConnection, requests: _Requests) -> None:
        large = handed.large
        if large is None and handed.expected_bytes > len(handed.received):
            large = handed.large = self.large.begin(handed.received, handed.expected_bytes)
            handed.received = handed.received if large is None else b""
        buffer = self._buffer if large is None else self.large.rest_of(large)
        try:
            count = handed.socket.recv_into(buffer)
        except BlockingIOError:
            if handed.fetch is not None and handed.is_paused:
                self._watch_fetch(handed, handed.fetch)
            return
        except OSError:
            count = 0
        if not count:
            # The router reads the same.
            self._leave(handed, handed.received)
            return
        handed.received_bytes += count
        self._turn_bytes += count
        if large is not None:
            handed.is_active = True
            large.filled += count
            self._take_large(handed, large, requests)
            return
        received, data = handed.received, self._buffer[:count]
        self._take(handed, b"".join((received, data)) if received else data.tobytes(), requests)

    def _take(self, handed: HandedConnection, data: bytes, requests: _Requests) -> None:
        fetch = handed.fetch
        handed.received = b""
        if fetch is None:
            handed.is_active = True
            self._parse(handed, data, requests)
        elif fetch.correlation_id is not None or not fetch.accept(data, monotonic()):
            self._leave(handed, data)
        else:
            is_measured = not data[_CORRELATION_ID_END - 1] & SAMPLE_MASK
            handed.received_ns = perf_counter_ns() if is_measured else 0
            self._answer_fetch(handed, fetch)

    def _parse(self, handed: HandedConnection, data: bytes, requests: _Requests) -> None:
        """Make appends of the whole requests in `data`."""
        at, size = 0, len(data)
        prefix_end, routes = handed.prefix_end, handed.routes
        while size - at >= PREFIX_AT + _LENGTH_BYTES:
            length, key_and_version, correlation_id = _read_start(data, at)
            if key_and_version != handed.key_and_version or not 0 <= length <= handed.bytes_max:
                self._leave(handed, data[at:])
                return
            end = at + _LENGTH_BYTES + length
            if end > size:
                if length > READ_BYTES:
                    self._begin_large(handed, data[at:], _LENGTH_BYTES + length, requests)
                    return
                break
            frame = at + _LENGTH_BYTES
            route = routes.get(data[frame + PREFIX_AT : frame + prefix_end])
            found = None
            if route is not None:
                found = records_at(
                    data,
                    frame + prefix_end,
                    end,
                    route.version,
                    is_transactional=route.is_transactional,
                )
            if route is None or found is None:
                self._leave(handed, data[at:])
                return
            start, batch_size = found
            if route.is_transactional and not self._has_transaction(
                route.store, route.number, *producer_of(data, start)
            ):
                # The first batch of a transaction: the router asks its coordinator.
                self._leave(handed, data[at:])
                return
            request_id = self._expect_reply(handed, route, correlation_id)
            append = route.append_bytes(request_id, data, start, batch_size)
            requests.append((self._state, append))
            at = end
        handed.received = data[at:]
        if len(handed.queue) >= INFLIGHT_MAX:
            self._pause(handed)

    def _expect_reply(
        self,
        handed: HandedConnection,
        route: Route,
        correlation_id: int,
        large: LargeRequest | None = None,
    ) -> int:
        """The id of an append."""
        self._next_id = request_id = self._next_id + 1
        measured_ns = 0 if correlation_id & SAMPLE_MASK else perf_counter_ns()
        request = Unanswered(handed, route, correlation_id, measured_ns, large=large)
        handed.queue.append(request)
        self._unanswered[request_id] = request
        handed.request_count += 1
        return request_id

    def _pause(self, handed: HandedConnection) -> None:
        if not handed.is_paused:
            handed.is_paused = True
            self._set_mask(handed, 0)

    # -- large requests ----------------------------------------------------------------------------

    def _begin_large(
        self, handed: HandedConnection, received: bytes, size: int, requests: _Requests
    ) -> None:
        """Go on with a request of so many bytes, of which these have come."""
        handed.large = large = self.large.begin(received, size)
        if large is None:
            handed.received = received
            self._leave_overloaded(handed)
        else:
            self._read(handed, requests)

    def _take_large(
        self, handed: HandedConnection, large: LargeRequest, requests: _Requests
    ) -> None:
        """Make an append of the request if it is whole."""
        if large.filled < PREFIX_AT + _LENGTH_BYTES:
            return
        size = self.large.whole_size(large, handed.bytes_max)
        _, key_and_version, correlation_id = _read_start(self.large.view, large.start)
        if size is None or key_and_version != handed.key_and_version:
            handed.is_overloaded = size is None
            self._leave(handed, b"")
            return
        if not size:
            return
        frame = self.large.view[large.start + _LENGTH_BYTES : large.start + size]
        route = handed.routes.get(frame[PREFIX_AT : handed.prefix_end].tobytes())
        found = None
        if route is not None and not route.is_transactional:
            found = records_at(frame, handed.prefix_end, len(frame), route.version)
        if route is None or found is None:
            self._leave(handed, b"")
            return
        start, batch_size = found
        request_id = self._expect_reply(handed, route, correlation_id, large)
        append = route.append(request_id, large.start + _LENGTH_BYTES + start, batch_size)
        requests.append((self._state, append))
        handed.large = None
        handed.large_count += 1
        handed.expected_bytes = size if size > READ_BYTES else 0
        if handed.large_count >= LARGE_INFLIGHT_MAX:
            self._pause(handed)
        rest = self.large.bytes_of(large, size)
        if rest:
            self._take(handed, rest, requests)

    # -- responses ---------------------------------------------------------------------------------

    def _answer(self, handed: HandedConnection) -> None:
        """Write the responses to the first requests of the queue that have their replies."""
        if handed.is_gone:
            return
        responses, measured, was_refused = handed.take_answered()
        if responses:
            self._send(handed, responses[0] if len(responses) == 1 else b"".join(responses))
        if measured and len(handed.timings) < _TIMINGS_MAX:
            sent_ns = perf_counter_ns()
            handed.timings += [(each.received_ns, each.done_ns, sent_ns) for each in measured]
        if was_refused:
            # The router makes this response, and those after it.
            self._leave(handed, handed.received)
        if handed.has_left:
            self._hand_back_if_answered(handed)
        elif (
            handed.is_paused
            and len(handed.queue) <= INFLIGHT_MAX // 2
            and handed.large_count <= LARGE_INFLIGHT_MAX // 2
        ):
            handed.is_paused = False
            self._set_mask(handed, select.EPOLLIN)

    def _answer_fetch(
        self, handed: HandedConnection, fetch: HandedFetch, *, is_due: bool = False
    ) -> None:
        """Answer the fetch that waits, or let it wait."""
        done_ns = perf_counter_ns() if handed.received_ns else 0
        response = self._fetches.answer(fetch, is_due=is_due)
        if response is None:
            return
        if not response:
            self._leave(handed, b"")
            return
        handed.request_count += 1
        self._turn_bytes += len(response)
        self._send(handed, response)
        if not is_due and not handed.has_left:
            handed.is_active = True
            fetch.watch_s = monotonic() + UNWATCHED_S
            self._pause(handed)
        if done_ns and len(handed.timings) < _TIMINGS_MAX:
            handed.timings.append((handed.received_ns, done_ns, perf_counter_ns()))

    def _watch_fetch(self, handed: HandedConnection, fetch: HandedFetch) -> None:
        """Look for requests of this consumer again."""
        fetch.watch_s = NEVER_S
        handed.is_paused = False
        self._set_mask(handed, select.EPOLLIN)

    def _send(self, handed: HandedConnection, responses: bytes) -> None:
        handed.sent_bytes += len(responses)
        if handed.unsent:
            handed.unsent += responses
            return
        try:
            sent = handed.socket.send(responses)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The router finds the connection closed.
            self._leave(handed, handed.received)
            return
        if sent < len(responses):
            # The client does not read.
            handed.unsent = responses[sent:]
            self._leave(handed, handed.received)

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self, handed: HandedConnection, received: bytes) -> None:
        """Read no more. The connection is handed back at once, or when its requests are
        answered."""
        if handed.has_left:
            return
        handed.has_left = True
        handed.received = self._release_fetch(handed) + self._release_large(handed) + received
        self._stop_reading(handed)
        self._hand_back_if_answered(handed)

    def _leave_overloaded(self, handed: HandedConnection) -> None:
        """Hand back what takes more time or room than there is."""
        handed.is_overloaded = True
        self._leave(handed, handed.received)

    def _hand_back_if_answered(self, handed: HandedConnection) -> None:
        queue = handed.queue
        if handed.is_gone or any(request.reply is None for request in queue):
            return
        if queue and not is_refused(queue[0].reply):
            return  # `_answer` writes it first
        handed.tell_served()
        handed.send_back()
        self._remove(handed)

    def _forget(self, handed: HandedConnection) -> None:
        """The connection is closed. What becomes of its requests is told to nobody."""
        handed.has_left = True
        self._release_fetch(handed)
        self._release_large(handed)
        self._stop_reading(handed)
        self._remove(handed)

    def _release_fetch(self, handed: HandedConnection) -> bytes:
        """The fetch that waits, as a request to the router. Empty if there is none."""
        fetch = handed.fetch
        if fetch is None:
            return b""
        self._fetches.end(handed, fetch)
        return fetch.release(monotonic())

    def _release_large(self, handed: HandedConnection) -> bytes:
        """What has come of a large request. Empty if there is none."""
        large, handed.large = handed.large, None
        if large is None:
            return b""
        received = self.large.bytes_of(large)
        self.large.release(large)
        return received

    def _stop_reading(self, handed: HandedConnection) -> None:
        descriptor = handed.socket.fileno()
        if self._by_descriptor.pop(descriptor, None) is not None:
            self._unwatch(descriptor)

    def _remove(self, handed: HandedConnection) -> None:
        handed.is_gone = True
        del self._by_id[handed.channel.fileno(), handed.connection]
        handed.socket.close()
