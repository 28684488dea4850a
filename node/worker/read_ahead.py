"""A thread that reads the next slice of a log before the worker's loop does.

What was not read for long is on the disk only, and the loop would wait for each of its pages: 10 ms
for 512 KiB on a fast disk, far more on a slow one. LMDB reads without the interpreter lock. What
the thread reads is dropped: the loop reads the same again, from memory. Owned and called by
`ReplicaMoves`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader

_Location = tuple[int, int]


class LogSlice(NamedTuple):
    """Batches of a partition: those from `offset` that fit into `max_bytes`."""

    location: _Location
    offset: int
    end_offset: int
    max_bytes: int


class ReadAhead:
    """Reads one slice at a time, with readers of its own: they are used in its thread only."""

    def __init__(self, open_reader: Callable[[int], StoreReader]) -> None:
        self._open_reader = open_reader
        self._requests: SimpleQueue[LogSlice | None] = SimpleQueue()
        self._done: SimpleQueue[LogSlice] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: dict[_Location, int] = {}
        """The offsets of the slices that are being read."""
        self._read: dict[_Location, int] = {}
        """The offsets of the slices that were read last."""

    @property
    def is_busy(self) -> bool:
        """Whether a slice is being read."""
        self._take_read()
        return bool(self._pending)

    def has_read(self, wanted: LogSlice) -> bool:
        """Whether a slice has been read, or could not be. If not, that begins."""
        self._take_read()
        if self._read.get(wanted.location) == wanted.offset:
            return True
        if wanted.location not in self._pending:
            self._pending[wanted.location] = wanted.offset
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
                self._thread.start()
            self._requests.put(wanted)
        return False

    def _take_read(self) -> None:
        while not self._done.empty():
            ended = self._done.get()
            self._read[ended.location] = ended.offset
            self._pending.pop(ended.location, None)

    def close(self) -> None:
        """End the thread, which releases its files. It may be used again."""
        if self._thread is not None:
            self._requests.put(None)
            # Not waited for: it may wait for a disk. A new one has queues of its own.
            self._requests, self._done, self._thread = SimpleQueue(), SimpleQueue(), None
            self._pending.clear()
            self._read.clear()

    def _run(self) -> None:
        requests, done = self._requests, self._done
        readers: dict[int, StoreReader] = {}
        while (wanted := requests.get()) is not None:
            # The loop meets the error, too, and handles it.
            with suppress(StorageError):
                store, number = wanted.location
                reader = readers.get(store)
                if reader is None:
                    reader = readers[store] = self._open_reader(store)
                reader.read(
                    number,
                    wanted.offset,
                    max_bytes=wanted.max_bytes,
                    end_offset=wanted.end_offset,
                )
            done.put(wanted)
        for reader in readers.values():
            reader.close()
