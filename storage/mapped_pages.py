"""Keeps small what a process maps of the logs.

LMDB maps a whole segment, and each page that is read stays mapped until the segment is closed; a
writer reads a page of the tree before it writes the next one. The kernel counts such pages as
resident memory of the process. So after each `release_bytes` that were
read all pages of segments are unmapped: they stay in the page cache, and addresses stay valid. A
page that is read again costs a fault for each 64 KiB (measured: 18 us for 1 MB of 310 that a fetch
takes), so what is read again soon, by several consumers near the end of a log, should still be
mapped.

Reads of batches, turns, compaction and recovery note what they read. Routers and workers release
every few seconds what was read in other ways. One count for the whole process. Linux only:
elsewhere nothing is done.

Invariant: only addresses of environments and mappings that are referenced meanwhile are unmapped.
Another thread may close a segment at any moment, and what then comes to its addresses (memory of
the interpreter, say) would lose its contents.
"""

import ctypes
import mmap
import os
import re
import sys
import weakref
from collections.abc import Container, Iterator
from typing import Final

from odradek.storage.container_limits import memory_limit_bytes
from odradek.storage.environment import open_environments

RELEASE_BYTES_MAX: Final = 256 << 20
RELEASE_BYTES_MIN: Final = 16 << 20
_SHARE_OF_LIMIT: Final = 8
_FAULT_BYTES: Final = 64 << 10
"""A fault maps so much around a page, as far as it is cached."""
_DONTNEED: Final = 4
"""Of madvise(2). COLD beside it would cost twice as much."""
_SEGMENT_MAPPING: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \d+ +"
    rb"(/[^\n]*/(?:segment-\d+\.mdb|compaction\.scratch))(?: \(deleted\))?$",
    re.MULTILINE,
)


def default_release_bytes() -> int:
    """What a process may map: an eighth of what its container may use, within bounds."""
    limit = memory_limit_bytes()
    if limit is None:
        return RELEASE_BYTES_MAX
    return max(RELEASE_BYTES_MIN, min(limit // _SHARE_OF_LIMIT, RELEASE_BYTES_MAX))


class MappedPages:
    """The count of one process."""

    def __init__(self, release_bytes: int) -> None:
        """About `release_bytes` are mapped at most."""
        self._release_bytes = release_bytes
        self._read_bytes = 0
        self._watched: tuple[weakref.ref[mmap.mmap], ...] = ()
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        if self._libc is not None:
            self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def note(self, byte_count: int) -> None:
        """So many bytes were read from segments, in one place."""
        self._read_bytes += byte_count + _FAULT_BYTES
        if self._read_bytes > self._release_bytes:
            self.release()

    def watch(self, mapping: mmap.mmap) -> None:
        """Unmap the pages of this mapping, too, as long as somebody refers to it."""
        # A tuple of its own: another thread may be in `release`.
        known = (each for each in self._watched if each() is not None)
        self._watched = (*known, weakref.ref(mapping))

    def release(self) -> None:
        """Unmap the pages of all segments that are open in this process, and of watched
        mappings."""
        self._read_bytes = 0
        if self._libc is not None:
            held = open_environments()
            folders = {each.path.parent for each in held}
            resolved = {folder: os.path.realpath(folder) for folder in folders}
            paths = {os.fsencode(f"{resolved[each.path.parent]}/{each.path.name}") for each in held}
            for start, end in _segment_mappings(paths):
                # On an error the pages stay mapped, which does no harm.
                self._libc.madvise(start, end - start, _DONTNEED)
            for reference in self._watched:
                if (mapping := reference()) is not None:
                    mapping.madvise(mmap.MADV_DONTNEED)


def _segment_mappings(paths: Container[bytes]) -> Iterator[tuple[int, int]]:
    """The addresses [start, end) of the segments with these paths in this process."""
    try:
        with open("/proc/self/maps", "rb") as file:
            text = file.read()
    except OSError:
        return
    for found in _SEGMENT_MAPPING.finditer(text):
        if found[3] in paths:
            yield int(found[1], 16), int(found[2], 16)


MAPPED_PAGES: Final = MappedPages(default_release_bytes())
"""Of this process."""
