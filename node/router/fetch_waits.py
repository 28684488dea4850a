"""Long polls that cost nothing while they wait: who waits for which partition, and until when.

A parked fetch is woken by the worker's notice that one of its partitions moved, by its deadline, or
because its client is gone. The watch flag in the status table is what makes a worker send the
notice; it is set before the last look at the log, so that an append between the look and the flag
cannot be missed. Deadlines are kept in ticks, so that thousands of idle consumers share a timer
and are answered together. Invariant: a fetch that is not waiting any more is nowhere in here.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable

from node.bus.reply import Reply

Place = tuple[int, int]
"""A partition as the stores know it: (store, store-local number)."""

TICK_S = 0.01
"""A long poll may end this much after its time: a thousand of them end in one turn together."""


class _Parked:
    """One waiting fetch and where it is noted."""

    __slots__ = ("key", "owner", "places", "reply", "signals", "tick")

    def __init__(
        self,
        key: int,
        owner: int,
        places: tuple[Place, ...],
        signals: tuple[Hashable, ...],
        tick: int,
    ) -> None:
        self.key = key
        self.owner = owner
        self.places = places
        self.signals = signals
        self.tick = tick
        self.reply: Reply[bool] = Reply()


class FetchWaits:
    """Parked fetches. `set_watch(store, number)` arms the worker's notice for a partition."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, set_watch: Callable[[int, int], None]
    ) -> None:
        self._loop = loop
        self._set_watch = set_watch
        self._parked: dict[int, _Parked] = {}
        self._by_place: dict[Place, dict[int, _Parked]] = {}
        self._by_signal: dict[Hashable, dict[int, _Parked]] = {}
        self._by_owner: dict[int, dict[int, _Parked]] = {}
        self._by_tick: dict[int, dict[int, _Parked]] = {}
        self._ticks: list[int] = []
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._is_ending = False

    @property
    def parked_count(self) -> int:
        """Fetches that wait now."""
        return len(self._parked)

    def park(
        self,
        places: Iterable[Place],
        timeout_ms: int,
        has_moved: Callable[[], bool],
        *,
        owner: int = 0,
        signals: Iterable[Hashable] = (),
    ) -> Reply[bool]:
        """True when one of `places` may have moved or one of `signals` is given, False after
        `timeout_ms`.

        `has_moved` is asked once after the partitions have been flagged: an append that came
        between the caller's reading and now is seen by it, a later one by the worker's notice.
        `owner` is the connection, for `abandon`.
        """
        tick = int((self._loop.time() + timeout_ms / 1000) / TICK_S) + 1
        parked = _Parked(next(self._sequence), owner, tuple(places), tuple(signals), tick)
        if self._is_ending:
            parked.reply.resolve(False)
            return parked.reply
        for place in parked.places:
            waiting = self._by_place.get(place)
            if waiting is None:
                self._by_place[place] = {parked.key: parked}
                self._set_watch(*place)
            else:
                waiting[parked.key] = parked
        for signal in parked.signals:
            self._by_signal.setdefault(signal, {})[parked.key] = parked
        self._parked[parked.key] = parked
        self._by_owner.setdefault(owner, {})[parked.key] = parked
        of_tick = self._by_tick.get(tick)
        if of_tick is None:
            self._by_tick[tick] = {parked.key: parked}
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._arm(tick)
        else:
            of_tick[parked.key] = parked
        if has_moved():
            self._end(parked, True)
        return parked.reply

    def on_advanced(self, store: int, numbers: Iterable[int]) -> None:
        """Wake whoever waits for these partitions. The flag has been taken: a new wait sets it
        again."""
        for number in numbers:
            waiting = self._by_place.pop((store, number), None)
            if waiting:
                for parked in list(waiting.values()):
                    self._end(parked, True)

    def on_signal(self, signal: Hashable) -> None:
        """Wake whoever waits for this, and nobody else who waits for the same partition."""
        for parked in list(self._by_signal.get(signal, {}).values()):
            self._end(parked, True)

    def abandon(self, owner: int) -> None:
        """The connection is gone: nobody waits for its fetches any more."""
        for parked in list(self._by_owner.get(owner, {}).values()):
            self._end(parked, False)

    def wake_all(self) -> None:
        """Wake every parked fetch to look again: topics came, went or moved."""
        for parked in list(self._parked.values()):
            self._end(parked, True)

    def end_all(self) -> None:
        """Answer every parked fetch as if its time were up, and park no more: the router stops."""
        self._is_ending = True
        for parked in list(self._parked.values()):
            self._end(parked, False)

    def _end(self, parked: _Parked, value: bool) -> None:
        if self._parked.pop(parked.key, None) is None:
            return
        for place in parked.places:
            waiting = self._by_place.get(place)
            if waiting is not None:
                # An empty entry stays until the next notice: its flag in the table is still set.
                waiting.pop(parked.key, None)
        for signal in parked.signals:
            waiting = self._by_signal.get(signal)
            if waiting is not None:
                waiting.pop(parked.key, None)
                if not waiting:
                    del self._by_signal[signal]
        of_owner = self._by_owner[parked.owner]
        del of_owner[parked.key]
        if not of_owner:
            del self._by_owner[parked.owner]
        # An empty tick stays until its time: it is one number.
        self._by_tick[parked.tick].pop(parked.key, None)
        parked.reply.resolve(value)

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # The loop's clock counts milliseconds: what is due within this one is due.
        now = (self._loop.time() + 0.001) / TICK_S
        while self._ticks and self._ticks[0] <= now:
            tick = heapq.heappop(self._ticks)
            due = self._by_tick[tick]
            for parked in list(due.values()):
                self._end(parked, False)
            del self._by_tick[tick]
        if self._ticks and self._timer is None:
            self._arm(self._ticks[0])
