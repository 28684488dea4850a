"""Log compaction (Kafka's LogCleaner): which partitions are due, and the pass that compacts them.

The leading extents of a compacted partition that are in segments written by compaction
(SegmentRow.is_compacted) are clean, the sealed ones after them are dirty. There is no other
checkpoint. A pass reads the dirty part once to build the offset map, then the clean and the dirty
part to write the remaining records (record_filter.py) of all due partitions into one new segment,
which takes their place in one catalog change (rewrite.py). The active segment is never touched.

Called by maintenance.py.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar

from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import BatchHeader, read_header
from odradek.storage.catalog import Catalog
from odradek.storage.partition_log import PartitionLog
from odradek.storage.record_filter import OffsetMap, RecordFilter
from odradek.storage.rewrite import (
    PartitionRewrite,
    SegmentRewrite,
    Slices,
    aborted_in,
    batches_of,
)
from odradek.storage.segment import Extent, Segment
from odradek.storage.transactions import AbortedTransactionRow

T = TypeVar("T")

_RECORDS_PER_SLICE = 2_000
_SLICE_NS = 4_000_000
"""A slice ends with the batch at which it has taken so long, however many records it has had: on a
busy machine the same work takes several times as long."""
_SCRATCH_NAME = "compaction.scratch"


class CompactionPlan(NamedTuple):
    """A partition that is due: its extents from the log start on, first clean, then dirty."""

    number: int
    clean: tuple[Extent, ...]
    dirty: tuple[Extent, ...]

    @property
    def byte_count(self) -> int:
        return sum(extent.byte_count for extent in self.clean + self.dirty)

    @property
    def dirty_ratio(self) -> float:
        return sum(extent.byte_count for extent in self.dirty) / max(self.byte_count, 1)


def plan_compaction(catalog: Catalog, log: PartitionLog, *, now_ms: int) -> CompactionPlan | None:
    """The compaction that is due for a partition, None if there is none.

    A partition is due if its ratio of dirty bytes exceeds min.cleanable.dirty.ratio, or if it has
    dirty records older than max.compaction.lag.ms (KIP-354). The range ends at records younger than
    min.compaction.lag.ms and at the last stable offset, and with a retention gate at what that
    releases: its group must see each record, and a tombstone above all.
    """
    settings = log.settings
    if not settings.cleanup_compact:
        return None
    clean: list[Extent] = []
    dirty: list[Extent] = []
    offset_max = log.last_stable_offset
    if log.archive is not None:
        offset_max = min(offset_max, log.archive.released_offset)
    for extent in catalog.extents.get(log.number, ()):
        if extent.end_offset <= log.log_start_offset:
            continue
        if not dirty and catalog.segments[extent.segment_id].is_compacted:
            clean.append(extent)
            continue
        is_young = extent.max_timestamp > now_ms - settings.min_compaction_lag_ms
        if extent.end_offset > offset_max or (settings.min_compaction_lag_ms and is_young):
            break
        dirty.append(extent)
    if not dirty:
        return None
    plan = CompactionPlan(log.number, tuple(clean), tuple(dirty))
    is_overdue = now_ms - dirty[0].first_append_ms > settings.max_compaction_lag_ms
    return plan if is_overdue or plan.dirty_ratio > settings.min_cleanable_dirty_ratio else None


class CompactionPass:
    """One pass over the partitions of some plans."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Mapping[int, PartitionLog],
        plans: Sequence[CompactionPlan],
        *,
        now_ms: int,
        keys_max: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._plans = sorted(plans, key=lambda plan: plan.number)
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._clock_ns = clock_ns
        self._slice_records = self._slice_end_ns = 0
        self.failures: dict[int, str] = {}
        """Partitions that were not compacted because of a malformed batch, and the error."""

    def run(self) -> Slices:
        """Raises StorageError, and changes nothing then."""
        with closing(self._run()) as slices:
            self._begin_slice()
            for may_continue_at_once in slices:
                yield may_continue_at_once
                self._begin_slice()

    def _begin_slice(self) -> None:
        self._slice_records = 0
        self._slice_end_ns = self._clock_ns() + _SLICE_NS

    def _run(self) -> Generator[bool, None, None]:
        source_bytes = sum(plan.byte_count for plan in self._plans)
        replacement = SegmentRewrite(self._catalog, source_bytes=source_bytes, is_compacted=True)
        try:
            moves = []
            for plan in self._plans:
                log = self._logs.get(plan.number)
                if log is None:
                    continue
                try:
                    move = yield from self._compact(replacement, plan, log)
                except ProtocolError as error:
                    self.failures[plan.number] = str(error)
                else:
                    moves.append(move)
            yield from replacement.finish(moves)
        finally:
            replacement.abandon()

    def _compact(
        self, replacement: SegmentRewrite, plan: CompactionPlan, log: PartitionLog
    ) -> Generator[bool, None, PartitionRewrite]:
        number = plan.number
        log_start_offset = log.log_start_offset
        sources = plan.clean + plan.dirty
        first_offset = max(sources[0].first_offset, log_start_offset)
        end_offset = sources[-1].end_offset
        aborted = self._aborted(number)
        last_offsets = OffsetMap(
            aborted, keys_max=self._keys_max, scratch_path=scratch_path(self._catalog)
        )
        try:
            for batch, header in self._batches(number, plan.dirty):
                for _ in last_offsets.note(batch, header):
                    yield True
                if self._is_slice_done(header.record_count):
                    yield True
            record_filter = RecordFilter(
                last_offsets,
                aborted,
                dict(log.producers),
                end_offset=end_offset,
                now_ms=self._now_ms,
                delete_retention_ms=log.settings.delete_retention_ms,
            )
            log_end = first_offset
            for batch, header in self._batches(number, sources):
                filtered = yield from _slices_of(record_filter.filter_batch(batch, header))
                batch_end = header.base_offset + header.last_offset_delta + 1
                if filtered is not None and batch_end > log_start_offset:
                    yield from replacement.put(
                        number,
                        header.base_offset,
                        filtered,
                        log_end_before=min(log_end, header.base_offset),
                        append_ms=sources[0].first_append_ms,
                    )
                    log_end = batch_end
                if self._is_slice_done(header.record_count):
                    yield True
        finally:
            last_offsets.close()
        for row in record_filter.transactions.kept:
            if row.last_offset >= log_start_offset:
                replacement.put_aborted(number, row)
        return PartitionRewrite(number, sources, first_offset, end_offset)

    def _batches(
        self, number: int, extents: Sequence[Extent]
    ) -> Iterator[tuple[memoryview, BatchHeader]]:
        for extent in extents:
            for stored in batches_of(self._catalog, number, extent, extent.first_offset):
                yield stored.batch, read_header(stored.batch)

    def _aborted(self, number: int) -> list[AbortedTransactionRow]:
        """All aborted transactions: a marker may be after the range that is compacted."""
        catalog = self._catalog
        ends: dict[int, int | None] = {
            extent.segment_id: extent.end_offset for extent in catalog.extents.get(number, ())
        }
        if catalog.active_segment_id is not None:
            ends[catalog.active_segment_id] = None
        rows = [
            aborted_in(Segment.open(catalog.directory, segment_id), number, end_offset)
            for segment_id, end_offset in ends.items()
        ]
        return [row for segment_rows in rows for row in segment_rows]

    def _is_slice_done(self, record_count: int) -> bool:
        self._slice_records += record_count + 1
        return self._slice_records >= _RECORDS_PER_SLICE or self._clock_ns() >= self._slice_end_ns


def _slices_of(slices: Generator[None, None, T]) -> Generator[bool, None, T]:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result
        yield True


def scratch_path(catalog: Catalog) -> Path:
    """The file for keys that do not fit into memory. Left over only after a kill."""
    return catalog.directory / _SCRATCH_NAME
