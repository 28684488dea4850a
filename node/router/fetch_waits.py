"""Long polls that cost nothing while they wait: who waits for which partition, and until when.

A parked fetch is woken by the worker's notice that one of its partitions moved, or by its deadline.
The watch flag in the status table is what makes a worker send the notice; it is set before the last
look at the log, so that an append between the look and the flag cannot be missed. One heap and one
timer serve all of them.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable

from node.bus.reply import Reply

Place = tuple[int, int]
"""A partition as the stores know it: (store, store-local number)."""


class FetchWaits:
    """Parked fetches by partition and by deadline. `set_watch(store, number)` arms the worker's
    notice."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, set_watch: Callable[[int, int], None]
    ) -> None:
        self._loop = loop
        self._set_watch = set_watch
        self._by_place: dict[Place, dict[int, Reply[bool]]] = {}
        self._deadlines: list[tuple[float, int, Reply[bool], tuple[Place, ...]]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_ending = False

    @property
    def parked_count(self) -> int:
        """Fetches that wait now."""
        return sum(1 for _, _, reply, _ in self._deadlines if not reply.is_done)

    def park(
        self, places: Iterable[Place], timeout_ms: int, has_moved: Callable[[], bool]
    ) -> Reply[bool]:
        """True when one of `places` moves, False after `timeout_ms`.

        `has_moved` is asked once after the partitions have been flagged: an append that came
        between the caller's reading and now is seen by it, a later one by the worker's notice.
        """
        reply: Reply[bool] = Reply()
        if self._is_ending:
            reply.resolve(False)
            return reply
        key = next(self._sequence)
        watched = tuple(places)
        for place in watched:
            waiting = self._by_place.get(place)
            if waiting is None:
                self._by_place[place] = {key: reply}
                self._set_watch(*place)
            else:
                waiting[key] = reply
        if has_moved():
            self._forget(key, watched)
            reply.resolve(True)
            return reply
        deadline = self._loop.time() + timeout_ms / 1000
        heapq.heappush(self._deadlines, (deadline, key, reply, watched))
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)
        return reply

    def on_advanced(self, store: int, numbers: Iterable[int]) -> None:
        """Wake whoever waits for these partitions. The flag has been taken: a new wait sets it
        again."""
        for number in numbers:
            waiting = self._by_place.pop((store, number), None)
            if waiting:
                for reply in waiting.values():
                    reply.resolve(True)

    def wake_all(self) -> None:
        """Wake every parked fetch to look again: topics came, went or moved."""
        self._resolve_all(True)

    def end_all(self) -> None:
        """Answer every parked fetch as if its time were up, and park no more: the router stops."""
        self._is_ending = True
        self._resolve_all(False)

    def _resolve_all(self, value: bool) -> None:
        waiting, self._by_place = self._by_place, {}
        for replies in waiting.values():
            for reply in list(replies.values()):
                reply.resolve(value)

    def _forget(self, key: int, places: tuple[Place, ...]) -> None:
        for place in places:
            waiting = self._by_place.get(place)
            if waiting is not None:
                waiting.pop(key, None)
                # An empty entry stays until the next notice: its flag in the table is still set.

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.0005
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].is_done):
            _, key, reply, places = heapq.heappop(deadlines)
            self._forget(key, places)
            reply.resolve(False)
        if deadlines and self._timer is None:
            self._arm(deadlines[0][0])
