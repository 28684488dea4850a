"""The thread in which the metadata log is synced, so that the controller's loop need not wait.

Jobs are done one after the other, in the order in which they were given. What a job raises is
handed back and not raised there. One owner gives jobs and takes what has been done; between the two
the log is the thread's.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class DiskThread:
    """See the module's docstring. Readable (`fileno`) when a job has been done."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: SimpleQueue[Exception | None] = SimpleQueue()
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """What a poller watches."""
        return self._reading

    def submit(self, job: Job) -> None:
        """Have it done."""
        self._jobs.put(job)

    def take_result(self) -> tuple[bool, Exception | None]:
        """Whether a job has been done since the last call, and what it raised."""
        if self._done.empty():
            return False, None
        os.read(self._reading, 1)
        return True, self._done.get()

    def wait_result(self) -> tuple[bool, Exception | None]:
        """Like `take_result`, when the job that is under way has been done."""
        error = self._done.get()
        os.read(self._reading, 1)
        return True, error

    def close(self) -> None:
        """Finish what was given, and end."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self._reading)
        os.close(self._writing)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: Exception | None = None
            try:
                job()
            except Exception as raised:
                error = raised
            os.write(self._writing, b"!")
            self._done.put(error)
