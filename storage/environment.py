"""LMDB environments: each is opened once per process and closed with its last reference.

LMDB's locks belong to a process and a file, so that opening a file twice in a process breaks them.
`open_environment` therefore returns the environment that is already open. It is closed and
unmapped with its last reference. So a view of a mapped page can be sent to a socket, as long as the
environment is referenced.
"""

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import lmdb

from odradek.storage.layout import FILE_MODE, lock_path

READERS_MAX = 1024
"""Slots of the reader table: one per concurrent read transaction."""

_LOCK_ROOM_BYTES = 4096
"""The header of the lock file and its first sixty readers: more than there are processes."""

_CLOSING_S = 1.0
"""How long `open_environment` waits for another thread that is closing the environment."""

_CLOSING_PAUSE_S = 0.001

_IS_OPEN = "already open in this process"
"""In the text of py-lmdb's error, which has no class of its own."""

_WRITE: Final = 2
"""Of sync_file_range(2)."""

_OPEN: WeakValueDictionary[tuple[int, int], "Environment"] = WeakValueDictionary()


class StorageError(Exception):
    """The disk or the map is full, or a file cannot be read or written.

    Raised after the state in memory has been reset to that on disk. Clients get
    KAFKA_STORAGE_ERROR."""


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Raise errors of LMDB and of the operating system as StorageError. `name` is the file's."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StorageError(f"{name}: {reason}") from error


class Environment:
    """One open LMDB file."""

    __slots__ = ("__weakref__", "_databases", "is_read_only", "lmdb", "page_size", "path")

    def __init__(self, path: Path, environment: lmdb.Environment, *, is_read_only: bool) -> None:
        self.path = path
        self.is_read_only = is_read_only
        self.lmdb = environment
        self.page_size: int = environment.stat()["psize"]
        self._databases: dict[str, lmdb._Database] = {}

    def database(self, name: str) -> "lmdb._Database":
        """A named database, created if it is missing and the environment is writable.

        Each is opened once per process, because opening takes a transaction, and a second user may
        come in the middle of a turn. Raises StorageError.
        """
        database = self._databases.get(name)
        if database is None:
            with storage_errors(self.path.name):
                database = self._databases[name] = self.lmdb.open_db(name.encode())
        return database

    def sync(self) -> None:
        """Sync with fdatasync, without the interpreter lock. Raises StorageError."""
        with storage_errors(self.path.name):
            self.lmdb.sync(True)

    def clear_stale_readers(self) -> int:
        """Free the reader slots of processes that were killed inside a read transaction. Such slots
        keep pages from being reused. Returns how many there were."""
        return self.lmdb.reader_check()


def open_environment(
    path: Path,
    *,
    map_bytes: int = 0,
    database_count: int,
    create: bool = False,
    read_only: bool = False,
    sync: bool = False,
) -> Environment:
    """The environment in the file `path`, which may be open in this process already.

    With `map_bytes` 0 it has the size that it was created with. With `sync` every commit is synced.
    An environment whose last reference has gone in another thread (collected there as garbage,
    say) is closed without the interpreter lock; the end of that is waited for.

    Raises StorageError if the file is missing (unless `create`), is not an LMDB file, or does not
    fit into the address space.
    """
    deadline_s = time.monotonic() + _CLOSING_S
    while True:
        try:
            known = _OPEN.get(_identity(path))
            if known is not None:
                if known.is_read_only and not read_only:
                    raise StorageError(f"{path.name} is already open read-only in this process")
                return known
        except FileNotFoundError:
            if not create:
                raise StorageError(f"{path.name}: file not found") from None
        try:
            with storage_errors(path.name):
                if create:
                    _make_lock_room(path)
                environment = lmdb.open(
                    str(path),
                    subdir=False,
                    map_size=map_bytes,
                    readonly=read_only,
                    create=create,
                    sync=sync,
                    metasync=sync,
                    # A consumer that catches up on a sealed segment reads on (measured from a cold
                    # disk, a tenth of the file: 45 to 72 MB/s without, 80 to 88 with); a writer
                    # does not.
                    readahead=read_only,
                    # Or the unused part of a page has what this process had in memory before: parts
                    # of its configuration, for example.
                    meminit=True,
                    max_dbs=database_count,
                    max_readers=READERS_MAX,
                    max_spare_txns=4,
                    mode=FILE_MODE,
                )
        except StorageError as error:
            if _IS_OPEN not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(_CLOSING_PAUSE_S)
        else:
            opened = Environment(path, environment, is_read_only=read_only)
            _OPEN[_identity(path)] = opened
            return opened


def open_environments() -> list[Environment]:
    """All that are open in this process; none of them is unmapped as long as it is in the list.
    Not those that are just being closed."""
    # References are copied at once: another thread may open an environment.
    held = [reference() for reference in _OPEN.valuerefs()]
    return [each for each in held if each is not None]


def sync_directory(directory: Path) -> None:
    """Sync a folder, so that its new files survive a power loss. Raises StorageError."""
    with storage_errors(directory.name):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
if _libc is not None:
    _libc.sync_file_range.argtypes = (
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_uint,
    )


def start_writeback(path: Path) -> None:
    """Have the operating system begin to write the file's changed pages to the disk, without the
    interpreter lock. Returns before they are there, but waits while the disk has too much to do.

    Nothing is promised by it: a file that is gone, and an error of the disk, are for the next sync
    to tell. Linux only: elsewhere nothing is done."""
    if _libc is None:
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _libc.sync_file_range(descriptor, 0, 0, _WRITE)
        finally:
            os.close(descriptor)


def _make_lock_room(path: Path) -> None:
    """Allocate the first page of the lock file, which LMDB maps and writes: on a full disk a page
    without a block raises SIGBUS."""
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_ROOM_BYTES)
    except OSError:
        with suppress(OSError):
            lock_path(path).unlink()
        raise
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
