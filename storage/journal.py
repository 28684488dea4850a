"""The journal: a second copy of the active segment's small batches, in the order of their turns.

LMDB reuses a page two turns after it was freed. Between two syncs it may therefore overwrite a leaf
page of the last synced tree, while the page's new copy is not on disk yet. A power loss would then
lose small batches that were synced before. (Large ones are in overflow pages, which are never
freed.) So small values are also appended to this file, which is never overwritten. One sync covers
both files, and what was synced once stays on disk.

Only recovery after a power loss reads the journal (salvage.py), so that it only needs synced data:
values are buffered and written many at a time, at the latest when a sync begins. If the process is
killed, the buffer is lost, but not the segment. The store then syncs and seals the segment, because
a sealed segment needs no journal.

The file is a sequence of frames, each with a head and the values of one write:

    magic u32, length u32, CRC-32C of the values u32, values (stamp and batch, one behind the other)

Called by the flusher (durability.py), which belongs to the store's owner; `sync` may run in the
syncer's thread.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct

from odradek.protocol.checksum import crc32c
from odradek.storage.environment import StorageError, storage_errors
from odradek.storage.layout import FILE_MODE, journal_path
from odradek.storage.mapped_pages import MAPPED_PAGES

_HEAD = Struct("<III")
_MAGIC = 0x4A524E4C
_WRITE_BYTES = 64 << 10
_RESERVE_BYTES = 1 << 20


class Journal:
    """The journal of one segment, open for appending. The file is closed with the last reference,
    because the syncer's thread may still use it."""

    def __init__(self, path: Path, descriptor: int, end: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._end = end
        self._reserved_end = end
        self._collected: list[bytes] = []
        self._collected_bytes = 0

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    @classmethod
    def create(cls, directory: Path, segment_id: int) -> "Journal":
        """Create the journal of a new segment. The caller syncs the folder. Raises StorageError."""
        path = journal_path(directory, segment_id)
        with storage_errors(path.name):
            return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE), 0)

    @classmethod
    def reopen(cls, directory: Path, segment_id: int) -> "Journal | None":
        """Reopen a journal after `trim`. None if there is none. Not after a kill: it may be
        incomplete then. Raises StorageError."""
        path = journal_path(directory, segment_id)
        with storage_errors(path.name), suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR)
            return cls(path, descriptor, os.fstat(descriptor).st_size)
        return None

    def reserve(self, byte_count: int) -> None:
        """Allocate the disk space for values of so many bytes, so that a turn fails on a full disk
        before its commit and not after it. Raises StorageError."""
        end = self._end + _HEAD.size + self._collected_bytes + byte_count
        if end > self._reserved_end:
            size = end - self._reserved_end + _RESERVE_BYTES
            with storage_errors(self._path.name):
                os.posix_fallocate(self._descriptor, self._reserved_end, size)
            self._reserved_end += size

    def add(self, values: Sequence[bytes], byte_count: int) -> None:
        """Buffer the small values of a committed turn, so many bytes. Raises StorageError."""
        self._collected += values
        self._collected_bytes += byte_count
        if self._collected_bytes >= _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        """Write the buffer. To be called before a sync. Raises StorageError."""
        if not self._collected:
            return
        content = b"".join(self._collected)
        frame = [_HEAD.pack(_MAGIC, len(content), crc32c(content)), content]
        size = _HEAD.size + len(content)
        with storage_errors(self._path.name):
            written = os.pwritev(self._descriptor, frame, self._end)
        if written != size:
            raise StorageError(f"{self._path.name}: only {written} of {size} bytes were written")
        self._end += size
        self._collected.clear()
        self._collected_bytes = 0

    def sync(self) -> None:
        """Sync the file with fdatasync. Raises StorageError."""
        with storage_errors(self._path.name):
            os.fdatasync(self._descriptor)

    def trim(self) -> None:
        """Write the buffer and release the reserved space, so that `reopen` continues at the end of
        the file. Raises StorageError."""
        self.write()
        with storage_errors(self._path.name):
            os.ftruncate(self._descriptor, self._end)
        self._reserved_end = self._end


def map_file(path: Path) -> memoryview:
    """The file's bytes, empty if there is no file. Unmapped with the last view."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            MAPPED_PAGES.watch(mapping)
            return memoryview(mapping)
    except FileNotFoundError:
        return memoryview(b"")


def frames(view: memoryview) -> Iterator[tuple[int, int]]:
    """[start, end) of the values of each frame, up to the first incomplete one. All frames before
    the last sync are complete."""
    at = 0
    while at + _HEAD.size <= len(view):
        magic, length, crc = _HEAD.unpack_from(view, at)
        start, end = at + _HEAD.size, at + _HEAD.size + length
        if magic != _MAGIC or end > len(view) or crc32c(view[start:end]) != crc:
            return
        yield start, end
        at = end
