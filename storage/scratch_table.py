"""A temporary table of keys and numbers that is too large for memory.

An LMDB file without syncs, in the page cache of the operating system. Used by log compaction for
partitions with more keys than fit into memory.
"""

from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from pathlib import Path
from struct import Struct

import lmdb

from odradek.storage.environment import open_environment, storage_errors
from odradek.storage.layout import lock_path

_NUMBER = Struct(">q")
_MAP_BYTES = 64 << 30  # address space, not disk
_RUN_KEYS = 5_000
_CHUNK_KEYS = 1_000


class ScratchTable:
    """Keys have 0 to 500 bytes. Raises StorageError."""

    def __init__(self, path: Path) -> None:
        """Create the table. A file of this name is overwritten."""
        self._path = path
        path.unlink(missing_ok=True)
        self._environment = open_environment(
            path, map_bytes=_MAP_BYTES, database_count=0, create=True
        )
        self._lmdb = self._environment.lmdb
        self._reading: lmdb.Transaction[bytes] | None = None

    def put_all(self, numbers: Mapping[bytes, int]) -> Iterator[None]:
        """Store all numbers under their keys, replacing old ones, in slices of a few milliseconds.
        Until the end the mapping must not change, and the table must not be read."""
        self._end_reading()
        # In key order far fewer pages are written. Sorting all keys at once would take a slice of
        # 100 ms.
        keys = list(numbers)
        runs = []
        for start in range(0, len(keys), _RUN_KEYS):
            runs.append(sorted(keys[start : start + _RUN_KEYS]))
            yield
        merged = merge(*runs)
        pack = _NUMBER.pack
        while chunk := list(islice(merged, _CHUNK_KEYS)):
            with storage_errors(self._path.name), self._lmdb.begin(write=True) as transaction:
                for key in chunk:
                    # LMDB has no empty keys.
                    transaction.put(b"k" + key, pack(numbers[key]))
            yield

    def get(self, key: bytes) -> int | None:
        if self._reading is None:
            self._reading = self._lmdb.begin()
        row = self._reading.get(b"k" + key)
        return None if row is None else int(_NUMBER.unpack(row)[0])

    def remove(self) -> None:
        """Close and unlink the file."""
        self._end_reading()
        # With the last reference it is closed.
        del self._lmdb, self._environment
        self._path.unlink(missing_ok=True)
        lock_path(self._path).unlink(missing_ok=True)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.abort()
            self._reading = None
