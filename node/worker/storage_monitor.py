"""Watches whether the stores of a worker can be written, also while nobody appends.

    event                                                         the store
    ------------------------------------------------------------------------------
    an append or a change of the catalog has failed               has a problem
    its disk has nearly no free space                             has a problem
    its disk has ample free space again                           can be written
    another problem, and a new segment could be created           can be written

Called by the worker's loop.
"""

from collections.abc import Mapping

from odradek.node.storage_health import StorageHealth
from odradek.storage.environment import StorageError
from odradek.storage.reserve import DISK_FULL
from odradek.storage.store import Store

CHECK_INTERVAL_MS = 1_000


class StorageMonitor:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(self, stores: Mapping[int, Store], health: StorageHealth) -> None:
        self._stores = stores
        self._health = health
        self._failed: dict[int, str] = {}
        self._due_ms = 0

    def record_failures(self, failures: dict[int, str]) -> None:
        """Take over the failures of turns, by store, and empty them."""
        for index, failure in failures.items():
            self._set(index, self._stores[index].disk_problem(was_full=False) or failure)
        failures.clear()

    def tick(self, steady_ms: int, now_ms: int) -> None:
        """Check all stores, if that is due. Raises StorageError if a store must be opened again."""
        if steady_ms < self._due_ms:
            return
        self._due_ms = steady_ms + CHECK_INTERVAL_MS
        for index, store in self._stores.items():
            before = self._failed.get(index)
            problem = store.disk_problem(was_full=before == DISK_FULL)
            if problem is None and before not in (None, DISK_FULL):
                problem = _probe(store, now_ms)
            if problem != before:
                self._set(index, problem)

    def _set(self, index: int, problem: str | None) -> None:
        if problem is not None:
            self._failed[index] = problem
        else:
            del self._failed[index]
        self._health.set_problem(f"stores/{index}", problem)


def _probe(store: Store, now_ms: int) -> str | None:
    """Write to the store; the problem if that fails."""
    try:
        store.roll(now_ms)
    except StorageError as error:
        if store.sync_failure is not None:
            raise
        return str(error)
    return None
