"""A second thread that runs one callable at a time for its owner.

It costs a fraction of an executor with futures, and a turn uses it thousands of times a second. The
thread is a daemon and is started with the first callable.
"""

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

OFFLOADED_BYTES_MIN = 192 << 10
"""The least work for the offload thread. Waking it costs as much as a few dozen KiB, and the client
may need the processor more: see ADR 5."""


def offloaded_share(sizes: Mapping[int, int]) -> set[int]:
    """Of the bytes for each store, the stores with about half of them, for the thread; or none."""
    total = sum(sizes.values())
    if len(sizes) < 2 or total < 2 * OFFLOADED_BYTES_MIN:
        return set()
    share: set[int] = set()
    rest = total // 2
    for store in sorted(sizes, key=sizes.__getitem__):
        if sizes[store] <= rest:
            share.add(store)
            rest -= sizes[store]
    return share if total // 2 - rest >= OFFLOADED_BYTES_MIN else set()


class OffloadThread:
    """`start` a callable, then `wait` for it. For one owner.

    `settle` is called once in the thread, before the first callable.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread. `wait` must be called before the next `start`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="helper", daemon=True)
            self._thread.start()
        self._work.put(work)

    def wait(self) -> None:
        """Return when `work` is done. Raises its exception."""
        outcome = self._outcomes.get()
        if outcome is not None:
            raise outcome

    def _run(self) -> None:
        is_settled = False
        while True:
            work = self._work.get()
            try:
                if not is_settled:
                    self._settle()
                    is_settled = True
                work()
            except BaseException as error:
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)
            del work
