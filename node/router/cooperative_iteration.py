"""Loops over long lists that yield to the event loop, for requests that name very many items.

A router has one loop: a request for 20,000 items must not block all others. Items are counted, not
timed, so that short requests never yield. Called by handlers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_PER_TURN: Final = 500
"""A few milliseconds, at about ten microseconds each."""


class LoopYielder:
    """For nested loops: counts the items of all of them."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    async def step(self) -> None:
        """Call before each item. Yields to the loop after every ITEMS_PER_TURN."""
        if self._count and self._count % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
        self._count += 1


async def iterate_cooperatively(items: Iterable[T]) -> AsyncIterator[T]:
    """The items in order. Yields to the loop after every ITEMS_PER_TURN."""
    pace = LoopYielder()
    for item in items:
        await pace.step()
        yield item
