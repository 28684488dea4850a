"""Fills free memory with cached pages, as it is on a machine where a broker has run for hours.

There each page that is written takes the place of an old one. Free memory may be faster, or, on a
virtual machine whose host takes back what is free, several times slower: then the first write to
each page is what a benchmark of large batches measures (2 to 20 us instead of 0.5), for any broker.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.options import log_progress

KEPT_FREE_BYTES: Final = 256 << 20
"""About what the kernel keeps free by itself."""
_BLOCK_BYTES: Final = 8 << 20
_FREE: Final = re.compile(r"^MemFree: +(\d+) kB$", re.MULTILINE)
_MEMORY: Final = Path("/proc/meminfo")


def free_memory_bytes() -> int:
    """Memory that nothing uses, not even as a cache. 0 where that cannot be told."""
    if not _MEMORY.exists():
        return 0
    found = _FREE.search(_MEMORY.read_text())
    return int(found[1]) << 10 if found else 0


def size_of_file(memory_bytes: int, disk_bytes: int) -> int:
    """How large a file fills so much free memory; 0 if it would take more than half of the disk."""
    size = max(0, memory_bytes - KEPT_FREE_BYTES)
    return size if size <= disk_bytes // 2 else 0


class PageCache:
    """Free memory, filled with the pages of one file that it makes."""

    def __init__(self, file: Path, free_bytes: Callable[[], int] = free_memory_bytes) -> None:
        """The file gets the size of the memory that `free_bytes` tells, less a reserve. It is empty
        where that would take more than half of the free disk."""
        self.size = size_of_file(free_bytes(), shutil.disk_usage(file.parent).free)
        self._free_bytes = free_bytes
        self._file = file
        self._read_to = 0
        if self.size:
            log_progress(f"filling {self.size >> 20} MiB of free memory with cached pages")
        else:
            log_progress("the page cache is not filled: rows of large batches may vary")
        block = bytes(_BLOCK_BYTES)
        with file.open("wb") as out:
            for start in range(0, self.size, _BLOCK_BYTES):
                out.write(block[: self.size - start])
            out.flush()
            os.fsync(out.fileno())

    def fill(self) -> int:
        """Read those pages again that were dropped, as long as memory is free. Returns how many
        bytes were read; the whole file at most."""
        count = 0
        with self._file.open("rb", buffering=0) as pages:
            pages.seek(self._read_to)
            while count < self.size and self._free_bytes() > KEPT_FREE_BYTES:
                read = len(pages.read(_BLOCK_BYTES))
                count += read
                if read < _BLOCK_BYTES:
                    pages.seek(0)
            self._read_to = pages.tell()
        return count
