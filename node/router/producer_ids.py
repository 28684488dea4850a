"""Producer ids to give out: a router takes them in blocks from the controller (KIP-730).

An id is given once in the life of the cluster. What is left of a block when the router stops is
lost, which costs nothing. While a block is on its way, everybody who needs an id waits for that
one.
"""

from collections.abc import Awaitable, Callable

from odradek.node.bus.reply import Reply

Allocate = Callable[[], Awaitable[tuple[int, int]]]
"""Asks the controller for a block; gives its first id and their count. Raises ApiError."""


class ProducerIds:
    """The ids of one router."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._is_asking = False
        self._waiting: list[Reply[None]] = []

    async def next_id(self) -> int:
        """An id that nobody else has or will have. Raises ApiError if the controller gives none."""
        while self._next == self._end:
            if self._is_asking:
                reply = Reply[None]()
                self._waiting.append(reply)
                await reply
            else:
                await self._refill()
        taken = self._next
        self._next += 1
        return taken

    async def _refill(self) -> None:
        self._is_asking = True
        try:
            first, count = await self._allocate()
            self._next, self._end = first, first + count
        finally:
            self._is_asking = False
            # Those who waited look again; if there is still nothing, the first of them asks.
            waiting, self._waiting = self._waiting, []
            for reply in waiting:
                reply.resolve(None)
