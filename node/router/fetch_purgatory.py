"""The fetch purgatory: fetches that wait for `min_bytes`, by partition and deadline.

A delayed fetch is completed by the worker's notice that one of its partitions advanced, by its
deadline, or because its connection closed. The watch flag in the status table makes the worker send
the notice. It is set before the last check of the log, so that an append between check and flag is
not missed. Deadlines are rounded up to ticks: thousands of idle consumers share one timer and are
answered together.

Fetches that compete for records (ShareFetch) wait in a queue, under an `ExclusiveWatch`: when there
is something to acquire, the fetch that has waited longest is woken, and the next one when that one
has taken its share and there is still something. A notice reaches every fetch that waited at that
moment unless the records run out first. Long queues are worked off over several iterations of the
loop.

Invariant: a completed fetch is referenced nowhere here.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from odradek.node.bus.reply import Reply, TracedReply
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.logs import StoreLocation

TICK_S = 0.01
"""The resolution of deadlines: fetches that expire within a tick are answered together."""

_NEVER: Final = -1
"""The tick of what has no deadline."""

WAKES_PER_TURN: Final = 4
"""Of all queues together, per iteration of the loop: a fetch that acquires needs 0.2 ms, or 10 ms
where batches have a single record each. Records of a member that are released can be in thousands
of partitions."""


class ExclusiveWatch(NamedTuple):
    """Records for which fetches compete: those of one share group in one partition."""

    key: Hashable
    location: StoreLocation
    has_records: Callable[[], bool]
    """Whether there may be records for the next fetch. Cheap, and never False if there are."""


@dataclass(slots=True, eq=False)
class _DelayedFetch:
    """One waiting fetch and where it is registered."""

    key: int
    owner: int
    locations: tuple[StoreLocation, ...]
    exclusive_watches: tuple[ExclusiveWatch, ...]
    tick: int
    reply: Reply[bool] = field(default_factory=Reply)


@dataclass(slots=True, eq=False)
class _WaitQueue:
    """The fetches under one watch, in order of arrival. Keys grow: fetches with a key up to
    `wake_limit` are to be woken while there are records."""

    waiting: OrderedDict[int, _DelayedFetch] = field(default_factory=OrderedDict)
    has_records: Callable[[], bool] = bool
    is_waking: bool = False
    wake_limit: int = -1

    def next(self) -> _DelayedFetch | None:
        """The fetch to wake now."""
        first = next(iter(self.waiting.values()), None)
        if first is None or first.key > self.wake_limit:
            return None
        return first if self.has_records() else None


class FetchPurgatory:
    """The waiting fetches of one router. `set_watch` sets the watch flag of (store, number)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, set_watch: Callable[[int, int], None]
    ) -> None:
        self._loop = loop
        self._set_watch = set_watch
        self._parked: dict[int, _DelayedFetch] = {}
        self._by_location: dict[StoreLocation, dict[int, _DelayedFetch]] = {}
        self._queues: dict[Hashable, _WaitQueue] = {}
        self._waking: deque[_WaitQueue] = deque()
        self._is_waking = False
        self._wakes_left = WAKES_PER_TURN
        self._is_turn_scheduled = False
        self._exclusive_keys: dict[StoreLocation, dict[Hashable, None]] = {}
        self._by_owner: dict[int, dict[int, _DelayedFetch]] = {}
        self._by_tick: dict[int, dict[int, _DelayedFetch]] = {}
        self._ticks: list[int] = []
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._wait_ms_max: int | None = None
        """While the router stops: how long a fetch may wait."""

    @property
    def parked_count(self) -> int:
        """Fetches that wait now."""
        return len(self._parked)

    def park(
        self,
        locations: Iterable[StoreLocation],
        timeout_ms: int | None,
        has_advanced: Callable[[], bool],
        *,
        owner: int = 0,
        exclusive_watches: Iterable[ExclusiveWatch] = (),
    ) -> Reply[bool]:
        """Wait. True when one of `locations` may have advanced, or it is this fetch's turn in one
        of `exclusive_watches`; False after `timeout_ms`, if that is not None.

        `has_advanced` is called once after the watch flags are set: it sees an append that came
        after the caller's read, and the worker's notice reports later ones. `owner` is the
        connection, for `abandon`.
        """
        wait_ms_max = self._wait_ms_max
        if wait_ms_max is not None and (timeout_ms is None or timeout_ms > wait_ms_max):
            timeout_ms = wait_ms_max
        tick = _NEVER
        if timeout_ms is not None:
            tick = int((self._loop.time() + timeout_ms / 1000) / TICK_S) + 1
        parked = _DelayedFetch(
            next(self._sequence), owner, tuple(locations), tuple(exclusive_watches), tick
        )
        if RequestTrace.current is not None:
            parked.reply = TracedReply(RequestTrace.current, "fetch_wait")
        if wait_ms_max == 0:
            parked.reply.resolve(False)
            return parked.reply
        for location in parked.locations:
            self._watch(location)[parked.key] = parked
        for watch in parked.exclusive_watches:
            self._watch(watch.location)
            self._exclusive_keys.setdefault(watch.location, {})[watch.key] = None
            queue = self._queues.get(watch.key)
            if queue is None:
                queue = self._queues[watch.key] = _WaitQueue()
            queue.waiting[parked.key] = parked
            queue.has_records = watch.has_records
        self._parked[parked.key] = parked
        self._by_owner.setdefault(owner, {})[parked.key] = parked
        if tick != _NEVER:
            self._end_at(tick, parked)
        if has_advanced():
            self._end(parked, True)
        return parked.reply

    def on_advanced(self, store: int, numbers: Iterable[int]) -> None:
        """Wake the fetches that wait for these partitions. The worker has cleared the watch flag; a
        new wait sets it again."""
        for number in numbers:
            location = (store, number)
            waiting = self._by_location.pop(location, None)
            exclusive_watches = self._exclusive_keys.get(location)
            if exclusive_watches:
                # Before a fetch is woken: those that are not woken keep waiting.
                self._watch(location)
            for parked in list(waiting.values()) if waiting else ():
                self._end(parked, True)
            for key in list(exclusive_watches) if exclusive_watches else ():
                self.on_available(key)

    def on_available(self, key: Hashable) -> None:
        """There may be records for the fetches under a watch."""
        queue = self._queues.get(key)
        if queue is None:
            return
        queue.wake_limit = next(self._sequence)
        if not queue.is_waking:
            queue.is_waking = True
            self._waking.append(queue)
            if not self._is_waking:
                self._wake_in_order()

    def abandon(self, owner: int) -> None:
        """Complete the fetches of a closed connection."""
        for parked in list(self._by_owner.get(owner, {}).values()):
            self._end(parked, False)

    def wake_all(self) -> None:
        """Wake every fetch to read again: topics were created or deleted, or partitions moved."""
        for parked in list(self._parked.values()):
            self._end(parked, True)

    def end_all(self, *, later_wait_ms_max: int = 0) -> None:
        """Expire every fetch, and later ones after this time at the latest: the router stops."""
        self._wait_ms_max = later_wait_ms_max
        for parked in list(self._parked.values()):
            self._end(parked, False)

    def _end_at(self, tick: int, parked: _DelayedFetch) -> None:
        of_tick = self._by_tick.get(tick)
        if of_tick is not None:
            of_tick[parked.key] = parked
            return
        self._by_tick[tick] = {parked.key: parked}
        heapq.heappush(self._ticks, tick)
        if self._timer is None or tick < self._timer_tick:
            self._schedule(tick)

    def _watch(self, location: StoreLocation) -> dict[int, _DelayedFetch]:
        """The fetches that wait for a partition, whose watch flag is set."""
        waiting = self._by_location.get(location)
        if waiting is None:
            waiting = self._by_location[location] = {}
            self._set_watch(*location)
        return waiting

    def _wake_in_order(self) -> None:
        """Wake one fetch after the other, of all queues in turn, as many as this turn may. Each has
        acquired its records before the next is woken."""
        self._is_waking = True
        while self._waking and self._wakes_left:
            queue = self._waking.popleft()
            parked = queue.next()
            if parked is None:
                queue.is_waking = False
                continue
            self._wakes_left -= 1
            self._waking.append(queue)
            self._end(parked, True)
        self._is_waking = False
        if self._wakes_left < WAKES_PER_TURN and not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_turn_scheduled = False
        self._wakes_left = WAKES_PER_TURN
        self._wake_in_order()

    def _end(self, parked: _DelayedFetch, value: bool) -> None:
        if self._parked.pop(parked.key, None) is None:
            return
        for location in parked.locations:
            waiting = self._by_location.get(location)
            if waiting is not None:
                # An empty entry stays until the next notice: the watch flag is still set.
                waiting.pop(parked.key, None)
        for watch in parked.exclusive_watches:
            self._leave_queue(watch, parked)
        of_owner = self._by_owner[parked.owner]
        del of_owner[parked.key]
        if not of_owner:
            del self._by_owner[parked.owner]
        if parked.tick != _NEVER:
            # An empty tick stays until it expires: it is one number.
            self._by_tick[parked.tick].pop(parked.key, None)
        parked.reply.resolve(value)

    def _leave_queue(self, watch: ExclusiveWatch, parked: _DelayedFetch) -> None:
        queue = self._queues.get(watch.key)
        if queue is not None:
            queue.waiting.pop(parked.key, None)
            if queue.waiting:
                return
            del self._queues[watch.key]
        exclusive_watches = self._exclusive_keys.get(watch.location)
        if exclusive_watches is not None:
            exclusive_watches.pop(watch.key, None)
            if not exclusive_watches:
                del self._exclusive_keys[watch.location]

    def _schedule(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_at(tick * TICK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # The loop's clock counts milliseconds: a tick within this one has expired.
        now = (self._loop.time() + 0.001) / TICK_S
        while self._ticks and self._ticks[0] <= now:
            tick = heapq.heappop(self._ticks)
            due = self._by_tick[tick]
            for parked in list(due.values()):
                self._end(parked, False)
            del self._by_tick[tick]
        if self._ticks and self._timer is None:
            self._schedule(self._ticks[0])
