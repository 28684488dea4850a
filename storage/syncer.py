"""A thread that syncs a store's segments while the owner's loop continues.

fdatasync runs without the interpreter lock, so that the disk does not block the loop. The thread
syncs one segment at a time. Owned and called by one store.
"""

import threading
from queue import SimpleQueue

from odradek.storage.environment import StorageError
from odradek.storage.segment import Segment


class Syncer:
    """One sync at a time. `request`, then `poll` until it is no longer busy."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[Segment | None] = SimpleQueue()
        self._done: SimpleQueue[StorageError | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_busy = False

    def request(self, segment: Segment) -> None:
        """Sync the turns committed to the segment so far. Not while busy."""
        assert not self.is_busy
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="syncer", daemon=True)
            self._thread.start()
        self.is_busy = True
        self._requests.put(segment)

    def poll(self) -> None:
        """Finish a sync that has ended. Raises StorageError if it failed."""
        if self.is_busy and not self._done.empty():
            error = self._done.get()
            self.is_busy = False
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait and stop the thread. An error of the last sync is ignored: the caller syncs
        again."""
        if self.is_busy:
            self._done.get()
            self.is_busy = False
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            segment = self._requests.get()
            if segment is None:
                return
            error: StorageError | None = None
            try:
                segment.sync()
            except StorageError as failure:
                error = failure
            # The thread must not keep the segment mapped until the next request.
            del segment
            self._done.put(error)
