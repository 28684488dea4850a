"""One helper thread that does a piece of work beside its owner, hand over and back.

An executor with futures does the same for several times the price, and a turn hands work over
thousands of times a second. The thread is started with the first piece and is a daemon: a worker
leaves by `os._exit` anyway.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class OffloadThread:
    """`start` a piece of work, do something else, `wait`: strictly in turns, by one owner.

    `settle` is called once, first, in the thread.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Have it done. `wait` must follow before the next."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="helper", daemon=True)
            self._thread.start()
        self._work.put(work)

    def wait(self) -> None:
        """Return when it is done; raises what it raised."""
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
