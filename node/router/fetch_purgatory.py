"""Long polls that cost nothing while they wait: who waits for which partition, and until when.

A parked fetch is woken by the worker's notice that one of its partitions moved, by its deadline, or
because its client is gone. The watch flag in the status table is what makes a worker send the
notice; it is set before the last look at the log, so that an append between the look and the flag
cannot be missed. Deadlines are kept in ticks, so that thousands of idle consumers share a timer
and are answered together.

Fetches that would take from each other (ShareFetch) wait in a `ExclusiveWatch`: when there is
something for it, whoever has waited longest is woken, and the next one while there still is
something when that one has looked. A notice or signal reaches everybody who waited at that moment,
or nothing is left: so nobody sleeps beside what it could have, and nobody is woken for what others
have taken. Long lines are passed in turns of the loop.

Invariant: a fetch that is not waiting any more is nowhere in here.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from odradek.node.bus.reply import Reply

Place = tuple[int, int]
"""A partition as the stores know it: (store, store-local number)."""

TICK_S = 0.01
"""A long poll may end this much after its time: a thousand of them end in one turn together."""


WAKES_PER_TURN: Final = 4
"""Of one line: one that looks and takes something needs 0.2 ms, or ten where batches have a single
record each."""


class ExclusiveWatch(NamedTuple):
    """What a fetch waits for that would take it from others."""

    key: Hashable
    place: Place
    has_some: Callable[[], bool]
    """Whether there may be something for who comes first. Cheap; never False where there is."""


class _DelayedFetch:
    """One waiting fetch and where it is noted."""

    __slots__ = ("key", "lines", "owner", "places", "reply", "tick")

    def __init__(
        self,
        key: int,
        owner: int,
        places: tuple[Place, ...],
        lines: tuple[ExclusiveWatch, ...],
        tick: int,
    ) -> None:
        self.key = key
        self.owner = owner
        self.places = places
        self.lines = lines
        self.tick = tick
        self.reply: Reply[bool] = Reply()


class _WaitQueue:
    """Who stands in a line, longest first. Keys grow: who came before `meant` is to be woken while
    there is something."""

    __slots__ = ("has_some", "is_passing", "meant", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, _DelayedFetch] = OrderedDict()
        self.has_some: Callable[[], bool] = bool
        self.is_passing = False
        self.meant = -1

    def next(self) -> _DelayedFetch | None:
        """Whom to wake now."""
        first = next(iter(self.waiting.values()), None)
        if first is None or first.key > self.meant:
            return None
        return first if self.has_some() else None


class FetchPurgatory:
    """Parked fetches. `set_watch(store, number)` arms the worker's notice for a partition."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, set_watch: Callable[[int, int], None]
    ) -> None:
        self._loop = loop
        self._set_watch = set_watch
        self._parked: dict[int, _DelayedFetch] = {}
        self._by_place: dict[Place, dict[int, _DelayedFetch]] = {}
        self._queues: dict[Hashable, _WaitQueue] = {}
        self._exclusive_keys: dict[Place, dict[Hashable, None]] = {}
        self._by_owner: dict[int, dict[int, _DelayedFetch]] = {}
        self._by_tick: dict[int, dict[int, _DelayedFetch]] = {}
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
        has_high_watermark_moved: Callable[[], bool],
        *,
        owner: int = 0,
        lines: Iterable[ExclusiveWatch] = (),
    ) -> Reply[bool]:
        """True when one of `places` may have moved or it is this one's turn in one of `lines`,
        False after `timeout_ms`.

        `has_high_watermark_moved` is asked once after the partitions have been flagged: an append
        that came between the caller's reading and now is seen by it, a later one by the worker's
        notice. `owner` is the connection, for `abandon`.
        """
        tick = int((self._loop.time() + timeout_ms / 1000) / TICK_S) + 1
        parked = _DelayedFetch(next(self._sequence), owner, tuple(places), tuple(lines), tick)
        if self._is_ending:
            parked.reply.resolve(False)
            return parked.reply
        for place in parked.places:
            self._watch(place)[parked.key] = parked
        for line in parked.lines:
            self._watch(line.place)
            self._exclusive_keys.setdefault(line.place, {})[line.key] = None
            queue = self._queues.get(line.key)
            if queue is None:
                queue = self._queues[line.key] = _WaitQueue()
            queue.waiting[parked.key] = parked
            queue.has_some = line.has_some
        self._parked[parked.key] = parked
        self._by_owner.setdefault(owner, {})[parked.key] = parked
        of_tick = self._by_tick.get(tick)
        if of_tick is None:
            self._by_tick[tick] = {parked.key: parked}
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._schedule(tick)
        else:
            of_tick[parked.key] = parked
        if has_high_watermark_moved():
            self._end(parked, True)
        return parked.reply

    def on_advanced(self, store: int, numbers: Iterable[int]) -> None:
        """Wake whoever waits for these partitions. The flag has been taken: a new wait sets it
        again."""
        for number in numbers:
            place = (store, number)
            waiting = self._by_place.pop(place, None)
            lines = self._exclusive_keys.get(place)
            if lines:
                # Before anybody looks: who is not woken waits on.
                self._watch(place)
            for parked in list(waiting.values()) if waiting else ():
                self._end(parked, True)
            for key in list(lines) if lines else ():
                self.on_available(key)

    def on_available(self, key: Hashable) -> None:
        """There may be something for who waits in a line."""
        queue = self._queues.get(key)
        if queue is None:
            return
        queue.meant = next(self._sequence)
        if not queue.is_passing:
            queue.is_passing = True
            self._wake_in_order(queue)

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

    def _watch(self, place: Place) -> dict[int, _DelayedFetch]:
        """Who waits for a partition, which is flagged."""
        waiting = self._by_place.get(place)
        if waiting is None:
            waiting = self._by_place[place] = {}
            self._set_watch(*place)
        return waiting

    def _wake_in_order(self, queue: _WaitQueue) -> None:
        """Wake one after the other: each has looked, and taken what it wants, when it is the next
        one's turn."""
        for _ in range(WAKES_PER_TURN):
            parked = queue.next()
            if parked is None:
                queue.is_passing = False
                return
            self._end(parked, True)
        self._loop.call_soon(self._wake_in_order, queue)

    def _end(self, parked: _DelayedFetch, value: bool) -> None:
        if self._parked.pop(parked.key, None) is None:
            return
        for place in parked.places:
            waiting = self._by_place.get(place)
            if waiting is not None:
                # An empty entry stays until the next notice: its flag in the table is still set.
                waiting.pop(parked.key, None)
        for line in parked.lines:
            self._leave_queue(line, parked)
        of_owner = self._by_owner[parked.owner]
        del of_owner[parked.key]
        if not of_owner:
            del self._by_owner[parked.owner]
        # An empty tick stays until its time: it is one number.
        self._by_tick[parked.tick].pop(parked.key, None)
        parked.reply.resolve(value)

    def _leave_queue(self, line: ExclusiveWatch, parked: _DelayedFetch) -> None:
        queue = self._queues.get(line.key)
        if queue is not None:
            queue.waiting.pop(parked.key, None)
            if queue.waiting:
                return
            del self._queues[line.key]
        lines = self._exclusive_keys.get(line.place)
        if lines is not None:
            lines.pop(line.key, None)
            if not lines:
                del self._exclusive_keys[line.place]

    def _schedule(self, tick: int) -> None:
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
            self._schedule(self._ticks[0])
