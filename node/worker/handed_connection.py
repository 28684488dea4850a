"""One connection that a router has handed over, and the requests that are read from it. See
handed_connections.py."""

import socket
from collections import deque
from struct import Struct
from typing import Final

import msgspec

from odradek.node.bus.connection_handover import (
    PIECE_BYTES_MAX,
    HandedBack,
    HandOver,
    HandoverChannel,
    Served,
    Unread,
)
from odradek.node.bus.messages import Append, AppendBytes, Appended, AppendReply
from odradek.node.bus.produce_frames import PREFIX_AT
from odradek.node.worker.handed_fetches import HandedFetch
from odradek.node.worker.large_requests import LARGE_BYTES_MAX, LargeRequest

_LENGTH_BYTES: Final = 4
_VIEW_BYTES_MIN: Final = 8 << 10
"""Of a batch that is not copied."""


class Route:
    """Where the records of requests with one prefix go."""

    __slots__ = (
        "acks",
        "encode",
        "has_log_start",
        "head",
        "index",
        "is_transactional",
        "number",
        "size",
        "store",
        "tail",
        "timeout_ms",
        "version",
    )

    def __init__(self, message: HandOver, index: int) -> None:
        route = message.routes[index]
        self.index = index
        self.store, self.number = route.store, route.number
        self.acks, self.timeout_ms, self.version = route.acks, route.timeout_ms, route.version
        self.is_transactional = route.is_transactional
        self.head, self.tail, self.has_log_start = route.head, route.tail, route.has_log_start
        offsets = "qqq" if route.has_log_start else "qq"
        encoder = Struct(f">ii{len(self.head)}s{offsets}{len(self.tail)}s")
        self.size = encoder.size - _LENGTH_BYTES
        self.encode = encoder.pack

    def response(self, correlation_id: int, reply: Appended) -> bytes:
        """With its length."""
        base_offset, append_ms = reply.base_offset, reply.log_append_time_ms
        head, tail = self.head, self.tail
        if self.has_log_start:
            start = reply.log_start_offset
            return self.encode(self.size, correlation_id, head, base_offset, append_ms, start, tail)
        return self.encode(self.size, correlation_id, head, base_offset, append_ms, tail)

    def append(self, request_id: int, arena_offset: int, length: int) -> Append:
        """Of the batch of a large request, for which there is room before it."""
        return Append(
            request_id,
            self.store,
            self.number,
            arena_offset,
            length,
            acks=self.acks,
            version=self.version,
            has_headroom=True,
            timeout_ms=self.timeout_ms,
        )

    def append_bytes(self, request_id: int, received: bytes, start: int, size: int) -> AppendBytes:
        """Of the batch [start, start + size) of what was received. A small one is copied; for a
        larger one all that was received is kept until it is in the log."""
        source = received if size < _VIEW_BYTES_MIN else memoryview(received)
        return AppendBytes(
            request_id,
            self.store,
            self.number,
            source[start : start + size],  # type: ignore[arg-type]  # or a view
            True,
            -1,
            self.acks,
            self.version,
            self.timeout_ms,
            -1,
            self.is_transactional,
        )


class Unanswered(msgspec.Struct, eq=False):
    """A request in its connection's queue."""

    handed: "HandedConnection"
    route: Route
    correlation_id: int
    received_ns: int
    """0 if it is not measured."""
    done_ns: int = 0
    reply: AppendReply | None = None
    large: LargeRequest | None = None
    """Where the request is, if it is a large one."""


class HandedConnection:
    """One connection that this worker serves."""

    __slots__ = (
        "bytes_max",
        "channel",
        "connection",
        "expected_bytes",
        "fetch",
        "has_left",
        "is_active",
        "is_gone",
        "is_overloaded",
        "is_paused",
        "key_and_version",
        "large",
        "large_count",
        "prefix_end",
        "queue",
        "received",
        "received_bytes",
        "received_ns",
        "request_count",
        "routes",
        "sent_bytes",
        "socket",
        "timings",
        "unsent",
    )

    def __init__(
        self, channel: HandoverChannel, message: HandOver, connected: socket.socket
    ) -> None:
        self.channel = channel
        self.connection = message.connection
        self.socket = connected
        connected.setblocking(False)
        self.key_and_version = message.key_and_version
        self.bytes_max = min(LARGE_BYTES_MAX, message.bytes_max)
        """Of a request."""
        self.routes = {
            route.prefix: Route(message, index) for index, route in enumerate(message.routes)
        }
        self.prefix_end = PREFIX_AT + len(message.routes[0].prefix) if message.routes else 0
        fetch = message.fetch
        self.fetch = None if fetch is None else HandedFetch(fetch, message.key_and_version)
        """Of a consumer, who has no routes."""
        self.received_ns = 0
        """When the fetch was received; 0 if it is not measured."""
        self.queue: deque[Unanswered] = deque()
        self.received = message.received
        """Not answered yet: a part of a request, or what the router has to answer."""
        self.large: LargeRequest | None = None
        """Of which a part has come. There is nothing in `received` then."""
        self.expected_bytes = 0
        """Of the next request, if the last one was large."""
        self.large_count = 0
        """Large requests without a reply."""
        self.unsent = b""
        self.is_overloaded = False
        """It is handed back because the worker has no time or no room for it."""
        self.is_active = True
        self.is_paused = False
        self.has_left = False
        """It is not read any more, and handed back when the queue allows."""
        self.is_gone = False
        """It was handed back, or forgotten."""
        self.request_count = self.received_bytes = self.sent_bytes = 0
        self.timings: list[tuple[int, int, int]] = []

    def take_answered(self) -> tuple[list[bytes], list[Unanswered], bool]:
        """Take the first requests of the queue that have their replies: their responses, which of
        them are measured, and whether the one behind them was refused."""
        queue = self.queue
        responses: list[bytes] = []
        measured: list[Unanswered] = []
        while queue and (reply := queue[0].reply) is not None:
            if type(reply) is not Appended or reply.error_code:
                return responses, measured, True
            request = queue.popleft()
            responses.append(request.route.response(request.correlation_id, reply))
            if request.received_ns:
                measured.append(request)
        return responses, measured, False

    def tell_served(self) -> None:
        """Tell the router what was answered since it was last told."""
        fetched = () if self.fetch is None else self.fetch.take_fetched()
        self.channel.send(
            Served(
                self.connection,
                self.request_count,
                self.received_bytes,
                self.sent_bytes,
                tuple(self.timings),
                *fetched,
            )
        )
        self.request_count = self.received_bytes = self.sent_bytes = 0
        self.timings.clear()

    def send_back(self) -> None:
        """Tell the router where it goes on. All requests have their replies."""
        received = self.received
        while len(received) > PIECE_BYTES_MAX:
            self.channel.send(Unread(self.connection, received[:PIECE_BYTES_MAX]))
            received = received[PIECE_BYTES_MAX:]
        answers = tuple(
            (each.correlation_id, each.route.index, each.reply)
            for each in self.queue
            if each.reply is not None
        )
        position = None if self.fetch is None else self.fetch.position
        self.channel.send(
            HandedBack(
                self.connection, received, self.unsent, answers, position, self.is_overloaded
            )
        )


def is_refused(reply: AppendReply | None) -> bool:
    """Whether the router has to answer."""
    return type(reply) is not Appended or bool(reply.error_code)
