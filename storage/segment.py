"""A segment: one LMDB file with the batches of many partitions and the indexes over them.

The newest segment of a store is active. All others are sealed and never change. A value of the
batches database is a stamp (layout.STAMP) followed by the record batch. Values of more than half a
page are in overflow pages, which do not move and are not reused, because no batch is ever deleted.
Views of them stay valid after the read transaction, as long as the segment is referenced.

Turns write the active segment (append.py). Rewriting, compaction and recovery write new segments
with `SegmentWriter`. Any process reads with `Segment.begin`.

Databases and their rows, all integers big-endian:

    batches     number u32, base offset u64          stamp, record batch
    timestamps  number u32, timestamp u64            base offset u64
    epochs      number u32, leader epoch u32         start offset u64
    aborted     number u32, marker's offset u64      transactions.AbortedTransaction
    producers   number u32, producer id u64          producers.ProducerEntry      (checkpoint)
    extents     number u32                           Extent                       (checkpoint)
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import lmdb

from odradek.storage.cursors import rows_from
from odradek.storage.environment import (
    Environment,
    StorageError,
    open_environment,
    storage_errors,
)
from odradek.storage.journal import Journal
from odradek.storage.layout import (
    EPOCH_KEY,
    KEY,
    NUMBER_MAX,
    OFFSET,
    STAMP,
    STAMP_SIZE,
    segment_path,
)
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.timestamps import TimestampIndexer

_DATABASE_COUNT = 8
_EXTENT = Struct(">qqqqqq")
_TURN_BYTES_MAX = 2 << 20
_HEADER_FIELDS = Struct(">i7xi8xq")  # from byte 12: leader epoch, last offset delta, max timestamp
_HEADER_FIELDS_AT = 12
_note_read = MAPPED_PAGES.note


class Extent(NamedTuple):
    """The data of one partition in one segment: the offsets [first_offset, end_offset).

    The extents of a partition do not overlap, and together they cover its log without gaps, even
    where compaction has removed batches.
    """

    segment_id: int
    first_offset: int
    end_offset: int
    byte_count: int
    batch_count: int
    max_timestamp: int = -1
    first_append_ms: int = 0

    def encode(self) -> bytes:
        """The row of the extents database, without the segment's id."""
        return _EXTENT.pack(*self[1:])

    @classmethod
    def decode(cls, segment_id: int, row: bytes | memoryview) -> "Extent":
        return cls(segment_id, *_EXTENT.unpack(row))


class StoredBatch(NamedTuple):
    """A batch in a segment. The view `batch` is valid inside the read transaction, and beyond it if
    the segment is sealed or the value is in overflow pages."""

    number: int
    base_offset: int
    batch: memoryview
    log_end_before: int


class Segment:
    """An open segment. It is unmapped with its last reference."""

    def __init__(self, segment_id: int, environment: Environment) -> None:
        self.segment_id = segment_id
        self.environment = environment
        self.lmdb = environment.lmdb
        self.large_value_size = environment.page_size // 2
        self.batches = environment.database("batches")
        self.timestamps = environment.database("timestamps")
        self.epochs = environment.database("epochs")
        self.aborted = environment.database("aborted")
        self.producers = environment.database("producers")
        self.extents = environment.database("extents")
        self.journal: Journal | None = None
        """The journal of an active segment whose turns are not synced one by one
        (durability.py)."""

    @classmethod
    def create(cls, directory: Path, segment_id: int, *, map_bytes: int) -> "Segment":
        """Create an empty segment. It belongs to the store when the catalog has it."""
        path = segment_path(directory, segment_id)
        environment = open_environment(
            path, map_bytes=map_bytes, database_count=_DATABASE_COUNT, create=True
        )
        return cls(segment_id, environment)

    @classmethod
    def open(cls, directory: Path, segment_id: int, *, read_only: bool = True) -> "Segment":
        """Open a segment. Only the store's owner may write to it, while it is active.

        Raises StorageError if the file is missing or unreadable.
        """
        path = segment_path(directory, segment_id)
        environment = open_environment(path, database_count=_DATABASE_COUNT, read_only=read_only)
        return cls(segment_id, environment)

    def begin(self) -> "lmdb.Transaction[memoryview]":
        """Begin a read transaction with values as views. End it soon with abort(): an open one
        keeps the active segment from reusing free pages."""
        return self.lmdb.begin(buffers=True)

    def begin_write(self) -> "lmdb.Transaction[bytes]":
        """Begin the write transaction. One at a time, by the owner."""
        return self.lmdb.begin(self.batches, write=True)

    def sync(self) -> None:
        """Sync the segment and its journal with fdatasync. Safe in another thread. Raises
        StorageError."""
        self.environment.sync()
        if self.journal is not None:
            self.journal.sync()

    def has_aborted(self) -> bool:
        """Whether a transaction was aborted in it, of any partition. Raises StorageError."""
        with storage_errors(self.environment.path.name), self.begin() as transaction:
            return transaction.stat(self.aborted)["entries"] > 0

    def file_bytes(self) -> int:
        return self.environment.path.stat().st_size

    def iterate(
        self, first: int = 0, end: int = NUMBER_MAX + 1, *, offset: int = 0
    ) -> Iterator[StoredBatch]:
        """The batches of the partition numbers [first, end) in key order, those of `first` from
        the base offset `offset` on. The read transaction lasts as long as the iteration."""
        with self.begin() as transaction:
            for key, value in rows_from(transaction, self.batches, KEY.pack(first, offset), end):
                _note_read(len(value))
                number, base_offset = KEY.unpack(key)
                yield StoredBatch(
                    number, base_offset, value[STAMP_SIZE:], OFFSET.unpack_from(value, 8)[0]
                )


class SegmentWriter:
    """Fills a new segment outside of a turn: for rewriting and compaction.

    Batches must come in key order (number, base offset), which fills the pages densely. Commits
    every 2 MB. The segment is part of the store after `finish` and a change of the catalog. Before
    that its file is an orphan, which the next opening of the store removes.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._transaction = segment.begin_write()
        self._turn_bytes = 0
        self._extents: dict[int, Extent] = {}
        self._number = -1
        self._indexer = TimestampIndexer()
        self._leader_epoch = -1

    def put(
        self,
        number: int,
        base_offset: int,
        batch: "memoryview | bytes",
        *,
        log_end_before: int,
        append_ms: int = 0,
    ) -> None:
        """Add a batch with a final header, and its timestamp and leader epoch rows.

        `log_end_before` goes into the stamp: that of the original batch, or the end of the batch
        before it if compaction removed those between. Raises StorageError.
        """
        leader_epoch, last_offset_delta, max_timestamp = _HEADER_FIELDS.unpack_from(
            batch, _HEADER_FIELDS_AT
        )
        size = len(batch)
        segment = self.segment
        if number != self._number:
            self._number = number
            self._indexer = TimestampIndexer()
            self._leader_epoch = -1
        try:
            transaction = self._transaction
            stamp = STAMP.pack(number, transaction.id() & 0xFFFFFFFF, log_end_before)
            key = KEY.pack(number, base_offset)
            if not transaction.put(key, b"".join((stamp, batch)), append=True, db=segment.batches):
                raise StorageError(f"batch {base_offset} of partition {number} is out of order")
            if self._indexer.note(max_timestamp, size):
                row = OFFSET.pack(base_offset)
                transaction.put(KEY.pack(number, max_timestamp), row, db=segment.timestamps)
            if leader_epoch > self._leader_epoch:
                self._leader_epoch = leader_epoch
                row = OFFSET.pack(base_offset)
                transaction.put(EPOCH_KEY.pack(number, leader_epoch), row, db=segment.epochs)
            self._turn_bytes += size
            if self._turn_bytes >= _TURN_BYTES_MAX:
                self.flush()
        except lmdb.Error as error:
            raise StorageError(f"{segment.environment.path.name}: {error}") from error
        end_offset = base_offset + last_offset_delta + 1
        known = self._extents.get(number)
        if known is None:
            known = Extent(segment.segment_id, base_offset, end_offset, 0, 0, -1, append_ms)
        self._extents[number] = known._replace(
            end_offset=end_offset,
            byte_count=known.byte_count + size,
            batch_count=known.batch_count + 1,
            max_timestamp=max(known.max_timestamp, max_timestamp),
        )

    def put_aborted(self, number: int, last_offset: int, row: bytes) -> None:
        """Add an aborted transaction's row from the segment that is replaced."""
        self._transaction.put(KEY.pack(number, last_offset), row, db=self.segment.aborted)

    def flush(self) -> None:
        """Commit the batches so far, so that they can be synced while more are added."""
        self._transaction.commit()
        self._transaction = self.segment.begin_write()
        self._turn_bytes = 0

    def finish(self) -> dict[int, Extent]:
        """Commit and sync. Returns the extents by partition number, with the offsets of the
        batches. A caller that removed batches widens the extents to the offsets that they replace.
        Raises StorageError."""
        with storage_errors(self.segment.environment.path.name):
            self._transaction.commit()
        self.segment.sync()
        return self._extents

    def abort(self) -> None:
        """Abort. The caller removes the file."""
        self._transaction.abort()
