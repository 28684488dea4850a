"""Maintenance of a store between turns: retention, log compaction and reclaiming of space.

`run` returns None if nothing is due. Else it returns an iterator of slices of 2 to 5 ms, which the
owner's loop runs one by one between turns. A slice yields True if the next one may run at once, and
False if it waits for the disk: call again after about 10 ms. There is one run at a time. `close`
aborts it without other effects.

    retention    every retention_check_interval_ms: log starts move by time and by size
    compaction   every cleaner_backoff_ms: due partitions are compacted into a new segment
    space        after those, and after other changes of the catalog: dead segments are dropped,
                 mostly dead ones rewritten, small ones merged

On a StorageError the run ends, its unfinished files are removed, and the next run starts over.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from functools import cache, partial

from msgspec import structs

from odradek.storage.archive_gate import GatedRetention, is_cap_due, offset_by_cap, pass_gate
from odradek.storage.catalog import Catalog
from odradek.storage.compaction import CompactionPass, CompactionPlan, plan_compaction, scratch_path
from odradek.storage.environment import StorageError
from odradek.storage.partition_log import ArchiveState, PartitionLog
from odradek.storage.retention import CountedPrefix, OpenSegment, retained_offset
from odradek.storage.rewrite import (
    Slices,
    drop_dead_segments,
    mergeable_segments,
    rewrite_segments,
    segments_worth_rewriting,
)
from odradek.storage.segment import Extent, Segment
from odradek.storage.settings import StoreOptions
from odradek.storage.status import ReplicaRole

log = logging.getLogger(__name__)

_INITIAL_DELAY_MS = 30_000  # Kafka's: LogManager's InitialTaskDelayMs
_LOGS_PER_SLICE = 100
_MOVES_PER_COMMIT = 250
_EXPIRY_WINDOW_MS = 3_600_000  # a segment that expires within the hour is not copied


class Maintenance:
    """The maintenance of one store, run by its owner's loop."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Mapping[int, PartitionLog],
        *,
        move_log_starts: Callable[[Mapping[int, int]], None],
        options: StoreOptions,
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._move_log_starts = move_log_starts
        self._options = options
        scratch_path(catalog).unlink(missing_ok=True)  # of a pass that was killed
        self._running: Generator[bool, None, None] | None = None
        self._retention_ms: int | None = None
        self._compaction_ms = 0
        self._seen_changes = -1
        self._logged_failure = ""
        """Why the last run failed; empty if it did not."""
        self._below: dict[int, CountedPrefix] = {}
        self._below_cap: dict[int, CountedPrefix] = {}
        self.lost_bytes: dict[str, int] = {}
        """Bytes by topic that were deleted above the cap of a retention gate, without its group."""
        self._uncleanable: dict[int, tuple[Extent, ...]] = {}
        """Partitions with malformed records, and the extents that have them."""

    def run(self, now_ms: int) -> Slices | None:
        """The current run, or a new one if it is due. None if there is none."""
        if self._running is None:
            if self._retention_ms is None:
                delay_ms = min(_INITIAL_DELAY_MS, self._options.retention_check_interval_ms)
                self._retention_ms = now_ms + delay_ms
                self._compaction_ms = now_ms + min(delay_ms, self._options.cleaner_backoff_ms)
            if now_ms < min(self._retention_ms, self._compaction_ms):
                return None
            self._running = self._run(now_ms)
        return self._running

    def set_retention_check_interval_ms(self, interval_ms: int) -> None:
        """Apply retention that often, counted from the last time."""
        if self._retention_ms is not None:
            self._retention_ms += interval_ms - self._options.retention_check_interval_ms
        self._options = structs.replace(self._options, retention_check_interval_ms=interval_ms)

    def close(self) -> None:
        """Abort the current run and remove its unfinished segment."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _run(self, now_ms: int) -> Generator[bool, None, None]:
        try:
            assert self._retention_ms is not None
            if now_ms >= self._retention_ms:
                self._retention_ms = now_ms + self._options.retention_check_interval_ms
                yield from self._retain(now_ms)
            self._compaction_ms = now_ms + self._options.cleaner_backoff_ms
            yield from self._compact(now_ms)
            if self._catalog.change_count != self._seen_changes:
                yield from self._reclaim(now_ms)
                self._seen_changes = self._catalog.change_count
            self._logged_failure = ""
        except StorageError as error:
            # Every run fails while the disk is full, with another file: once is enough.
            cause = str(error).rpartition(": ")[2]
            if cause != self._logged_failure:
                self._logged_failure = cause
                log.warning(
                    "maintenance of a store stopped and starts over later",
                    extra={"path": str(self._catalog.directory), "reason": str(error)},
                )
        finally:
            self._running = None

    # -- retention ----------------------------------------------------------------------------

    def _retain(self, now_ms: int) -> Slices:
        moves: dict[int, int] = {}
        lost: dict[int, int] = {}
        # Segments stay open until the end.
        open_segment = cache(partial(Segment.open, self._catalog.directory))
        for at, number in enumerate(list(self._logs)):
            if at % _LOGS_PER_SLICE == _LOGS_PER_SLICE - 1:
                yield True
            partition = self._logs.get(number)
            if partition is None:
                continue
            # A follower takes over its leader's log start.
            retains = (
                partition.settings.cleanup_delete and partition.role is not ReplicaRole.FOLLOWER
            )
            if not retains and partition.archive is None:
                continue
            offset = partition.log_start_offset
            extents = self._extents(partition, now_ms)
            if retains:
                offset = yield from retained_offset(
                    partition, extents, open_segment, now_ms=now_ms, known=self._below
                )
            if partition.archive is not None:
                gated = yield from self._pass_gate(
                    partition, partition.archive, extents, offset, open_segment, now_ms=now_ms
                )
                offset, lost[number] = gated.log_start_offset, gated.lost_bytes
            if offset > partition.log_start_offset:
                moves[number] = offset
            if len(moves) >= _MOVES_PER_COMMIT:
                self._delete_below(moves, lost)
                moves, lost = {}, {}
                yield True
        self._delete_below(moves, lost)
        for known in (self._below, self._below_cap):
            for number in known.keys() - self._logs.keys():
                del known[number]

    def _pass_gate(
        self,
        partition: PartitionLog,
        archive: ArchiveState,
        extents: list[Extent],
        retained_offset: int,
        open_segment: OpenSegment,
        *,
        now_ms: int,
    ) -> Generator[bool, None, GatedRetention]:
        """What of a log goes now. Notes how far compaction may go, on followers, too."""
        compacts = partition.settings.cleanup_compact
        needed = partition.high_watermark if compacts else retained_offset
        released = max(archive.archived_offset, partition.log_start_offset)
        if released < needed and is_cap_due(archive, now_ms=now_ms):
            archive.capped_offset = yield from offset_by_cap(
                partition, extents, open_segment, now_ms=now_ms, known=self._below_cap
            )
        gated = pass_gate(
            extents,
            log_start_offset=partition.log_start_offset,
            retained_offset=retained_offset,
            archived_offset=archive.archived_offset,
            capped_offset=archive.capped_offset,
        )
        archive.held_bytes = gated.held_bytes
        if archive.archived_offset >= retained_offset:
            archive.is_over_cap = False
        return gated

    def _delete_below(self, moves: Mapping[int, int], lost: Mapping[int, int]) -> None:
        """Move log starts, and note what went by the caps of retention gates."""
        logs = self._logs
        before = {number: logs[number].log_start_offset for number in lost if number in logs}
        self._move_log_starts(moves)
        for number, log_start_offset in before.items():
            partition, count = logs[number], lost[number]
            archive = partition.archive
            if not count or archive is None:
                continue
            name = partition.topic_name
            self.lost_bytes[name] = self.lost_bytes.get(name, 0) + count
            if not archive.is_over_cap:
                archive.is_over_cap = True
                log.warning(
                    "retention deletes records that the group of the archive has not committed:"
                    " the log is above odradek.archive.max.bytes or odradek.archive.max.ms",
                    extra={
                        "topic": name,
                        "partition": partition.partition,
                        "group": archive.group,
                        "offset": max(archive.archived_offset, log_start_offset),
                        "end_offset": moves[number],
                        "action": "start the job that commits for the group, or raise the limit",
                    },
                )

    def _extents(self, partition: PartitionLog, now_ms: int) -> list[Extent]:
        """All extents of a partition. One without timestamps gets the time of its sealing, as Kafka
        uses the file's time, and in the active segment the current time."""
        segments = self._catalog.segments
        extents = [
            extent
            if extent.max_timestamp >= 0
            else extent._replace(max_timestamp=segments[extent.segment_id].sealed_ms)
            for extent in self._catalog.extents.get(partition.number, ())
        ]
        active_id = self._catalog.active_segment_id
        active = None if active_id is None else partition.active_extent(active_id)
        if active is not None:
            extents.append(
                active if active.max_timestamp >= 0 else active._replace(max_timestamp=now_ms)
            )
        return extents

    # -- compaction ---------------------------------------------------------------------------

    def _compact(self, now_ms: int) -> Slices:
        plans = self._plans(now_ms)
        if not plans:
            return
        compaction = CompactionPass(
            self._catalog,
            self._logs,
            plans,
            now_ms=now_ms,
            keys_max=self._options.compaction_keys_max,
        )
        yield from compaction.run()
        for plan in plans:
            fault = compaction.failures.get(plan.number)
            if fault is not None:
                self._uncleanable[plan.number] = plan.clean + plan.dirty
                log.error(
                    "a partition is not compacted, its records are malformed",
                    extra={
                        "path": str(self._catalog.directory),
                        "partition_number": plan.number,
                        "reason": str(fault),
                    },
                )

    def _plans(self, now_ms: int) -> list[CompactionPlan]:
        """The due partitions, the dirtiest first, as many as fill one segment."""
        due = []
        for number, partition in self._logs.items():
            plan = plan_compaction(self._catalog, partition, now_ms=now_ms)
            if plan is not None and self._uncleanable.get(number) != plan.clean + plan.dirty:
                due.append(plan)
        due.sort(key=lambda plan: plan.dirty_ratio, reverse=True)
        plans: list[CompactionPlan] = []
        source_bytes = 0
        for plan in due:
            source_bytes += plan.byte_count
            if plans and source_bytes > self._options.segment_bytes:
                break
            plans.append(plan)
        return plans

    # -- space --------------------------------------------------------------------------------

    def _reclaim(self, now_ms: int) -> Slices:
        catalog, logs = self._catalog, self._logs
        yield from drop_dead_segments(catalog, logs)
        yield True
        for segment_id in segments_worth_rewriting(
            catalog, logs, now_ms=now_ms, expiry_window_ms=_EXPIRY_WINDOW_MS
        ):
            yield from rewrite_segments(catalog, logs, [segment_id])
            yield from drop_dead_segments(catalog, logs)
        while segment_ids := mergeable_segments(catalog, segment_bytes=self._options.segment_bytes):
            yield from rewrite_segments(catalog, logs, segment_ids)
            if not (yield from drop_dead_segments(catalog, logs)):
                break  # the catalog changed in the meantime; the next run tries again
