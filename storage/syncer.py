"""A thread that syncs a store's segments while the owner's loop continues.

fdatasync runs without the interpreter lock, so that the disk does not block the loop. The thread
syncs one segment at a time. Between two syncs it has the operating system begin to write what has
changed. Owned and called by one store.

The store's thread keeps the segment until the sync has ended, and drops it. A segment is closed
with its last reference, without the interpreter lock too: were that the syncer's, the store could
not open the segment again at that moment.
"""

import threading
from pathlib import Path
from queue import SimpleQueue

from odradek.storage.environment import StorageError, start_writeback
from odradek.storage.segment import Segment


class Syncer:
    """One sync at a time. `request`, then `poll` until it is no longer busy."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[Segment | Path | None] = SimpleQueue()
        self._done: SimpleQueue[StorageError | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._segment: Segment | None = None
        self._is_starting_writeback = False

    @property
    def is_busy(self) -> bool:
        """A sync was requested and its end was not polled yet."""
        return self._segment is not None

    def request(self, segment: Segment) -> None:
        """Sync the turns committed to the segment so far. Not while busy."""
        assert not self.is_busy
        self._segment = segment
        self._put(segment)

    def start_writeback(self, path: Path) -> bool:
        """Begin to write the file's changed pages, after a sync that is under way. False, and
        nothing happens, if the thread has not come to the last such request yet."""
        if self._is_starting_writeback:
            return False
        self._is_starting_writeback = True
        self._put(path)
        return True

    def poll(self) -> None:
        """Finish a sync that has ended. Raises StorageError if it failed."""
        if self.is_busy and not self._done.empty():
            error = self._done.get()
            self._segment = None
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait and stop the thread. An error of the last sync is ignored: the caller syncs
        again."""
        if self.is_busy:
            self._done.get()
            self._segment = None
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, request: Segment | Path) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="syncer", daemon=True)
            self._thread.start()
        self._requests.put(request)

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            if request is None:
                return
            if isinstance(request, Path):
                start_writeback(request)
                self._is_starting_writeback = False
                continue
            error: StorageError | None = None
            try:
                request.sync()
            except StorageError as failure:
                error = failure
            del request  # before the owner drops it
            self._done.put(error)
