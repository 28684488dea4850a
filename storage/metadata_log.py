"""The metadata log: the persistent state of a Raft member, in an LMDB environment of its own.

It has the entries (index, term, bytes), the hard state (term, vote, commit) and the manifest of the
newest snapshot, whose content is in a file of its own. Its invariant: **a change is on disk when
the method returns.** Every commit is synced and atomic: after a crash the log has the state after
some prefix of the calls, which includes all calls that returned. The controller process is its only
user. A lock on the folder keeps other processes out.

Entries are `[first_index, last_index]`, without gaps. Values are split into pieces that fit into
LMDB's leaf pages. Otherwise dropped prefixes would leave free runs of many sizes, and searching
them made commits take 8 ms.
"""

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Self, TypeVar

import lmdb
import msgspec

from odradek.protocol.checksum import crc32c
from odradek.storage.layout import FILE_MODE
from odradek.storage.reserve import (
    RowReserve,
    disk_problem,
    free_bytes,
    is_disk_full_error,
    is_disk_space_low,
    make_environment,
)

_KEY = struct.Struct(">QI")  # index, number of the piece
_ENTRY_HEAD = struct.Struct(">QI")  # term, length of the whole entry; precedes piece 0
_PIECE_BYTES = 1900  # with key and head below LMDB's leaf limit (2,038 bytes of a 4 KiB page)
_SNAPSHOT_HEAD = struct.Struct(">8sQQ")  # magic, index, term
_SNAPSHOT_MAGIC = b"odrsnap1"
_PREFIX_SLICE = 4_096  # entries dropped in one commit, so that a free-page record stays small
_ROOM_FACTOR = 4  # pages that a commit copies, for each byte of what it adds

Mark = TypeVar("Mark", bound=msgspec.Struct)

_HARD_STATE = b"hard-state"
_BOUNDS = b"bounds"
_SNAPSHOT = b"snapshot"
_BOOTSTRAP_VOTERS = b"founders"


class MetadataLogError(Exception):
    """The folder is in use by another process, or its files are missing or corrupt."""


class MetadataLogFullError(MetadataLogError):
    """The disk is full. Nothing has changed, and the log can be used as before."""


class StoredHardState(msgspec.Struct, frozen=True, array_like=True):
    """Raft's persistent state (Raft, figure 2), with the commit index as a hint for a faster
    start.
    """

    term: int = 0
    vote: int | None = None
    commit: int = 0


class MetadataLogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry; indexes start at 1 and have no gaps."""

    index: int
    term: int
    data: bytes


class SnapshotManifest(msgspec.Struct, frozen=True, array_like=True):
    """The newest complete snapshot: the state after applying every entry up to and with `index`."""

    index: int
    term: int
    size: int  # bytes of content
    checksum: int  # CRC-32C of the content
    configuration: bytes = b""  # the members of the quorum as of `index`, opaque here


class _Bounds(msgspec.Struct, frozen=True, array_like=True):
    """Index and term of the entry before the first one."""

    previous_index: int = 0
    previous_term: int = 0


class MetadataLog:
    """See the module's docstring. Not safe for threads: one owner, one thread."""

    def __init__(
        self, directory: Path, lock_descriptor: int, environment: lmdb.Environment
    ) -> None:
        """Use `open`."""
        self._directory = directory
        self._lock_descriptor = lock_descriptor
        self._environment = environment
        self._entries = environment.open_db(b"entries")
        self._marks = environment.open_db(b"marks")
        with environment.begin() as transaction:
            self._bounds = self._load(transaction, _BOUNDS, _Bounds) or _Bounds()
            self._hard_state = (
                self._load(transaction, _HARD_STATE, StoredHardState) or StoredHardState()
            )
            self._snapshot = self._load(transaction, _SNAPSHOT, SnapshotManifest)
            with transaction.cursor(db=self._entries) as cursor:
                last = (
                    _KEY.unpack(cursor.key())[0] if cursor.last() else self._bounds.previous_index
                )
        self._last_index: int = last
        self._reserve = RowReserve(environment, self._marks)
        self._reserve.keep()
        self._writer: SnapshotWriter | None = None

    @classmethod
    def open(cls, directory: Path, *, map_bytes: int = 4 << 30) -> Self:
        """Open or create the log. `map_bytes` is address space, not disk.

        Raises MetadataLogError when another process has it open or when the snapshot that its mark
        names is missing or corrupt: a member without its state must not vote.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # It has credentials and secret configs.
            directory.chmod(0o700)
            lock_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise MetadataLogError(f"{directory}: {error.strerror}") from error
        try:
            fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_descriptor)
            raise MetadataLogError(
                f"{directory} is in use by another process; stop it first"
            ) from error
        environment: lmdb.Environment | None = None
        try:
            path = directory / "log.mdb"
            if not path.exists():
                make_environment(
                    path, map_bytes=map_bytes, databases=("entries", "marks"), reserve_in="marks"
                )
            environment = lmdb.open(
                str(path), subdir=False, map_size=map_bytes, max_dbs=2, lock=True, mode=FILE_MODE
            )
            log = cls(directory, lock_descriptor, environment)
            log._drop_stray_snapshots()
            log._verify_snapshot()
            os.fsync(lock_descriptor)  # the file's own name
        except (lmdb.Error, MetadataLogError, OSError) as error:
            if environment is not None:
                environment.close()
            os.close(lock_descriptor)
            if isinstance(error, MetadataLogError):
                raise
            raise MetadataLogError(
                f"the metadata log in {directory} cannot be opened: {error}"
            ) from error
        return log

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        self._environment.close()
        os.close(self._lock_descriptor)

    # Entries ---------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Index of the first entry. `last_index + 1` if there is none."""
        return self._bounds.previous_index + 1

    @property
    def last_index(self) -> int:
        """Index of the last entry. If there is none, that of the snapshot, or 0."""
        return self._last_index

    @property
    def hard_state(self) -> StoredHardState:
        return self._hard_state

    @property
    def snapshot(self) -> SnapshotManifest | None:
        return self._snapshot

    def append_entries(
        self,
        entries: Sequence[MetadataLogEntry],
        *,
        hard_state: StoredHardState | None = None,
        may_use_reserve: bool = False,
    ) -> int:
        """Write consecutive entries and the hard state in one synced commit. Returns the last
        index. On a full disk entries fail with MetadataLogFullError, unless they `may_use_reserve`:
        for commands that free space, some hundred commits.

        An entry at or below `last_index` replaces all entries from there on (Raft 5.3). The caller
        has compared terms: it must not write an entry that the log already has.
        """
        if entries:
            first = entries[0].index
            assert self.first_index <= first <= self._last_index + 1, "entries leave a gap"
            assert all(entry.index == first + at for at, entry in enumerate(entries))
            if may_use_reserve:
                self._reserve.spend_if_needed()
            elif is_disk_space_low(self._directory):
                raise MetadataLogFullError(
                    f"the metadata log in {self._directory}: the disk is full"
                )
        try:
            self._write_entries(entries, hard_state)
        except MetadataLogFullError:
            if not (may_use_reserve and self._reserve.spend()):
                raise
            self._write_entries(entries, hard_state)
        if entries:
            self._last_index = entries[-1].index
        if hard_state is not None:
            self._hard_state = hard_state
        return self._last_index

    def _write_entries(
        self, entries: Sequence[MetadataLogEntry], hard_state: StoredHardState | None
    ) -> None:
        with self._write() as transaction:
            if entries:
                if entries[0].index <= self._last_index:
                    self._delete_from(transaction, entries[0].index)
                for entry in entries:
                    self._put(transaction, entry)
            if hard_state is not None:
                transaction.put(_HARD_STATE, msgspec.msgpack.encode(hard_state), db=self._marks)

    def refill_reserve(self) -> None:
        """Reserve disk space again if it was used and the disk has ample space. Takes some
        commits."""
        self._reserve.keep()

    def has_space_for(self, byte_count: int) -> bool:
        """Whether entries of this size can be written without the reserve."""
        if is_disk_space_low(self._directory):
            return False
        return byte_count < 4096 or free_bytes(self._directory) > _ROOM_FACTOR * byte_count

    def disk_problem(self, *, was_full: bool) -> str | None:
        """What keeps the log from being written, or None. `was_full`: DISK_FULL was the answer
        before."""
        return disk_problem(self._directory, was_full=was_full)

    @property
    def bootstrap_voters(self) -> bytes | None:
        """The bootstrap voters of this log, opaque here. None if they were never saved."""
        with self._environment.begin() as transaction:
            value = transaction.get(_BOOTSTRAP_VOTERS, db=self._marks)
        return None if value is None else bytes(value)

    def save_bootstrap_voters(self, bootstrap_voters: bytes) -> None:
        """Save the bootstrap voters, once. Synced."""
        with self._write() as transaction:
            transaction.put(_BOOTSTRAP_VOTERS, bootstrap_voters, db=self._marks)

    def read_entries(self) -> list[MetadataLogEntry]:
        """All entries."""
        entries = []
        with (
            self._environment.begin(buffers=True) as transaction,
            transaction.cursor(db=self._entries) as cursor,
        ):
            for index, pieces in groupby(cursor, key=lambda row: int(_KEY.unpack(row[0])[0])):
                value = b"".join(piece for _, piece in pieces)
                term, length = _ENTRY_HEAD.unpack_from(value)
                data = value[_ENTRY_HEAD.size :]
                assert len(data) == length, f"entry {index} has {len(data)} of {length} bytes"
                entries.append(MetadataLogEntry(index, term, data))
        return entries

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of the one before the first. None if the log has neither."""
        if index == self._bounds.previous_index:
            return self._bounds.previous_term
        with self._environment.begin(buffers=True) as transaction:
            head = transaction.get(_KEY.pack(index, 0), db=self._entries)
            return None if head is None else int(_ENTRY_HEAD.unpack_from(head)[0])

    def truncate_prefix(self, first_index: int) -> None:
        """Delete the entries below `first_index`, which the snapshot must contain. Synced.

        A long prefix takes several commits. A crash between them leaves a shorter prefix, never a
        gap.
        """
        assert self._snapshot is not None, "there is no snapshot"
        assert first_index <= self._snapshot.index + 1, "entries not in the snapshot"
        first_index = min(first_index, self._last_index + 1)
        while self.first_index < first_index:
            bounds_index = min(first_index, self.first_index + _PREFIX_SLICE) - 1
            term = self.term_at(bounds_index)
            assert term is not None
            bounds = _Bounds(bounds_index, term)
            with self._write() as transaction, transaction.cursor(db=self._entries) as cursor:
                while cursor.first() and _KEY.unpack(cursor.key())[0] <= bounds_index:
                    cursor.delete()
                transaction.put(_BOUNDS, msgspec.msgpack.encode(bounds), db=self._marks)
            self._bounds = bounds

    # Snapshots -------------------------------------------------------------------------------

    def begin_snapshot(
        self, *, index: int, term: int, configuration: bytes = b""
    ) -> "SnapshotWriter":
        """Begin a snapshot of the state after entry `index`. It is valid after its `commit`.

        For snapshots of this member's state and for those that a leader sends in chunks. There is
        one at a time: an unfinished one is dropped.
        """
        if self._writer is not None:
            self._writer.abort()
        self._writer = SnapshotWriter(self, index=index, term=term, configuration=configuration)
        return self._writer

    def read_snapshot(self, offset: int, size_max: int) -> bytes:
        """Content bytes `[offset, offset + size_max)` of the newest snapshot, fewer at its end."""
        mark = self._snapshot
        if mark is None:
            raise LookupError("there is no snapshot")
        with self._snapshot_path(mark.index, mark.term).open("rb") as file:
            return os.pread(file.fileno(), size_max, _SNAPSHOT_HEAD.size + offset)

    def snapshot_content(self) -> bytes:
        """The content of the newest snapshot. Empty if there is none."""
        mark = self._snapshot
        return b"" if mark is None else self.read_snapshot(0, mark.size)

    def _install_snapshot(self, mark: SnapshotManifest) -> None:
        """Make a complete, synced file the snapshot. Entries are dropped if they do not reach it
        (Raft 7)."""
        is_ahead_of_log = self.term_at(mark.index) != mark.term
        previous = self._snapshot
        with self._write() as transaction:
            transaction.put(_SNAPSHOT, msgspec.msgpack.encode(mark), db=self._marks)
            if is_ahead_of_log:
                bounds = _Bounds(mark.index, mark.term)
                transaction.drop(self._entries, delete=False)
                transaction.put(_BOUNDS, msgspec.msgpack.encode(bounds), db=self._marks)
        if is_ahead_of_log:
            self._bounds = bounds
            self._last_index = mark.index
        self._snapshot = mark
        if previous is not None and (previous.index, previous.term) != (mark.index, mark.term):
            self._snapshot_path(previous.index, previous.term).unlink(missing_ok=True)

    def _snapshot_path(self, index: int, term: int) -> Path:
        return self._directory / f"snapshot-{index}-{term}"

    def _drop_stray_snapshots(self) -> None:
        """Remove the files of unfinished snapshots, left by a crash."""
        mark = self._snapshot
        current = None if mark is None else self._snapshot_path(mark.index, mark.term)
        for path in self._directory.glob("snapshot-*"):
            if path != current:
                path.unlink()

    def _verify_snapshot(self) -> None:
        mark = self._snapshot
        if mark is None:
            return
        path = self._snapshot_path(mark.index, mark.term)
        if not path.exists():
            raise MetadataLogError(
                f"{path} is missing. Restore it, or format the node and let it join again."
            )
        content = path.read_bytes()[_SNAPSHOT_HEAD.size :]
        if (len(content), crc32c(content)) != (mark.size, mark.checksum):
            raise MetadataLogError(
                f"{path} is corrupt. Restore it, or format the node and let it join again."
            )

    # -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _write(self) -> Iterator[lmdb.Transaction]:
        try:
            with self._environment.begin(write=True) as transaction:
                yield transaction
        except (lmdb.Error, OSError) as error:
            # The transaction is aborted and the fields are unchanged.
            has_no_room = isinstance(error, lmdb.MapFullError) or is_disk_full_error(
                error, self._directory
            )
            fault = MetadataLogFullError if has_no_room else MetadataLogError
            raise fault(f"the metadata log in {self._directory}: {error}") from error

    def _load(self, transaction: lmdb.Transaction, key: bytes, kind: type[Mark]) -> Mark | None:
        value = transaction.get(key, db=self._marks)
        return None if value is None else msgspec.msgpack.decode(value, type=kind)

    def _put(self, transaction: lmdb.Transaction, entry: MetadataLogEntry) -> None:
        view = memoryview(entry.data)
        value = _ENTRY_HEAD.pack(entry.term, len(view)) + view[:_PIECE_BYTES]
        transaction.put(_KEY.pack(entry.index, 0), value, db=self._entries, append=True)
        for piece, start in enumerate(range(_PIECE_BYTES, len(view), _PIECE_BYTES), start=1):
            value = bytes(view[start : start + _PIECE_BYTES])
            transaction.put(_KEY.pack(entry.index, piece), value, db=self._entries, append=True)

    def _delete_from(self, transaction: lmdb.Transaction, from_index: int) -> None:
        with transaction.cursor(db=self._entries) as cursor:
            while cursor.last() and _KEY.unpack(cursor.key())[0] >= from_index:
                cursor.delete()


class SnapshotWriter:
    """A snapshot that is being written. Until `commit` returns, the old one is valid."""

    def __init__(self, log: MetadataLog, *, index: int, term: int, configuration: bytes) -> None:
        self._log = log
        self._mark = SnapshotManifest(index, term, 0, 0, configuration)
        self._path = log._snapshot_path(index, term)
        self._unfinished = self._path.with_name(self._path.name + ".unfinished")
        self._file = self._unfinished.open("wb")
        os.fchmod(self._file.fileno(), FILE_MODE)
        self._file.write(_SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, index, term))
        self.size = 0
        """Content bytes written so far, which is the offset of the next chunk."""
        self.checksum = 0
        """CRC-32C of the content written so far."""

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)
        self.checksum = crc32c(chunk, self.checksum)

    def commit(self) -> SnapshotManifest:
        """Sync the content, rename the file, and store the manifest, in this order. Atomic."""
        mark = msgspec.structs.replace(self._mark, size=self.size, checksum=self.checksum)
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._unfinished.replace(self._path)
            os.fsync(self._log._lock_descriptor)
        except OSError as error:
            raise MetadataLogError(f"{self._path} cannot be written: {error}") from error
        self._log._install_snapshot(mark)
        self._log._writer = None
        return mark

    def abort(self) -> None:
        # Closing writes the buffer, which may fail on a full disk.
        with contextlib.suppress(OSError):
            self._file.close()
        self._unfinished.unlink(missing_ok=True)
        self._log._writer = None
