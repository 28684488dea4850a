"""Long lists in turns of the loop, for handlers of requests that may name very many things.

A router has one loop: who asks for 20,000 things must not keep everybody else waiting for all of
them. Counted and not timed, so that short requests never wait for a turn. Called by handlers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_PER_TURN: Final = 500
"""A few milliseconds, at some ten microseconds each."""


class LoopYielder:
    """For several lists that are done one within the other: counts what is in all of them."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    async def step(self) -> None:
        """Before each item; others have a turn after every ITEMS_PER_TURN."""
        if self._count and self._count % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
        self._count += 1


async def iterate_cooperatively(items: Iterable[T]) -> AsyncIterator[T]:
    """The items in order, at a pace of their own."""
    pace = LoopYielder()
    for item in items:
        await pace.step()
        yield item
