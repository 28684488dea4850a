"""What a worker does between turns: due syncs, and maintenance in slices of a few milliseconds.

Maintenance of a store (retention, rewriting, compaction) is a generator that yields often; one runs
at a time, and every turn of requests comes before its next slice. When nothing is due the worker
sleeps.
"""

from collections.abc import Iterator, Mapping

from odradek.storage.store import Store

CHECK_INTERVAL_MS = 1_000
"""How often a store is asked whether anything is due; the answer costs a few comparisons."""
_WAIT_FOR_DISK_MS = 10
_SET_BACK_MS = 1_000
"""By which a clock must go back to have been set: less than that is waited for."""
_SYNCED_WITHIN_MS = 60_000
"""What was due so soon after the clock was set back is done at once."""


class StoreScheduler:
    """The duties of all stores of a worker, one slice at a time."""

    def __init__(self, stores: Mapping[int, Store], now_ms: int) -> None:
        self._stores = stores
        self._queue: list[Store] = []
        self._running: Iterator[bool] | None = None
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        self._resume_ms = self._seen_ms = now_ms

    def run_slice(self, now_ms: int) -> None:
        """Do what is due now, for a few milliseconds at most."""
        if now_ms < self._seen_ms - _SET_BACK_MS:
            self._begin_anew(now_ms)
        self._seen_ms = now_ms
        for store in self._stores.values():
            store.run_due_tasks(now_ms)
        if self._running is None:
            self._start(now_ms)
        if self._running is not None and now_ms >= self._resume_ms:
            is_waiting_for_disk = next(self._running, None)
            if is_waiting_for_disk is None:
                self._running = None
            elif is_waiting_for_disk is False:
                self._resume_ms = now_ms + _WAIT_FOR_DISK_MS

    def _begin_anew(self, now_ms: int) -> None:
        """The clock was set back: what was due soon must not wait until it is as late again."""
        for store in self._stores.values():
            store.run_due_tasks(self._seen_ms + _SYNCED_WITHIN_MS)
        self._next_check_ms = self._resume_ms = now_ms

    def next_ms(self, now_ms: int) -> int:
        """When `run_slice` should be called next, at the latest; at or before `now_ms`: at once."""
        if self._running is not None:
            return self._resume_ms
        if self._queue:
            return now_ms
        due_ms = min(store.next_deadline_ms() for store in self._stores.values())
        # What is overdue after a slice waits for a sync in its thread.
        return min(self._next_check_ms, max(due_ms, now_ms + _WAIT_FOR_DISK_MS))

    def _start(self, now_ms: int) -> None:
        if not self._queue and now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + CHECK_INTERVAL_MS
            self._queue = list(self._stores.values())
        while self._queue and self._running is None:
            self._running = self._queue.pop().maintenance(now_ms)
            self._resume_ms = now_ms
