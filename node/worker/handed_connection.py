"""One connection that a router has handed over, and the requests that are read from it. See
handed_connections.py."""

import socket
from collections import deque
from struct import Struct
from typing import Final

import msgspec

from odradek.node.bus.connection_handover import HandOver, HandoverChannel
from odradek.node.bus.messages import Appended, AppendReply
from odradek.node.bus.produce_frames import PREFIX_AT
from odradek.node.worker.handed_fetches import HandedFetch

_LENGTH_BYTES: Final = 4


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


class Unanswered(msgspec.Struct, eq=False):
    """A request in its connection's queue."""

    handed: "HandedConnection"
    route: Route
    correlation_id: int
    received_ns: int
    """0 if it is not measured."""
    done_ns: int = 0
    reply: AppendReply | None = None


class HandedConnection:
    """One connection that this worker serves."""

    __slots__ = (
        "channel",
        "connection",
        "fetch",
        "has_left",
        "is_active",
        "is_gone",
        "is_paused",
        "key_and_version",
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
        self.unsent = b""
        self.is_active = True
        self.is_paused = False
        self.has_left = False
        """It is not read any more, and handed back when the queue allows."""
        self.is_gone = False
        """It was handed back, or forgotten."""
        self.request_count = self.received_bytes = self.sent_bytes = 0
        self.timings: list[tuple[int, int, int]] = []
