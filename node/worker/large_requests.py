"""Requests of handed over connections that are too large for one read.

They are received into memory of the worker, whole and in one piece, so that their batches go into
the log as they are: the turn finds them there like those in a router's arena. A block of the memory
belongs to a request from its first bytes until it is answered. What is not needed any more is
returned to the operating system (`trim`). Called by handed_connections.py.
"""

from struct import Struct
from typing import Final

from odradek.node.bus.arena import UNIT_BYTES, Arena

LARGE_BYTES_MAX: Final = UNIT_BYTES + (64 << 10)
"""Of such a request: Kafka's default of message.max.bytes, and what is around the batch."""
ROOM_BYTES_MAX: Final = 48 << 20
"""Of all such requests of a worker."""
_SHARE_OF_LIMIT: Final = 16
_LENGTH_BYTES: Final = 4
_read_length = Struct(">i").unpack_from


def room_bytes(memory_limit_bytes: int | None, *, worker_count: int) -> int:
    """How many bytes of memory they may take in each worker, by the limit of the container: all
    workers together have a sixteenth of it, but each at least one block."""
    if memory_limit_bytes is None:
        return ROOM_BYTES_MAX
    share = memory_limit_bytes // _SHARE_OF_LIMIT // worker_count
    return max(UNIT_BYTES, min(ROOM_BYTES_MAX, share))


class LargeRequest:
    """The bytes of a request, `[start, start + filled)` of the memory; the first are its length."""

    __slots__ = ("block", "capacity", "filled", "start")

    def __init__(self, block: int, start: int, capacity: int) -> None:
        self.block, self.start, self.capacity = block, start, capacity
        """It is read up to `capacity` bytes: its size if that is known, else that of the last."""
        self.filled = 0

    @property
    def end(self) -> int:
        return self.start + self.filled


class LargeRequests:
    """The memory. A request is released once."""

    def __init__(self, room: int) -> None:
        self._arena = Arena.anonymous(room)
        self.view: Final = self._arena.view

    def begin(self, received: bytes, capacity: int) -> LargeRequest | None:
        """A request of which these bytes have come, up to `capacity`. None if there is no room."""
        block = self._arena.allocate(capacity)
        if block is None:
            return None
        request = LargeRequest(block, self._arena.offset_of(block), capacity)
        request.filled = len(received)
        self.view[request.start : request.end] = received
        return request

    def rest_of(self, request: LargeRequest) -> memoryview:
        """Where its next bytes go: never empty before it is whole."""
        return self.view[request.end : request.start + request.capacity]

    def whole_size(self, request: LargeRequest, bytes_max: int) -> int | None:
        """The bytes of the request with its length, which has come, if it is whole; else 0, and it
        has room for them. None if it cannot have it, or if its length is none, or more than
        `bytes_max`. What follows behind it may have come, too."""
        (length,) = _read_length(self.view, request.start)
        if not 0 <= length <= bytes_max:
            return None
        size: int = _LENGTH_BYTES + length
        if request.filled >= size:
            return size
        if request.capacity < size:
            larger = self.begin(self.bytes_of(request), size)
            if larger is None:
                return None
            self.release(request)
            request.block, request.start = larger.block, larger.start
        request.capacity = size
        return 0

    def bytes_of(self, request: LargeRequest, start: int = 0) -> bytes:
        """What has come of it, from this byte on."""
        return self.view[request.start + start : request.end].tobytes()

    def release(self, request: LargeRequest) -> None:
        """Its bytes are not needed any more."""
        self._arena.release(request.block)

    @property
    def used_bytes(self) -> int:
        """The memory of requests that are not released."""
        return self._arena.used_bytes

    def trim(self) -> None:
        """To be called from time to time."""
        self._arena.trim()

    def close(self) -> None:
        self._arena.close()
