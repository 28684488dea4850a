"""Loops over long lists that yield to the event loop, for requests that name very many items.

A router has one loop: a request for 20,000 items must not block all others. Items are counted, not
timed, so that short requests never yield. Called by the dispatcher, which decodes large requests
and encodes long responses in slices, and by handlers.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

ITEMS_PER_TURN: Final = 100
"""A few milliseconds, at 10 to 50 microseconds each."""


class LongRequest(Protocol):
    """The context of a request. `is_long` says that its response is encoded in slices."""

    is_long: bool


class LoopYielder:
    """For nested loops: counts the items of all of them. Once it yields, `request` is long."""

    __slots__ = ("_count", "_request")

    def __init__(self, request: LongRequest | None = None) -> None:
        self._count = 0
        self._request = request

    async def step(self) -> None:
        """Call before each item. Yields to the loop after every ITEMS_PER_TURN."""
        if self._count and self._count % ITEMS_PER_TURN == 0:
            if self._request is not None:
                self._request.is_long = True
            await asyncio.sleep(0)
        self._count += 1


async def iterate_cooperatively(
    items: Iterable[T], request: LongRequest | None = None
) -> AsyncIterator[T]:
    """The items in order. Yields to the loop after every ITEMS_PER_TURN."""
    pace = LoopYielder(request)
    for item in items:
        await pace.step()
        yield item


async def run_in_slices(slices: Generator[None, None, T]) -> T:
    """The result of a generator that yields often. Each time it does, so does the loop."""
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)
