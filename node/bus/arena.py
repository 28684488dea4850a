"""Shared memory for the bytes of clients. Messages have (offset, length) instead of payloads.

The router creates the arena, the workers map it. Memory is counted in units of 1 MiB. A *block* is
a run of units; its number is that of its first unit. Only the creator allocates: a block starts
with one reference, each frame in use holds another, and the last release frees it. Freed blocks of
up to eight units are kept on stacks, last in first out, so that the memory used next is still in
the caches. `trim` returns blocks that were not needed lately to the operating system. Larger blocks
are returned at once. One invariant: a unit is in exactly one of the states *cold* (free, without
memory), *used* and *warm* (free, with memory).
"""

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

UNIT_BYTES = 1 << 20
_UNIT_SHIFT = 20
NO_BLOCK = -1
"""In place of the number of a block: none."""

_COLD, _USED, _WARM = 0, 1, 2
_WARM_UNITS_MAX_OF_A_BLOCK = 8
# The largest share for blocks of several units: large requests must not starve small ones.
_BIG_BLOCKS_SHARE = 0.75


class Arena:
    """One shared-memory file. `view` is all of it, writable in all processes."""

    def __init__(self, file: int, size: int, path: Path | None) -> None:
        self._file = file
        self.path = path
        self._memory = mmap.mmap(file, size)
        self.view = memoryview(self._memory)
        units = size >> _UNIT_SHIFT
        self._states = bytearray(units)
        self._references = [0] * units
        self._sizes = [0] * units
        self._warm: dict[int, list[int]] = {1: [], 2: [], 4: [], _WARM_UNITS_MAX_OF_A_BLOCK: []}
        self._warm_low = dict.fromkeys(self._warm, 0)
        self._warm_units = 0
        self._used_units = 0
        self._used_big_units = 0
        self._big_units_max = int(units * _BIG_BLOCKS_SHARE)
        self.on_freed: Callable[[], None] | None = None
        """Called after a block was freed: an allocation that failed may be retried."""

    @classmethod
    def create(cls, path: Path, size: int) -> Self:
        """Create an empty arena of `size` bytes (rounded up to 1 MiB) that others open at `path`.

        With memfd_create the memory is in a memfd and `path` is a link to it: it is not limited by
        the size of /dev/shm (64 MiB in a container), and is freed with the last process that uses
        it, even a killed one. Otherwise `path` is a sparse file. An existing file is replaced;
        processes that have it open keep it.
        """
        size = max(1, -(-size // UNIT_BYTES)) * UNIT_BYTES
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        file = _memory_file()
        if file is None:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.ftruncate(file, size)
        else:
            os.ftruncate(file, size)
            path.symlink_to(f"/proc/{os.getpid()}/fd/{file}")
        return cls(file, size, path)

    @classmethod
    def anonymous(cls, size: int) -> Self:
        """An arena of this process alone, of whole MiB."""
        return cls(-1, size, None)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map an arena of another process. Only its creator may allocate."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(file, os.fstat(file).st_size, None)
        finally:
            os.close(file)

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return len(self._states) << _UNIT_SHIFT

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks in use."""
        return self._used_units << _UNIT_SHIFT

    @property
    def resident_bytes(self) -> int:
        """Bytes of used and warm blocks: the most memory that the arena takes from the system."""
        return (self._used_units + self._warm_units) << _UNIT_SHIFT

    def allocate(self, size: int = UNIT_BYTES) -> int | None:
        """A block of at least `size` bytes with one reference. None if there is no room."""
        units = 1 if size <= UNIT_BYTES else _units_for(size)
        if units > 1 and self._used_big_units + units > self._big_units_max:
            return None
        stack = self._warm.get(units)
        if stack:
            block = stack.pop()
            self._warm_units -= units
            if len(stack) < self._warm_low[units]:
                self._warm_low[units] = len(stack)
        else:
            block = self._find_cold(units)
            if block < 0:
                return None
        if units == 1:
            self._states[block] = _USED
        else:
            self._states[block : block + units] = bytes((_USED,)) * units
            self._used_big_units += units
        self._used_units += units
        self._sizes[block] = units
        self._references[block] = 1
        return block

    def retain(self, block: int) -> None:
        """Add a reference to a block that already has one."""
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference. After the last one the block may be overwritten at any time."""
        left = self._references[block] - 1
        assert left >= 0, f"block {block} was released more often than retained"
        self._references[block] = left
        if left == 0:
            self._free(block)

    def references(self, block: int) -> int:
        return self._references[block]

    def size_of(self, block: int) -> int:
        """The block's length in bytes."""
        return self._sizes[block] << _UNIT_SHIFT

    def offset_of(self, block: int) -> int:
        """Where the block starts in `view`."""
        return block << _UNIT_SHIFT

    def trim(self) -> None:
        """Return the warm blocks that were not needed since the last call to the operating
        system."""
        for units, stack in self._warm.items():
            unneeded = self._warm_low[units]
            for block in stack[:unneeded]:
                self._cool(block, units)
            del stack[:unneeded]
            self._warm_units -= unneeded * units
            self._warm_low[units] = len(stack)

    def close(self) -> None:
        """Unmap, and unlink the path if this process created it. Views in use keep the memory."""
        if self.path is not None:
            # A successor may have created its own arena there already.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._file), self.path.stat()):
                    self.path.unlink()
            os.close(self._file)
            self.path = None
        # A frame in use keeps the mapping, until the last view is gone.
        with contextlib.suppress(BufferError):
            self.view.release()
            self._memory.close()

    def _free(self, block: int) -> None:
        units = self._sizes[block]
        self._used_units -= units
        if units > 1:
            self._used_big_units -= units
        stack = self._warm.get(units)
        if stack is None:
            self._cool(block, units)
        else:
            stack.append(block)
            self._warm_units += units
            if units == 1:
                self._states[block] = _WARM
            else:
                self._states[block : block + units] = bytes((_WARM,)) * units
        if self.on_freed is not None:
            self.on_freed()

    def _cool(self, block: int, units: int) -> None:
        self._states[block : block + units] = bytes(units)
        _punch_hole(self._memory, block << _UNIT_SHIFT, units << _UNIT_SHIFT)

    def _find_cold(self, units: int) -> int:
        """The first unit of a run of cold ones, -1 if there is none. Single units are taken from
        the start and longer runs from the end, so that free runs stay long."""
        block = self._states.find(_COLD) if units == 1 else self._states.rfind(bytes(units))
        if block < 0 and self._warm_units:
            for length, stack in self._warm.items():
                for warm in stack:
                    self._cool(warm, length)
                stack.clear()
                self._warm_low[length] = 0
            self._warm_units = 0
            return self._find_cold(units)
        return block


def _units_for(size: int) -> int:
    """Units for `size` bytes, rounded up to a power of two as far as freed blocks are kept warm."""
    units = -(-size // UNIT_BYTES)
    if units <= _WARM_UNITS_MAX_OF_A_BLOCK:
        return 1 << (units - 1).bit_length()
    return units


def _memory_file() -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create("odradek-arena", os.MFD_CLOEXEC)
    except OSError:
        # Some sandboxes forbid it.
        return None


def _punch_hole(memory: mmap.mmap, start: int, length: int) -> None:
    """Free the pages of `[start, start + length)`. They read as zeros."""
    if hasattr(mmap, "MADV_REMOVE"):
        # On a file system without holes the memory stays allocated.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_REMOVE, start, length)
