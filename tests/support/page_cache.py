"""What the kernel's page cache has of a file: cachestat(2), since Linux 6.5."""

import ctypes
import os
from pathlib import Path

import pytest

_CACHESTAT = 451
"""The number of the system call, on all processors but Alpha."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "changed", "under_writeback", "evicted", "recently_evicted")
    )


def changed_pages(path: Path) -> int:
    """The pages of the file that are changed and that the kernel has not begun to write. The test
    is skipped if the kernel cannot tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    statistics = _Statistics()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        failed = libc.syscall(
            _CACHESTAT, descriptor, ctypes.byref(_Range(0, 0)), ctypes.byref(statistics), 0
        )
    finally:
        os.close(descriptor)
    if failed:
        pytest.skip(f"cachestat: {os.strerror(ctypes.get_errno())}")
    changed: int = statistics.changed
    return changed


def skip_without_disk(folder: Path) -> None:
    """Skip the test if files in the folder have no pages to be written, as on tmpfs."""
    path = folder / "changed"
    path.write_bytes(b"x" * (1 << 20))
    count = changed_pages(path)
    path.unlink()
    if not count:
        pytest.skip("the folder is not on a disk")
