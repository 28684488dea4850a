"""Rewriting: a new sealed segment replaces extents of other segments.

`SegmentRewrite` is the only way to move data: copy it into a new file, sync the file, change the
catalog in one commit, and then release the old segments. A crash before or after the commit leaves
an orphan file, which the next opening of the store removes. Readers that have an old file open can
still read it.

`rewrite_segments` uses it for segments with little live data, and to merge small ones. Log
compaction (compaction.py) adds its batches to it. `drop_dead_segments` removes segments without
live data. Long work is a generator of slices of a few milliseconds."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from odradek.storage.catalog import Catalog, SegmentRow, SegmentState
from odradek.storage.cursors import batches_from, rows_from
from odradek.storage.environment import sync_directory
from odradek.storage.layout import KEY, unlink_segment
from odradek.storage.partition_log import PartitionLog
from odradek.storage.retention import live_bytes
from odradek.storage.segment import Extent, Segment, SegmentWriter, StoredBatch
from odradek.storage.syncer import Syncer
from odradek.storage.transactions import AbortedTransactionRow

Slices = Iterator[bool]
"""Work in slices of a few milliseconds. True: continue at once. False: wait for the disk."""

_SLICE_BYTES = 512 << 10
_SLICE_BATCHES = 300
_SYNC_BYTES = 32 << 20  # so that one sync is short, and does not starve those of the turns
_MAP_BYTES_MIN = 64 << 20
_MERGE_COUNT = 8
_EXTENTS_PER_CHANGE = 500
_OVERFLOW_FACTOR = 2  # a value of half a page and a byte takes a page


class PartitionRewrite(NamedTuple):
    """One partition in a rewrite: the offsets [first_offset, end_offset), taken from `sources`."""

    number: int
    sources: tuple[Extent, ...]
    first_offset: int
    end_offset: int


class SegmentRewrite:
    """A segment that is being written. Batches must come in the order of numbers and offsets."""

    def __init__(
        self, catalog: Catalog, *, source_bytes: int, is_compacted: bool | None = None
    ) -> None:
        """`source_bytes` is an upper bound of the data. `is_compacted` None: as the sources are.
        Raises StorageError."""
        self._catalog = catalog
        self._is_compacted = is_compacted
        self.segment_id = catalog.next_segment_id()
        map_bytes = _MAP_BYTES_MIN + (_OVERFLOW_FACTOR + 1) * source_bytes
        self.segment = Segment.create(catalog.directory, self.segment_id, map_bytes=map_bytes)
        self._writer = SegmentWriter(self.segment)
        self._syncer = Syncer()
        self._unsynced_bytes = 0
        self._slice_bytes = 0
        self._slice_batches = 0
        self._is_swapped = False

    def put(
        self,
        number: int,
        base_offset: int,
        batch: "memoryview | bytes",
        *,
        log_end_before: int,
        append_ms: int,
    ) -> Slices:
        """Add a batch. Yields at the end of a slice. Raises StorageError."""
        self._writer.put(
            number, base_offset, batch, log_end_before=log_end_before, append_ms=append_ms
        )
        size = len(batch)
        self._unsynced_bytes += size
        self._slice_bytes += size
        self._slice_batches += 1
        if self._unsynced_bytes >= _SYNC_BYTES:
            yield from self._sync()
        if self._slice_bytes >= _SLICE_BYTES or self._slice_batches >= _SLICE_BATCHES:
            self._slice_bytes = self._slice_batches = 0
            self._writer.flush()
            yield True

    def put_aborted(self, number: int, row: AbortedTransactionRow) -> None:
        """Add an aborted transaction's row. In any order."""
        self._writer.put_aborted(number, row.last_offset, row.encode())

    def finish(self, moves: Sequence[PartitionRewrite]) -> Slices:
        """Sync the segment and enter it into the catalog. A partition that was deleted, or whose
        sources have changed in the meantime (truncation), is left out. Raises StorageError."""
        yield from self._sync()
        extents = self._writer.finish()
        sync_directory(self._catalog.directory)
        self._swap(moves, extents)

    def abandon(self) -> None:
        """Remove the file, unless it was entered into the catalog."""
        self._syncer.close()
        if not self._is_swapped:
            self._writer.abort()
            unlink_segment(self._catalog.directory, self.segment_id)

    def _sync(self) -> Slices:
        """Sync in another thread, while the owner's turns continue."""
        self._writer.flush()
        self._unsynced_bytes = 0
        self._syncer.request(self.segment)
        while self._syncer.is_busy:
            yield False
            self._syncer.poll()

    def _swap(self, moves: Sequence[PartitionRewrite], written: Mapping[int, Extent]) -> None:
        catalog = self._catalog
        valid = [move for move in moves if self._is_valid(move)]
        with catalog.change() as change:
            taken = []
            for move in valid:
                extent = written.get(move.number)
                if extent is not None:
                    extent = extent._replace(
                        first_offset=move.first_offset, end_offset=move.end_offset
                    )
                    change.put_extent(move.number, extent)
                    taken.append(extent)
                for source in move.sources:
                    change.delete_extent(move.number, source.segment_id)
            if taken:
                change.put_segment(self._row(valid, taken))
                catalog.rewrite_count += 1
        self._is_swapped = bool(taken)

    def _is_valid(self, move: PartitionRewrite) -> bool:
        current = self._catalog.extents.get(move.number, ())
        return move.number in self._catalog.partitions and all(
            source in current for source in move.sources
        )

    def _row(self, moves: Sequence[PartitionRewrite], taken: Sequence[Extent]) -> SegmentRow:
        segments = self._catalog.segments
        sources = [segments[source.segment_id] for move in moves for source in move.sources]
        return SegmentRow(
            self.segment_id,
            SegmentState.SEALED,
            created_ms=min(row.created_ms for row in sources),
            sealed_ms=max(row.sealed_ms for row in sources),
            file_bytes=self.segment.file_bytes(),
            byte_count=sum(extent.byte_count for extent in taken),
            max_timestamp=max(extent.max_timestamp for extent in taken),
            is_compacted=(
                all(row.is_compacted for row in sources)
                if self._is_compacted is None
                else self._is_compacted
            ),
            may_have_aborted=self.segment.has_aborted(),
        )


def base_offset_at(segment: Segment, number: int, offset: int) -> int:
    """The base offset of the batch that contains `offset` (a log start may be inside a batch). If
    there is none, `offset` itself."""
    with segment.begin() as transaction:
        for base_offset, _ in batches_from(transaction, segment.batches, number, offset):
            return min(base_offset, offset)
    return offset


def batches_of(catalog: Catalog, number: int, extent: Extent, offset: int) -> Iterator[StoredBatch]:
    """The batches of an extent, starting with the one that contains `offset`. Those beyond the end
    of the extent were truncated."""
    segment = Segment.open(catalog.directory, extent.segment_id)
    offset = base_offset_at(segment, number, offset)
    for stored in segment.iterate(number, number + 1, offset=offset):
        if stored.base_offset >= extent.end_offset:
            return
        yield stored


def aborted_in(
    segment: Segment, number: int, end_offset: int | None = None
) -> list[AbortedTransactionRow]:
    """The aborted transactions of a partition whose markers are in this segment and, if it was
    truncated, below `end_offset`."""
    with segment.begin() as transaction:
        found = rows_from(transaction, segment.aborted, KEY.pack(number, 0), number + 1)
        rows = [AbortedTransactionRow.decode(row) for _, row in found]
    return [row for row in rows if end_offset is None or row.last_offset < end_offset]


def extents_by_segment(catalog: Catalog) -> dict[int, dict[int, Extent]]:
    """The extents of each segment, by partition number, including deleted partitions."""
    found: dict[int, dict[int, Extent]] = {segment_id: {} for segment_id in catalog.segments}
    for number, extents in catalog.extents.items():
        for extent in extents:
            found.setdefault(extent.segment_id, {})[number] = extent
    return found


def drop_dead_segments(
    catalog: Catalog, logs: Mapping[int, PartitionLog]
) -> Generator[bool, None, list[int]]:
    """Remove the sealed segments that have only batches below the log start or of deleted
    partitions, and unlink their files. Returns their ids."""
    dead = {
        segment_id: list(extents)
        for segment_id, extents in extents_by_segment(catalog).items()
        if catalog.segments[segment_id].state is SegmentState.SEALED
        and not any(_is_alive(logs, number, extent) for number, extent in extents.items())
    }
    for segment_id, numbers in dead.items():
        while len(numbers) > _EXTENTS_PER_CHANGE:
            with catalog.change() as change:
                for number in numbers[-_EXTENTS_PER_CHANGE:]:
                    change.delete_extent(number, segment_id)
            del numbers[-_EXTENTS_PER_CHANGE:]
            yield True
        with catalog.change() as change:
            change.delete_segment(segment_id)
        unlink_segment(catalog.directory, segment_id)
        yield True
    return list(dead)


def rewrite_segments(
    catalog: Catalog, logs: Mapping[int, PartitionLog], segment_ids: Sequence[int]
) -> Slices:
    """Copy the live data of sealed segments into one new segment that replaces them. The extents of
    each partition must be adjacent (`mergeable_segments`)."""
    by_segment = extents_by_segment(catalog)
    sources: dict[int, list[Extent]] = {}
    for segment_id in segment_ids:
        for number, extent in by_segment[segment_id].items():
            if _is_alive(logs, number, extent):
                sources.setdefault(number, []).append(extent)
    source_bytes = sum(e.byte_count for extents in sources.values() for e in extents)
    replacement = SegmentRewrite(catalog, source_bytes=source_bytes)
    try:
        moves = []
        for number, extents in sorted(sources.items()):
            log = logs.get(number)
            if log is None:
                continue
            extents.sort(key=lambda extent: extent.first_offset)
            # Data below the log start is not copied. The new extent starts at the log start.
            log_start_offset = log.log_start_offset
            for extent in extents:
                yield from _copy(replacement, catalog, number, extent, log_start_offset)
            first_offset = max(extents[0].first_offset, log_start_offset)
            moves.append(
                PartitionRewrite(number, tuple(extents), first_offset, extents[-1].end_offset)
            )
        yield from replacement.finish(moves)
    finally:
        replacement.abandon()


def _copy(
    replacement: SegmentRewrite,
    catalog: Catalog,
    number: int,
    extent: Extent,
    log_start_offset: int,
) -> Slices:
    first_offset = max(extent.first_offset, log_start_offset)
    for stored in batches_of(catalog, number, extent, first_offset):
        yield from replacement.put(
            number,
            stored.base_offset,
            stored.batch,
            log_end_before=stored.log_end_before,
            append_ms=extent.first_append_ms,
        )
    source = Segment.open(catalog.directory, extent.segment_id)
    for row in aborted_in(source, number, extent.end_offset):
        if row.last_offset >= log_start_offset:
            replacement.put_aborted(number, row)


def _is_alive(logs: Mapping[int, PartitionLog], number: int, extent: Extent) -> bool:
    log = logs.get(number)
    return log is not None and extent.end_offset > log.log_start_offset


def segments_worth_rewriting(
    catalog: Catalog, logs: Mapping[int, PartitionLog], *, now_ms: int, expiry_window_ms: int
) -> list[int]:
    """The sealed segments that are at most half live, and have live data that will not expire
    within `expiry_window_ms`. Rewriting them frees at least as much as it writes."""
    found = []
    for segment_id, extents in extents_by_segment(catalog).items():
        row = catalog.segments[segment_id]
        if row.state is not SegmentState.SEALED:
            continue
        alive = lasting = 0
        for number, extent in extents.items():
            log = logs.get(number)
            if log is None:
                continue
            live = live_bytes(extent, log.log_start_offset)
            alive += live
            settings = log.settings
            expires = settings.cleanup_delete and settings.retention_ms >= 0
            if log.archive is not None and extent.end_offset > log.archive.released_offset:
                expires = False  # it waits for a group, nobody knows how long
            if (
                not expires
                or extent.max_timestamp + settings.retention_ms > now_ms + expiry_window_ms
            ):
                lasting += live
        if lasting and 2 * alive <= row.byte_count:
            found.append(segment_id)
    return found


def mergeable_segments(catalog: Catalog, *, segment_bytes: int) -> list[int]:
    """Adjacent small segments to merge into one: `_MERGE_COUNT` of about the same size, so that
    each byte is copied only a few times in total. Empty if there are none."""
    rows = sorted(
        (row for row in catalog.segments.values() if row.state is SegmentState.SEALED),
        key=lambda row: (row.is_compacted, row.created_ms, row.segment_id),
    )
    tiers = [(row.is_compacted, _tier(row.byte_count)) for row in rows]
    for at in range(len(rows) - _MERGE_COUNT + 1):
        run = rows[at : at + _MERGE_COUNT]
        if len(set(tiers[at : at + _MERGE_COUNT])) > 1:
            continue
        if sum(row.byte_count for row in run) > segment_bytes // 2:
            continue
        segment_ids = [row.segment_id for row in run]
        if _are_neighbours(catalog, set(segment_ids)):
            return segment_ids
    return []


def _tier(byte_count: int) -> int:
    return max(byte_count >> 20, 1).bit_length() // 3


def _are_neighbours(catalog: Catalog, segment_ids: set[int]) -> bool:
    """Whether the extents of each partition in these segments are adjacent."""
    for extents in catalog.extents.values():
        inside = [extent.segment_id in segment_ids for extent in extents]
        if True in inside:
            first = inside.index(True)
            count = inside.count(True)
            if not all(inside[first : first + count]):
                return False
    return True
