"""Watches whether the stores of a worker can be written, also while nobody appends.

    event                                                         the store
    ------------------------------------------------------------------------------
    an append or a change of the catalog has failed               has a problem
    its disk has nearly no free space                             has a problem
    its disk has ample free space again                           can be written
    another problem, and a new segment could be created           can be written
    a problem but a full disk, in a log directory beside the      its directory goes offline, until
    data folder                                                   the node is started again

Called by the worker's loop.
"""

from collections.abc import Callable, Container, Mapping

from odradek.node.storage_health import StorageHealth
from odradek.storage.environment import StorageError
from odradek.storage.reserve import DISK_FULL
from odradek.storage.store import Store

CHECK_INTERVAL_MS = 1_000


class StorageMonitor:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        stores: Mapping[int, Store],
        health: StorageHealth,
        take_failure: Callable[[int, StorageError], bool] = lambda _store, _error: False,
    ) -> None:
        """`take_failure(store, error)` may take the log directory of a store offline; it returns
        whether it has. Then its stores are not in `stores` any more."""
        self._stores = stores
        self._health = health
        self._take_failure = take_failure
        self._failed: dict[int, str] = {}
        self._due_ms = 0

    def record_failures(self, failures: dict[int, str]) -> None:
        """Take over the failures of turns, by store, and empty them."""
        for index, failure in failures.items():
            store = self._stores.get(index)
            if store is not None:
                self._set(index, store.disk_problem(was_full=False) or failure)
        failures.clear()

    def tick(self, steady_ms: int, now_ms: int) -> None:
        """Check all stores, if that is due. Raises StorageError if a store must be opened again."""
        if steady_ms < self._due_ms:
            return
        self._due_ms = steady_ms + CHECK_INTERVAL_MS
        for index, store in list(self._stores.items()):
            if index not in self._stores:
                continue  # its log directory has just gone offline
            before = self._failed.get(index)
            problem = store.disk_problem(was_full=before == DISK_FULL)
            if problem is None and before not in (None, DISK_FULL):
                problem = _probe(store, now_ms)
            if problem != before:
                self._set(index, problem)

    def _set(self, index: int, problem: str | None) -> None:
        is_failure = problem not in (None, DISK_FULL)
        if is_failure and self._take_failure(index, StorageError(str(problem))):
            return
        if problem is not None:
            self._failed[index] = problem
        else:
            del self._failed[index]
        self._health.set_problem(f"stores/{index}", problem)

    def keep(self, stores: Container[int]) -> None:
        """Forget the problems of other stores: their log directory is offline."""
        for index in [each for each in self._failed if each not in stores]:
            del self._failed[index]
            self._health.set_problem(f"stores/{index}", None)


def _probe(store: Store, now_ms: int) -> str | None:
    """Write to the store; the problem if that fails."""
    try:
        store.roll(now_ms)
    except StorageError as error:
        if store.sync_failure is not None:
            raise
        return str(error)
    return None
