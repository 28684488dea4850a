"""A disk that keeps synced writes, and a random part of the others.

A write changes the durable state. It takes time, and it counts once its completion is reported. A
crash before that leaves it undone, or done without a report; never half done, because the real one
commits atomically.
"""

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

S = TypeVar("S")


class Disk(Generic[S]):
    """The disk of one host. `state` is what is durable: a start finds it."""

    __slots__ = ("_pending", "_random", "state", "sync_ms_max")

    def __init__(self, state: S, random: Random) -> None:
        self.state = state
        self.sync_ms_max = 4
        self._random = random
        self._pending: list[Callable[[S], None]] = []

    def begin(self, change: Callable[[S], None]) -> int:
        """Begin a write; returns its duration. Writes complete in order."""
        self._pending.append(change)
        return int(self._random.random() * (self.sync_ms_max + 1))

    def finish(self) -> None:
        """The oldest write is durable."""
        self._pending.pop(0)(self.state)

    def crash(self) -> None:
        """Of the unfinished writes, some of the oldest have become durable."""
        survivors = self._random.randint(0, len(self._pending))
        for change in self._pending[:survivors]:
            change(self.state)
        self._pending.clear()
