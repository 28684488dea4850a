"""Reads a store from any process, without a message to its owner.

The reader finds a partition's number and extents in the catalog, its offsets in the status table
and its batches in the segments. It caches the catalog until the table's generation changes. Read
transactions end within the call, so that readers never block the owner. Batches in overflow pages
are returned as views, because these pages do not change while the segment is open. The result keeps
it open.

Called by routers for Fetch, ListOffsets, OffsetForLeaderEpoch and DescribeProducers, by leaders for
their followers, and by the command line on a store without an owner.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from odradek.protocol.sliced_work import SlicedWork
from odradek.storage import log_loader
from odradek.storage.backlog import BATCHES_WALKED_MAX, Backlog, measure
from odradek.storage.catalog import CatalogFile, PartitionRow, SegmentState
from odradek.storage.cursors import last_delta_and_timestamp, rows_from, seek
from odradek.storage.environment import StorageError
from odradek.storage.layout import (
    CATALOG_NAME,
    EPOCH_KEY,
    FUTURE_PARTITION,
    KEY,
    NUMBER,
    OFFSET,
    STAMP_SIZE,
    STATUS_NAME,
)
from odradek.storage.leader_epochs import LeaderEpochs
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.producer_state import ActiveProducer, describe_producers
from odradek.storage.segment import Extent, Segment
from odradek.storage.status import StatusTable
from odradek.storage.timestamp_search import (
    TimestampAndOffset,
    first_record,
    largest_timestamp,
)
from odradek.storage.transactions import AbortedTransactionRow

_unpack_place = Struct(">I12xq").unpack_from
"""Partition number and base offset of a stamped value, without its key."""

_note_read = MAPPED_PAGES.note
_SEGMENTS_OPEN_MAX = 64
SEGMENTS_PER_SLICE = 32
"""That a search of all segments opens at once: about 3 ms."""
BATCHES_PER_READ_MAX = 4_000
"""What one read returns at most: a few milliseconds of looking at batches, however small."""
OFFSET_MAX = 2**63 - 1
_ATTEMPTS = 3
_end_of = attrgetter("end_offset")


class ReadResult(NamedTuple):
    """Whole batches in the order of the log. Keep a reference to `hold` as long as the buffers are
    used. The next read starts at `next_offset`. `first_offset` is the base offset of the first
    batch. Both are the requested offset if there are no batches."""

    buffers: list[memoryview | bytes]
    byte_count: int
    first_offset: int
    next_offset: int
    hold: object
    batch_count: int = 0


class StoreReader:
    """Reads one store. All methods raise StorageError if a file cannot be read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.status = StatusTable.open(directory / STATUS_NAME)
        self._catalog = CatalogFile(directory)
        self._generation = -1
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._extents: dict[int, list[Extent]] = {}
        self._segments: dict[int, Segment] = {}
        self._without_aborted: frozenset[int] = frozenset()
        """Sealed segments that no transaction was aborted in."""
        self._active_id = -1

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether the store has been created."""
        return (directory / STATUS_NAME).exists() and (directory / CATALOG_NAME).exists()

    def close(self) -> None:
        """Release all segments. Results that are still referenced stay valid."""
        self._segments.clear()
        self.status.close()

    def number_of(self, topic_id: bytes, partition: int) -> int | None:
        """The store-local number of a partition. None if it is not in this store."""
        self.refresh()
        number = self._numbers.get((topic_id, partition))
        if number is None:
            number = self._catalog.number_of(topic_id, partition)
            if number is not None:
                self._numbers[topic_id, partition] = number
        return number

    def future_number_of(self, topic_id: bytes, partition: int) -> int | None:
        """The number of a partition's future replica (KIP-113). None if there is none here."""
        return self.number_of(topic_id, partition + FUTURE_PARTITION)

    def read(
        self,
        number: int,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool = True,
        batches_max: int = BATCHES_PER_READ_MAX,
    ) -> ReadResult:
        """Whole batches, starting with the one that contains `offset` (or the next one, if
        compaction removed it): those that start below `end_offset` and fit into `max_bytes`. With
        `min_one_batch` the first one is returned even if it is larger.

        Returns less at the end of a segment, and after `batches_max`. The caller checks the
        offset range with `status`.
        """
        for segment, segment_end in self._segments_from(number, offset):
            result = _read_segment(
                segment,
                number,
                offset,
                max_bytes,
                segment_end if segment_end < end_offset else end_offset,
                min_one_batch,
                batches_max,
            )
            if result is not None:
                _note_read(result.byte_count)
                return result
        return ReadResult([], 0, offset, offset, None)

    def offset_for_timestamp(
        self, number: int, timestamp_ms: int, *, end_offset: int | None = None
    ) -> SlicedWork[TimestampAndOffset | None]:
        """Search the first record with this timestamp or a later one, in [log start, `end_offset`)
        (default: the high watermark). Compressed batches are searched, too."""
        start = self.status.log_start_offset(number)
        if end_offset is None:
            end_offset = self.status.high_watermark(number)
        segments = self._segments_from(number, start, max_timestamp=timestamp_ms)
        return first_record(segments, number, timestamp_ms, start=start, end=end_offset)

    def max_timestamp_offset(
        self, number: int, *, end_offset: int
    ) -> SlicedWork[TimestampAndOffset | None]:
        """Search the first record with the largest timestamp in [log start, `end_offset`). None if
        no record has a timestamp."""
        start = self.status.log_start_offset(number)
        segments = []
        for each in self._segments_from(number, start):
            segments.append(each)
            if len(segments) % SEGMENTS_PER_SLICE == 0:
                yield None
        return (yield from largest_timestamp(segments, number, start=start, end=end_offset))

    def end_offset_for_epoch(self, number: int, leader_epoch: int) -> tuple[int, int]:
        """For OffsetForLeaderEpoch: the largest epoch up to the requested one, and its end
        offset."""
        log_end_offset = self.status.log_end_offset(number)
        return self._epochs(number, log_end_offset).end_offset(leader_epoch, log_end_offset)

    def epoch_start(self, number: int, leader_epoch: int) -> int:
        """The start offset of the epoch. The log end offset if the epoch is not known."""
        log_end_offset = self.status.log_end_offset(number)
        entries = self._epochs(number, log_end_offset).entries
        return next((start for epoch, start in entries if epoch == leader_epoch), log_end_offset)

    def epoch_at(self, number: int, offset: int) -> int:
        """The leader epoch of the record at `offset`. At or above the log end offset the current
        epoch. -1 if it is not known."""
        log_end_offset = self.status.log_end_offset(number)
        epochs = self._epochs(number, log_end_offset)
        if offset >= log_end_offset:
            return epochs.latest
        return epochs.epoch_at(offset)

    def aborted_transactions(
        self, number: int, start_offset: int, end_offset: int, *, count_max: int | None = None
    ) -> list[AbortedTransactionRow]:
        """The aborted transactions that overlap [start_offset, end_offset), in marker order.

        If there are `count_max` or more, those that overlap the offsets up to the marker of the
        `count_max`-th: hardly more than so many.
        """
        aborted = []
        # It may have been aborted in any segment behind its records.
        for segment, segment_end in self._segments_from(number, start_offset, has_aborted=True):
            with segment.begin() as transaction:
                cursor = transaction.cursor(segment.aborted)
                found = cursor.set_range(KEY.pack(number, start_offset))
                while found and NUMBER.unpack_from(cursor.key())[0] == number:
                    entry = AbortedTransactionRow.decode(cursor.value())
                    if entry.last_offset >= segment_end:
                        break  # cut off
                    if entry.first_offset < end_offset:
                        aborted.append(entry)
                        if len(aborted) == count_max:
                            end_offset = min(end_offset, entry.last_offset + 1)
                    if entry.last_stable_offset >= end_offset:
                        return aborted
                    found = cursor.next()
        return aborted

    def producers(self, number: int) -> list[ActiveProducer]:
        """The answer of DescribeProducers for a partition."""
        row = self._row(number)
        if row is None:
            return []
        log = log_loader.load_log(self._catalog, row, self._active())
        return describe_producers(log.producers)

    def size_bytes(self, number: int) -> int:
        """Bytes of the partition's batches in this store. Deleted records count until their
        segments are dropped."""
        self.refresh()
        sealed = sum(extent.byte_count for extent in self._extents_of(number))
        return sealed + self.status.active_bytes(number)

    def backlog(
        self,
        number: int,
        offset: int,
        end_offset: int,
        *,
        batches_max: int = BATCHES_WALKED_MAX,
    ) -> Backlog:
        """The backlog of a consumer at `offset`, up to `end_offset` (exclusive). Both must be
        within the log. Looks at `batches_max` batches at most (backlog.py)."""
        attempt = 0
        while True:
            self.refresh()
            extents = self._extents_of(number)
            start = self.status.log_start_offset(number)
            start = max((extent.end_offset for extent in extents), default=start)
            active = Extent(self._active_id, start, end_offset, self.status.active_bytes(number), 0)
            try:
                return measure(
                    [*self._extents_from(number, offset), active],
                    self._segment,
                    number,
                    offset,
                    end_offset,
                    batches_max,
                )
            except StorageError:
                attempt += 1
                if attempt == _ATTEMPTS:
                    raise
                self._forget()

    def refresh(self) -> None:
        """Clear the cache if the catalog has changed, and release segments that were dropped, so
        that their disk space is freed. To be called regularly where there may be no reads."""
        generation = self.status.generation
        if generation != self._generation:
            self._forget()
            self._generation = generation

    def _forget(self) -> None:
        self._generation = -1
        self._numbers.clear()
        self._extents.clear()
        rows = self._catalog.segment_rows()
        self._active_id = next(
            (row.segment_id for row in rows if row.state is SegmentState.ACTIVE), -1
        )
        # The space of dropped segments is freed when no result refers to them.
        known = {row.segment_id for row in rows}
        self._without_aborted = frozenset(
            row.segment_id for row in rows if not row.may_have_aborted
        )
        for segment_id in self._segments.keys() - known:
            del self._segments[segment_id]

    def _row(self, number: int) -> PartitionRow | None:
        self.refresh()
        return self._catalog.partition(number)

    def _epochs(self, number: int, log_end_offset: int) -> LeaderEpochs:
        row = self._row(number)
        if row is None:
            return LeaderEpochs()
        segment = self._active()
        epochs = LeaderEpochs(row.leader_epochs)
        with segment.begin() as transaction:
            first_key = EPOCH_KEY.pack(number, 0)
            for key, start in rows_from(transaction, segment.epochs, first_key, number + 1):
                epochs.assign(EPOCH_KEY.unpack(key)[1], OFFSET.unpack(start)[0])
        # An epoch without records has no row. It starts at the log end offset.
        epochs.assign(self.status.leader_epoch(number), log_end_offset)
        epochs.truncate_start(self.status.log_start_offset(number))
        return epochs

    def _extents_of(self, number: int) -> list[Extent]:
        extents = self._extents.get(number)
        if extents is None:
            extents = self._extents[number] = self._catalog.extents_of(number)
        return extents

    def _extents_from(self, number: int, offset: int) -> Sequence[Extent]:
        """Those that have offsets from `offset` on, without the active segment's."""
        extents = self._extents_of(number)
        return extents[bisect_right(extents, offset, key=_end_of) :]

    def _segments_from(
        self,
        number: int,
        offset: int,
        *,
        max_timestamp: int | None = None,
        has_aborted: bool = False,
    ) -> Iterator[tuple[Segment, int]]:
        """The segments that may have offsets from `offset` on and, if given, timestamps from
        `max_timestamp` on or rows of aborted transactions, in the order of the log. Each comes with
        the partition's end offset in it: batches beyond that were truncated.

        They are opened one by one: a log may have hundreds, and most readers need one.
        """
        attempt = 0
        while True:
            self.refresh()
            generation = self._generation
            try:
                for extent in self._extents_from(number, offset):
                    segment_id = extent.segment_id
                    if (max_timestamp is None or extent.max_timestamp >= max_timestamp) and not (
                        has_aborted and segment_id in self._without_aborted
                    ):
                        yield self._segment(segment_id), extent.end_offset
                    offset = extent.end_offset
                    if self._generation != generation:
                        break  # the catalog was read again meanwhile
                else:
                    yield self._active(), OFFSET_MAX
                    return
            except StorageError:
                # The segment was dropped or rewritten since the catalog was read. Read it again.
                attempt += 1
                if attempt == _ATTEMPTS:
                    raise
                self._forget()

    def _active(self) -> Segment:
        if self._active_id < 0:
            raise StorageError(f"{self._directory.name} has no active segment")
        return self._segment(self._active_id)

    def _segment(self, segment_id: int) -> Segment:
        segment = self._segments.get(segment_id)
        if segment is None:
            if len(self._segments) >= _SEGMENTS_OPEN_MAX:
                oldest = next(iter(self._segments))
                del self._segments[oldest]
            segment = self._segments[segment_id] = Segment.open(self._directory, segment_id)
        return segment


def _read_segment(
    segment: Segment,
    number: int,
    offset: int,
    max_bytes: int,
    end_offset: int,
    min_one_batch: bool,
    batches_max: int,
) -> ReadResult | None:
    """StoreReader.read for one segment. None if it has no such batches."""
    buffers: list[memoryview | bytes] = []
    small: list[memoryview] = []
    large_size = segment.large_value_size
    byte_count = batch_count = 0
    first_offset = next_offset = offset
    hold: Segment | None = None
    transaction = segment.begin()
    try:
        cursor = transaction.cursor(segment.batches)
        if not seek(cursor, number, offset):
            return None
        value: memoryview | None = None
        following: memoryview
        for following in cursor.iternext(False, True):
            at_number, base_offset = _unpack_place(following)
            if at_number != number or base_offset >= end_offset:
                break
            size = len(following) - STAMP_SIZE
            if byte_count + size > max_bytes and (byte_count or not min_one_batch):
                break
            value = following
            byte_count += size
            batch_count += 1
            if size > large_size:
                if small:
                    buffers.append(b"".join(small))
                    small.clear()
                buffers.append(value[STAMP_SIZE:])
                hold = segment
            else:
                small.append(value[STAMP_SIZE:])
            if batch_count == 1:
                first_offset = base_offset
            if batch_count == batches_max:
                break
        if small:
            buffers.append(b"".join(small))
        if value is not None:
            next_offset = _unpack_place(value)[1] + last_delta_and_timestamp(value)[0] + 1
    finally:
        transaction.abort()
    return ReadResult(buffers, byte_count, first_offset, next_offset, hold, batch_count)
