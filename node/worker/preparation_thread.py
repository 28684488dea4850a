"""A thread that prepares large batches of clients, so that no turn waits for them.

A turn does the first steps of storage/client_batches.py itself, and passes the batch on if it takes
long. The thread works on two at a time, in slices, so that a small one does not wait for a large
one. Between two steps, of which none takes longer than a millisecond, it gives way to the turns.

The owner polls `fileno` and calls `take`. The thread is a daemon and starts with the first batch.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.storage.validation import BatchRejectedError

T = TypeVar("T")

ACTIVE_COUNT_MAX = 2
"""As many batches are in preparation at a time: each holds some decompressed bytes."""
_SLICE_COST = 5_000_000


class Preparation(Generic[T]):
    """The remaining steps of a batch, of which `subject` is the owner's. `rejection` is set when it
    is done, if the batch is refused."""

    __slots__ = ("failure", "rejection", "steps", "subject")

    def __init__(self, subject: T, steps: Iterator[int]) -> None:
        self.subject = subject
        self.steps = steps
        self.rejection: BatchRejectedError | None = None
        self.failure: BaseException | None = None

    def run(self, cost_max: int) -> bool:
        """Do steps that cost about `cost_max` nanoseconds. True when all are done."""
        cost = 0
        try:
            for step in self.steps:
                cost += step
                if cost > cost_max:
                    return False
        except BatchRejectedError as rejected:
            self.rejection = rejected
        except ProtocolError as error:
            self.rejection = BatchRejectedError(str(error), ErrorCode.CORRUPT_MESSAGE)
        except BaseException as error:
            # A bug of ours: the owner's, whose exception it becomes in `take`.
            self.failure = error
        return True


class PreparationThread(Generic[T]):
    """See the module's docstring. `settle` is called once in the thread, before the first batch."""

    def __init__(self, settle: Callable[[], None] | None = None) -> None:
        self._settle = settle
        self._submitted: SimpleQueue[Preparation[T]] = SimpleQueue()
        self._done: deque[Preparation[T]] = deque()
        self._thread: threading.Thread | None = None
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A thread that was started keeps this object, and so the pipe it writes to.
        weakref.finalize(self, _close, self._reading, self._writing).atexit = False
        self._lock = threading.Lock()
        self.count = 0
        """Batches that were submitted and not taken."""

    def fileno(self) -> int:
        """Readable when a batch is done."""
        return self._reading

    def submit(self, preparation: Preparation[T]) -> None:
        """Do the remaining steps. Any thread may call it."""
        with self._lock:
            self.count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)
                self._thread.start()
        self._submitted.put(preparation)

    def take(self) -> list[Preparation[T]]:
        """The batches that are done since the last call. Raises what a bug has raised."""
        if not self._done:
            return []
        with suppress(BlockingIOError):
            os.read(self._reading, 4_096)
        done = []
        while self._done:
            preparation = self._done.popleft()
            with self._lock:
                self.count -= 1
            if preparation.failure is not None:
                raise preparation.failure
            done.append(preparation)
        return done

    def _run(self) -> None:
        if self._settle is not None:
            self._settle()
        active: deque[Preparation[T]] = deque()
        while True:
            while not active or (len(active) < ACTIVE_COUNT_MAX and not self._submitted.empty()):
                active.append(self._submitted.get())
            preparation = active.popleft()
            if preparation.run(_SLICE_COST):
                self._done.append(preparation)
                with suppress(OSError):
                    os.write(self._writing, b"!")
            else:
                active.append(preparation)
            del preparation


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
