"""Keyed deadlines, and which of them is next.

Heartbeats move the deadlines of sessions thousands of times a second, and these timers rarely
expire. So a later deadline changes one dictionary entry only. The heap keeps the old, earlier
entry; when its time has come it is put back with the true deadline: once in a session, not with
every heartbeat. Invariant: every timer that is set has exactly one current heap entry, at or before
its deadline. Called by `runtime`.
"""

import heapq
from typing import Final

from odradek.coordinator.outcome import TimerKey

_LOOK_AHEAD_MS: Final = 1_000
"""Moved entries that expire within this time are put back together, so that members with an
interval of a second do not cause one wake-up each."""


class _Entry:
    """A set timer: its deadline, and the deadline of its current heap entry."""

    __slots__ = ("deadline_ms", "heap_deadline_ms", "token")

    def __init__(self, deadline_ms: int, token: int) -> None:
        self.deadline_ms = deadline_ms
        self.heap_deadline_ms = deadline_ms
        self.token = token


class Timers:
    """The timers of one shard. Times are absolute milliseconds."""

    __slots__ = ("_entries", "_heap", "_token")

    def __init__(self) -> None:
        self._entries: dict[TimerKey, _Entry] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._token = 0

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        """Set or move the timer."""
        entry = self._entries.get(key)
        if entry is not None and deadline_ms >= entry.heap_deadline_ms:
            entry.deadline_ms = deadline_ms
            return
        self._push(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        """Cancel the timer; its heap entry is skipped later."""
        self._entries.pop(key, None)

    def next_check_ms(self) -> int | None:
        """When to call `pop_due` next: at the earliest deadline or before it; None for never.

        Constant time.
        """
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Remove and return one expired timer, the earliest first."""
        self._settle(now_ms + _LOOK_AHEAD_MS)
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._entries[key]
        return key

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        self._token += 1
        self._entries[key] = _Entry(deadline_ms, self._token)
        heapq.heappush(self._heap, (deadline_ms, self._token, key))
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [(e.deadline_ms, e.token, k) for k, e in self._entries.items()]
            for entry in self._entries.values():
                entry.heap_deadline_ms = entry.deadline_ms
            heapq.heapify(self._heap)

    def _settle(self, until_ms: int) -> None:
        """Clean the top of the heap: until it is a current entry at its true deadline, or one
        beyond `until_ms`."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            deadline_ms, token, key = heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.token != token:
                heapq.heappop(heap)
            elif entry.deadline_ms > deadline_ms:
                entry.heap_deadline_ms = entry.deadline_ms
                heapq.heapreplace(heap, (entry.deadline_ms, token, key))
            else:
                return
