"""Schedules the work of stores between turns: due syncs, and maintenance in slices of milliseconds.

The maintenance of a store (retention, rewriting, compaction) is a generator. One runs at a time,
and requests come before its next slice."""

from collections.abc import Callable, Iterator, Mapping

from odradek.storage.environment import StorageError
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.store import Store

CHECK_INTERVAL_MS = 1_000
"""How often due maintenance of each store is started."""
RELEASE_INTERVAL_MS = 5_000
"""How often the pages of segments are unmapped."""
_WAIT_FOR_DISK_MS = 10
_SET_BACK_MS = 1_000
"""A clock that goes back by more than this has been set. Smaller steps are waited for."""
_SYNCED_WITHIN_MS = 60_000
"""When the clock was set back, tasks that were due within this time run at once."""


class StoreScheduler:
    """Runs the tasks of all stores of a worker, one slice at a time."""

    def __init__(
        self,
        stores: Mapping[int, Store],
        now_ms: int,
        take_failure: Callable[[int, StorageError], bool] = lambda _store, _error: False,
    ) -> None:
        """`take_failure(store, error)` may remove a store that has failed; it returns whether it
        has. Otherwise the error is raised."""
        self._stores = stores
        self._take_failure = take_failure
        self._queue: list[int] = []
        self._running_store = 0
        self._running: Iterator[bool] | None = None
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        self._release_ms = now_ms
        self._resume_ms = self._seen_ms = now_ms

    def run_slice(self, now_ms: int) -> None:
        """Run what is due now, for a few milliseconds at most."""
        if now_ms < self._seen_ms - _SET_BACK_MS:
            self._begin_anew(now_ms)
        self._seen_ms = now_ms
        self._run_due_tasks(now_ms)
        if self._running_store not in self._stores:
            self._running = None
        try:
            self._run_maintenance(now_ms)
        except StorageError as error:
            if not self._take_failure(self._running_store, error):
                raise
            self._running = None

    def _run_due_tasks(self, now_ms: int) -> None:
        for index, store in list(self._stores.items()):
            if index not in self._stores:
                continue  # its log directory has just failed
            try:
                store.run_due_tasks(now_ms)
            except StorageError as error:
                if not self._take_failure(index, error):
                    raise

    def _run_maintenance(self, now_ms: int) -> None:
        if self._running is None:
            self._start(now_ms)
        if self._running is not None and now_ms >= self._resume_ms:
            is_waiting_for_disk = next(self._running, None)
            if is_waiting_for_disk is None:
                self._running = None
            elif is_waiting_for_disk is False:
                self._resume_ms = now_ms + _WAIT_FOR_DISK_MS

    def _begin_anew(self, now_ms: int) -> None:
        """The clock was set back: tasks must not wait until the old time is reached again."""
        self._run_due_tasks(self._seen_ms + _SYNCED_WITHIN_MS)
        self._next_check_ms = self._release_ms = self._resume_ms = now_ms

    def next_ms(self, now_ms: int) -> int:
        """When `run_slice` must be called next. At or before `now_ms`: at once."""
        if self._running is not None:
            return self._resume_ms
        if self._queue:
            return now_ms
        due_ms = min(store.next_deadline_ms() for store in self._stores.values())
        # A task that is still due after a slice waits for the sync thread.
        return min(self._next_check_ms, max(due_ms, now_ms + _WAIT_FOR_DISK_MS))

    def _start(self, now_ms: int) -> None:
        if not self._queue and now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + CHECK_INTERVAL_MS
            if now_ms >= self._release_ms:
                self._release_ms = now_ms + RELEASE_INTERVAL_MS
                MAPPED_PAGES.release()
            self._queue = list(self._stores)
        while self._queue and self._running is None:
            self._running_store = self._queue.pop()
            store = self._stores.get(self._running_store)
            self._running = store.maintenance(now_ms) if store is not None else None
            self._resume_ms = now_ms
