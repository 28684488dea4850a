"""A disk that has what was synced, and of the rest what the lot decides.

A write is a change of the durable state. It takes its time, and it counts when whoever asked for it
is told that it is done. A crash before that leaves it undone, or done without anyone knowing; never
half, because the real one commits atomically.
"""

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

S = TypeVar("S")


class Disk(Generic[S]):
    """The disk of one host. `state` is what is durable: what a start finds."""

    __slots__ = ("_pending", "_random", "state", "sync_ms_max")

    def __init__(self, state: S, random: Random) -> None:
        self.state = state
        self.sync_ms_max = 4
        self._random = random
        self._pending: list[Callable[[S], None]] = []

    def begin(self, change: Callable[[S], None]) -> int:
        """A write has begun; how long it will take. Writes are done in their order."""
        self._pending.append(change)
        return int(self._random.random() * (self.sync_ms_max + 1))

    def finish(self) -> None:
        """The oldest write is durable."""
        self._pending.pop(0)(self.state)

    def crash(self) -> None:
        """Of the writes that were not finished, some of the oldest have got through."""
        survivors = self._random.randint(0, len(self._pending))
        for change in self._pending[:survivors]:
            change(self.state)
        self._pending.clear()
