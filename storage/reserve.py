"""Room kept back for the day the disk is full, since giving room back takes some itself.

Deleting a topic, moving a log start, sealing a segment and opening a store each need some blocks.
They are kept back in two ways: a row of filler inside an LMDB file, which never shrinks but uses
freed pages again, so that what the row leaves behind is that file's alone; and a file of its own,
for what makes new files. Both are there from the beginning, are spent when something that gives
room back finds none, and are put there again when the disk has plenty. In between nobody else may
have what they left: who only takes room asks `is_disk_space_low` first, and who was refused for it
goes on when the disk `has_ample_disk_space`.

One invariant: keeping never fails and never takes the last of the disk. Used by the owners of the
catalog, of the metadata log and of the segments.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from odradek.storage.layout import reserve_path

ROW_BYTES = 256 << 10
"""Deletes about a thousand partitions in one change of the catalog, and more in several."""
FILE_BYTES = 256 << 10
"""A new segment takes 40 KiB with its lock file: one to roll into, one for what is to stay of an
old one, which may be some 150 KiB."""
_LITTLE_BYTES = 64 << 10
_PLENTY_BYTES = 4 << 20
"""More than all stores of a node keep back in files, so that it is not taken for new room."""
_KEY = b"reserve"
_COMMIT_KEY = b"reserve-commit"
_COMMIT_BYTES = 32 << 10
"""Deleting the row takes two commits of three or four pages each. A file that was written for long
may have them free, one that was just made has not."""


def free_bytes(path: Path) -> int:
    """What can still be written to the disk of this file or folder."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def is_disk_space_low(path: Path) -> bool:
    """Whether what is left of the disk is for those who give room back."""
    return free_bytes(path) < _LITTLE_BYTES


def has_ample_disk_space(path: Path) -> bool:
    """Whether a disk that was full has so much room again that it is for everybody."""
    return free_bytes(path) >= _PLENTY_BYTES


def is_disk_full_error(error: BaseException, path: Path) -> bool:
    """Whether LMDB found the disk of this file full. To it a write that was cut short because of
    that is an input/output error like any other."""
    if isinstance(error, lmdb.DiskError):
        return True
    is_cut_short = isinstance(error, lmdb.Error) and "Input/output error" in str(error)
    return is_cut_short and free_bytes(path) < ROW_BYTES


def make_environment(
    path: Path, *, map_bytes: int, databases: Sequence[str], reserve_in: str
) -> None:
    """Make an LMDB file with these databases and the row kept back in one of them, on disk before
    this returns but for its name in the folder. It is there whole or not at all.

    Raises lmdb.Error or OSError if the disk has no room.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        # Nobody else knows of the file: it takes no lock, and one sync at the end.
        with lmdb.open(
            str(unfinished),
            subdir=False,
            map_size=map_bytes,
            max_dbs=len(databases),
            lock=False,
            sync=False,
            metasync=False,
            meminit=False,
            mode=0o644,
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
    """A file of blocks that nobody else gets."""

    def __init__(self, path: Path, byte_count: int) -> None:
        self._path = path
        self._byte_count = byte_count
        self.is_kept = path.exists()

    def keep(self) -> None:
        """Make the file, if there is none and the disk has plenty of room."""
        if self.is_kept or not has_ample_disk_space(self._path.parent):
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, self._byte_count)
                self.is_kept = True
            except OSError:
                self._path.unlink()
            finally:
                os.close(descriptor)

    def spend(self) -> bool:
        """Give its blocks up: whoever writes next has them. True if there was one."""
        if not self.is_kept:
            return False
        self.is_kept = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def spend_if_needed(self) -> None:
        """Give them up now if the disk is so full that a new file may not fit."""
        if self.is_kept and free_bytes(self._path.parent) < self._byte_count:
            self.spend()


class RowReserve:
    """A row of filler in one database of an environment, and a small file beside it that makes the
    row's deletion possible; both survive restarts."""

    def __init__(self, environment: lmdb.Environment, database: "lmdb._Database") -> None:
        self._environment = environment
        self._database = database
        self._path = Path(environment.path())
        self._beside = FileReserve(reserve_path(self._path), _COMMIT_BYTES)
        with environment.begin(database, buffers=True) as transaction:
            self._has_row = transaction.get(_KEY) is not None

    @property
    def is_kept(self) -> bool:
        """Whether there is something to spend."""
        return self._has_row

    def keep(self) -> None:
        """Put both there, if they are not and the disk has plenty of room: one commit."""
        self._beside.keep()
        if self._has_row or not has_ample_disk_space(self._path):
            return
        with suppress(lmdb.Error):
            _put(self._environment, self._database, _KEY, bytes(ROW_BYTES))
            self._has_row = True

    def spend(self) -> bool:
        """Free the row's pages for what must be written now. True if there is reason to try again.

        Not inside a write transaction.
        """
        if not self._has_row:
            return False
        self._beside.spend()
        try:
            # A reader that was killed would hold back the pages that are to be used.
            self._environment.reader_check()
            with self._environment.begin(self._database, write=True) as transaction:
                transaction.delete(_KEY)
            self._has_row = False
            # What a commit frees is used by the one after the next.
            _put(self._environment, self._database, _COMMIT_KEY, b"")
        except lmdb.Error:
            return False
        return True

    def spend_if_needed(self) -> None:
        """Spend it now if the disk is so full that the next change may fail. Nothing is lost by
        that but who may use the pages: they stay in this file."""
        if self._has_row and free_bytes(self._path) < ROW_BYTES:
            self.spend()


def _put(
    environment: lmdb.Environment, database: "lmdb._Database", key: bytes, value: bytes
) -> None:
    with environment.begin(database, write=True) as transaction:
        transaction.put(key, value)
