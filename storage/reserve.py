"""Reserved disk space for a full disk, because freeing space needs some space itself.

Deleting a topic, moving a log start, sealing a segment and opening a store need some blocks. They
are reserved in two ways: a filler row in an LMDB file, which never shrinks but reuses freed pages,
so that only this file can use the row's pages; and a separate file, for operations that create
files. Both are created at the start, used when an operation that frees space finds none, and
created again when the disk has ample space. Operations that free no space check
`is_disk_space_low` first. Appends that failed continue when the disk `has_ample_disk_space`.

Reserving never fails, and never takes the last space of the disk. Used by the owners of the
catalog, the metadata log and the segments."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from odradek.storage.layout import FILE_MODE, reserve_path

ROW_BYTES = 256 << 10
"""Enough to delete about a thousand partitions in one change of the catalog."""
FILE_BYTES = 256 << 10
"""Enough for two new segments: an active one (40 KiB with its lock file) and a rewritten one (about
150 KiB)."""
_LITTLE_BYTES = 64 << 10
_PLENTY_BYTES = 4 << 20
"""More than the reserve files of all stores of a node."""
DISK_FULL = "the disk is full"
_KEY = b"reserve"
_COMMIT_KEY = b"reserve-commit"
_COMMIT_BYTES = 32 << 10
"""Deleting the row takes two commits of three or four pages each, which a new file does not
have."""


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of this file or folder; 0 if it is gone."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def is_disk_space_low(path: Path) -> bool:
    """Whether the remaining space is only for operations that free space."""
    return free_bytes(path) < _LITTLE_BYTES


def has_ample_disk_space(path: Path) -> bool:
    """Whether a disk that was full has enough space for all operations again."""
    return free_bytes(path) >= _PLENTY_BYTES


def disk_problem(path: Path, *, was_full: bool) -> str | None:
    """DISK_FULL if only operations that free space may use the disk of this file or folder, and
    until it has ample space again; why the disk cannot be used at all, as when somebody has deleted
    the folder; else None."""
    try:
        os.statvfs(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    is_full = not has_ample_disk_space(path) if was_full else is_disk_space_low(path)
    return DISK_FULL if is_full else None


def is_disk_full_error(error: BaseException, path: Path) -> bool:
    """Whether the error says that the disk of this file is full. LMDB reports a short write as an
    input/output error."""
    if isinstance(error, lmdb.DiskError) or _is_no_space(error) or _is_no_space(error.__cause__):
        return True
    is_cut_short = isinstance(error, lmdb.Error) and "Input/output error" in str(error)
    return is_cut_short and free_bytes(path) < ROW_BYTES


def _is_no_space(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_environment(
    path: Path, *, map_bytes: int, databases: Sequence[str], reserve_in: str
) -> None:
    """Create an LMDB file with these databases, and the filler row in one of them. It is synced,
    except for its name in the folder. A failure leaves no file.

    Raises lmdb.Error or OSError if the disk is full.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        # No other process uses the file yet: no lock, and one sync at the end.
        with lmdb.open(
            str(unfinished),
            subdir=False,
            map_size=map_bytes,
            max_dbs=len(databases),
            lock=False,
            sync=False,
            metasync=False,
            meminit=True,
            mode=FILE_MODE,
        ) as environment:
            opened = {name: environment.open_db(name.encode()) for name in databases}
            if has_ample_disk_space(unfinished):
                with suppress(lmdb.MapFullError):
                    _put(environment, opened[reserve_in], _KEY, bytes(ROW_BYTES))
            environment.sync(True)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class FileReserve:
    """A file that reserves blocks."""

    def __init__(self, path: Path, byte_count: int) -> None:
        self._path = path
        self._byte_count = byte_count
        self.is_kept = path.exists()

    def keep(self) -> None:
        """Create the file, if there is none and the disk has ample space."""
        if self.is_kept or not has_ample_disk_space(self._path.parent):
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                os.posix_fallocate(descriptor, 0, self._byte_count)
                self.is_kept = True
            except OSError:
                self._path.unlink()
            finally:
                os.close(descriptor)

    def spend(self) -> None:
        """Release the blocks, if there are any."""
        if self.is_kept:
            self.is_kept = False
            with suppress(OSError):
                self._path.unlink()

    def spend_if_needed(self) -> None:
        """Release the blocks if a new file may not fit on the disk."""
        if self.is_kept and free_bytes(self._path.parent) < self._byte_count:
            self.spend()


class RowReserve:
    """A filler row in a database of an environment, and a small file that makes its deletion
    possible. Both survive restarts."""

    def __init__(self, environment: lmdb.Environment, database: "lmdb._Database") -> None:
        self._environment = environment
        self._database = database
        self._path = Path(environment.path())
        self._beside = FileReserve(reserve_path(self._path), _COMMIT_BYTES)
        with environment.begin(database, buffers=True) as transaction:
            self.is_kept = transaction.get(_KEY) is not None

    def keep(self) -> None:
        """Create both, if they are missing and the disk has ample space: one commit."""
        self._beside.keep()
        if self.is_kept or not has_ample_disk_space(self._path):
            return
        with suppress(lmdb.Error):
            _put(self._environment, self._database, _KEY, bytes(ROW_BYTES))
            self.is_kept = True

    def spend(self) -> bool:
        """Free the row's pages. True if the failed change may be retried.

        Not inside a write transaction.
        """
        if not self.is_kept:
            return False
        self._beside.spend()
        try:
            # The slot of a killed reader would keep the pages from being reused.
            self._environment.reader_check()
            with self._environment.begin(self._database, write=True) as transaction:
                transaction.delete(_KEY)
            self.is_kept = False
            # Pages freed by a commit are reused by the one after the next.
            _put(self._environment, self._database, _COMMIT_KEY, b"")
        except lmdb.Error:
            return False
        return True

    def spend_if_needed(self) -> None:
        """Release the row if the next change may fail on a full disk. The pages stay in this
        file."""
        if self.is_kept and free_bytes(self._path) < ROW_BYTES:
            self.spend()


def _put(
    environment: lmdb.Environment, database: "lmdb._Database", key: bytes, value: bytes
) -> None:
    with environment.begin(database, write=True) as transaction:
        transaction.put(key, value)
