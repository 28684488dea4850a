"""Shared memory that client bytes land in, so that the bus can carry (offset, length) instead of
payloads.

The router creates the arena, the workers map it. Memory is counted in units of 1 MiB; a *block* is
a run of units and is named by its first one. Only the creator allocates: a block starts with one
reference, every frame that is still being worked on holds another, and the last release gives the
block back. Freed blocks of up to eight units are kept on stacks, last in first out, so that the
memory that is used next is the memory that the caches still hold; `trim` returns what was not
needed lately to the operating system, and bigger blocks are returned at once. One invariant: a
unit is in exactly one of the states *cold* (free, owns no memory), *used* and *warm* (free, owns
memory).
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
"""What a holder of blocks that holds none says."""

_COLD, _USED, _WARM = 0, 1, 2
_WARM_UNITS_MAX_OF_A_BLOCK = 8
# Reserved for blocks of one unit: whoever claims big blocks cannot starve the small requests of
# the others.
_BIG_BLOCKS_SHARE = 0.75


class Arena:
    """One shared-memory file. `view` is the whole of it, writable wherever it is open."""

    __slots__ = (
        "_big_units_max",
        "_file",
        "_memory",
        "_path",
        "_references",
        "_sizes",
        "_states",
        "_used_big_units",
        "_used_units",
        "_warm",
        "_warm_low",
        "_warm_units",
        "on_freed",
        "view",
    )

    def __init__(self, file: int, size: int, path: Path | None) -> None:
        self._file = file
        self._path = path
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
        """Called after a block was given back: whoever found the arena full may try again."""

    @classmethod
    def create(cls, path: Path, size: int) -> Self:
        """Make a new, empty arena of `size` bytes (rounded up to 1 MiB) that others find at `path`.

        Where the system has memfd_create the memory lives in one and `path` is a link to it: it is
        not bounded by the size of /dev/shm (64 MiB in a container) and is gone with the last
        process that uses it, however that process ends. Elsewhere `path` is a sparse file. What
        stood at `path` before is replaced; processes that have it open keep it.
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
    def open(cls, path: Path) -> Self:
        """Map an arena that another process made. Allocating in it is the creator's alone."""
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
        """Bytes in blocks that somebody holds."""
        return self._used_units << _UNIT_SHIFT

    @property
    def resident_bytes(self) -> int:
        """At most this much memory is taken from the system: used and warm blocks."""
        return (self._used_units + self._warm_units) << _UNIT_SHIFT

    def allocate(self, size: int = UNIT_BYTES) -> int | None:
        """A block of at least `size` bytes with one reference, or None when there is no room."""
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
        """Drop a reference; with the last one the block's bytes may be overwritten at any time."""
        left = self._references[block] - 1
        assert left >= 0, f"block {block} was released more often than retained"
        self._references[block] = left
        if left == 0:
            self._free(block)

    def references(self, block: int) -> int:
        """How many hold the block."""
        return self._references[block]

    def size_of(self, block: int) -> int:
        """The block's length in bytes."""
        return self._sizes[block] << _UNIT_SHIFT

    def offset_of(self, block: int) -> int:
        """Where the block starts in `view`."""
        return block << _UNIT_SHIFT

    def trim(self) -> int:
        """Return the warm blocks that were not needed since the last call; the number of bytes
        returned.
        """
        returned = 0
        for units, stack in self._warm.items():
            unneeded = self._warm_low[units]
            for block in stack[:unneeded]:
                self._cool(block, units)
                returned += units << _UNIT_SHIFT
            del stack[:unneeded]
            self._warm_units -= unneeded * units
            self._warm_low[units] = len(stack)
        return returned

    def close(self) -> None:
        """Unmap, and take the name away if this process made it. Views still in use keep the
        memory.
        """
        if self._path is not None:
            # A successor may have put its own arena there already.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._file), self._path.stat()):
                    self._path.unlink()
            os.close(self._file)
            self._path = None
        # A frame that a coroutine still refers to pins the mapping; it goes with the last view.
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
        _give_back(self._memory, block << _UNIT_SHIFT, units << _UNIT_SHIFT)

    def _find_cold(self, units: int) -> int:
        """A run of cold units: single ones from the bottom, longer ones from the top, so that
        holes stay big.
        """
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


def _give_back(memory: mmap.mmap, start: int, length: int) -> None:
    """Punch a hole: the pages of `[start, start + length)` are freed and read as zeros."""
    if hasattr(mmap, "MADV_REMOVE"):
        # A file system without holes only costs memory.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_REMOVE, start, length)
