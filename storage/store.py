"""A store: the partitions that share one sequence of segments. One process writes it.

The owner is a single-threaded loop: `begin` a turn, append, `commit`, reply, and between turns
`run_due_tasks` and slices of `maintenance`. Only disk operations block. Changes become visible to
readers in other processes in this order: segment, catalog, generation, offsets.

    Store.open      lock, catalog, recovery, active segment, status table
    begin           a turn on the active segment, which is rolled first if that is due
    run_due_tasks   durability `interval`: fdatasync in a thread, at most sync_interval_ms late
    close           checkpoint all partitions, sync, mark the store clean
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from odradek.protocol.types import NEVER
from odradek.storage import log_loader, recovery
from odradek.storage.append import Turn, write_checkpoints
from odradek.storage.catalog import Catalog, CatalogChange, PartitionRow, SegmentRow, SegmentState
from odradek.storage.durability import Flusher
from odradek.storage.environment import StorageError, storage_errors
from odradek.storage.future_replicas import FutureReplicas
from odradek.storage.layout import STATUS_NAME, unlink_journal, unlink_segment
from odradek.storage.log_starts import LogStarts
from odradek.storage.maintenance import Maintenance
from odradek.storage.partition_log import NewPartition, PartitionLog
from odradek.storage.producer_state import ActiveProducer, describe_producers
from odradek.storage.reserve import DISK_FULL, disk_problem, is_disk_space_low
from odradek.storage.retention import live_bytes
from odradek.storage.segment import Extent, Segment
from odradek.storage.segment_roll import current_row, roll_deadline_ms, seal
from odradek.storage.settings import Durability, LogSettings, StoreOptions
from odradek.storage.status import (
    ACTIVE_BYTES,
    HEAD_WORDS,
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LEADER_EPOCH,
    LOG_END_OFFSET,
    LOG_START_OFFSET,
    ROLE,
    SLOT_SHIFT,
    ReplicaRole,
    StatusTable,
)
from odradek.storage.truncation import TruncatedLog, truncate_fully, truncate_log

_MAP_CHECK_BYTES = 4 << 20


class Store:
    """One store, opened for writing by this process alone. Made by `Store.open`."""

    def __init__(
        self,
        directory: Path,
        options: StoreOptions,
        *,
        lock: int,
        catalog: Catalog,
        status: StatusTable,
    ) -> None:
        self.directory = directory
        self.options = options
        self.catalog = catalog
        self.status = status
        self._lock = lock
        self._logs: dict[int, PartitionLog] = {}
        self._dead: dict[int, Extent | None] = {}
        """Deleted partitions that still have data, and their extents in the active segment."""
        self._recovered_high_watermarks: dict[int, int] = {}
        """The high watermarks that replicated logs restart from after the store was opened."""
        self._dirty_rows: set[int] = set()
        """Partitions whose settings in the catalog are outdated. They are written later."""
        self._segment: Segment
        self._active_bytes = 0
        self._dead_bytes = 0
        """Bytes in the active segment that belong to deleted partitions or records."""
        self._unchecked_map_bytes = 0
        self._roll_deadline_ms = NEVER
        self._is_roll_due = False
        self._must_roll_now = False
        self._disk_problem: str | None = None
        self._flusher = Flusher(options)
        self._rows_deadline_ms = 0
        self._expiration_check_ms = 0
        self._turn: Turn | None = None
        self.log_starts: LogStarts
        self.future_replicas: FutureReplicas
        self._maintenance: Maintenance

    @classmethod
    def open(cls, directory: Path, options: StoreOptions, now_ms: int) -> "Store":
        """Open the store in the folder, which is created if it is missing, and recover it if its
        last owner was killed or the machine crashed.

        Raises StorageError if another process owns it or its files cannot be read.
        """
        with storage_errors(f"stores/{directory.name}"):
            return cls._open(directory, options, now_ms)

    @classmethod
    def _open(cls, directory: Path, options: StoreOptions, now_ms: int) -> "Store":
        directory.mkdir(parents=True, exist_ok=True)
        lock = log_loader.lock_store(directory)
        try:
            catalog = Catalog(directory, map_bytes=options.catalog_map_bytes)
            status = StatusTable.create(directory / STATUS_NAME, options.status_slots)
            store = cls(directory, options, lock=lock, catalog=catalog, status=status)
            store._recover(now_ms)
        except BaseException:
            os.close(lock)
            raise
        return store

    # -- partitions ---------------------------------------------------------------------------

    def partitions(self) -> Mapping[int, PartitionLog]:
        """Every partition by its number; for reading."""
        return self._logs

    def number_of(self, topic_id: bytes, partition: int) -> int | None:
        """The store-local number of a partition, None if it is not here."""
        return self.catalog.numbers.get((topic_id, partition))

    def create_partitions(self, partitions: Iterable[NewPartition]) -> list[int]:
        """Create partitions in one synced change of the catalog. Existing ones get these settings
        and leader epoch. Returns the numbers in order. Raises StorageError."""
        wanted = list(partitions)
        missing: dict[tuple[bytes, int], NewPartition] = {}
        for new in wanted:
            if new.key not in self.catalog.numbers:
                missing.setdefault(new.key, new)
        created: list[PartitionLog] = []
        if missing:
            with self.catalog.change(may_use_reserve=False) as change:
                for new in missing.values():
                    number = change.new_number()
                    if number >= self.status.slot_count:
                        raise StorageError(
                            f"all {self.status.slot_count} partition slots of the store are in use"
                        )
                    self.status.allocate_slots(number + 1)
                    # A follower takes leader epochs from the records that it fetches.
                    leads = new.role is ReplicaRole.LEADER and new.leader_epoch >= 0
                    epochs = ((new.leader_epoch, 0),) if leads else ()
                    row = PartitionRow(
                        number,
                        *new[:3],
                        settings=new.settings,
                        leader_epochs=epochs,
                        is_future=new.is_future,
                    )
                    change.put_partition(row)
                    created.append(PartitionLog(row))
                # The slots must be right before the generation makes readers look at them.
                for log in created:
                    self._write_status(log)
        for log in created:
            self._logs[log.number] = log
        numbers = []
        for new in wanted:
            number = self.catalog.numbers[new.key]
            self.set_settings(number, new.settings)
            self.set_leader_epoch(number, new.leader_epoch, new.role)
            numbers.append(number)
        return numbers

    def delete_partitions(self, numbers: Iterable[int]) -> None:
        """Delete partitions in one synced change of the catalog. Their space is freed when the
        segments with their data are dropped or rewritten. Raises StorageError."""
        gone = [number for number in numbers if number in self._logs]
        if not gone:
            return
        with self.catalog.change() as change:
            for number in gone:
                change.delete_partition(number)
        segment_id = self._segment.segment_id
        for number in gone:
            log = self._logs.pop(number)
            self._flusher.forget(log)
            self._dirty_rows.discard(number)
            self.status.clear(number)
            self._dead[number] = extent = log.active_extent(segment_id)
            if extent is not None:
                self._note_dead_bytes(live_bytes(extent, log.log_start_offset))
        self._free_numbers()

    def set_settings(self, number: int, settings: LogSettings) -> None:
        """Change a partition's settings, effective with the next append."""
        log = self._logs[number]
        if log.settings == settings:
            return
        log.apply_settings(settings)
        self._dirty_rows.add(number)
        self._note_roll_deadline(log)

    def set_leader_epoch(
        self, number: int, leader_epoch: int, role: ReplicaRole = ReplicaRole.LEADER
    ) -> None:
        """Set the partition's current leader epoch. On the leader the epoch starts at the log end
        offset, even if nothing is appended in it."""
        log = self._logs[number]
        log.role = role
        if leader_epoch > log.leader_epoch:
            log.leader_epoch = leader_epoch
            if role is ReplicaRole.LEADER:
                log.epochs.assign(leader_epoch, log.log_end_offset)
        self.status.set(number, LEADER_EPOCH, log.leader_epoch)
        self.status.set(number, ROLE, role)

    def set_replicated(self, number: int, is_replicated: bool) -> None:
        """Whether `set_high_watermark` moves the high watermark. Else it is the log end offset."""
        log = self._logs[number]
        log.is_replicated = is_replicated
        recovered_high_watermark = self._recovered_high_watermarks.pop(number, None)
        if not is_replicated:
            self.set_high_watermark(number, log.log_end_offset)
        elif recovered_high_watermark is not None and recovered_high_watermark < log.high_watermark:
            # Once after opening: records beyond it may not be on any other replica.
            log.high_watermark = recovered_high_watermark
            self._publish(log)

    def set_high_watermark(self, number: int, offset: int) -> None:
        """Everything below `offset` is replicated. Readers see it at once. The high watermark never
        moves back, and never beyond the log end offset."""
        log = self._logs[number]
        log.high_watermark = max(log.high_watermark, min(offset, log.log_end_offset))
        log.undecided.on_high_watermark_updated(log.high_watermark)
        self._publish(log)

    def truncate(self, ends: Mapping[int, int], now_ms: int) -> None:
        """Truncate the logs, by number, to these offsets (to the start of the batch that contains
        one). The change is on disk when this returns. Not inside a turn.

        Costs a sync of the active segment and one of the catalog. Raises StorageError, and
        truncates nothing then."""
        ends = {n: end for n, end in ends.items() if end < self._logs[n].log_end_offset}
        self._truncate_with(ends, truncate_log, now_ms)

    def truncate_fully_and_start_at(self, number: int, start_offset: int, now_ms: int) -> None:
        """Empty a log: it starts and ends at `start_offset`. Otherwise like `truncate`."""
        self._truncate_with({number: start_offset}, truncate_fully, now_ms)

    def _truncate_with(
        self,
        offsets: Mapping[int, int],
        cut: Callable[[CatalogChange, Catalog, PartitionLog, int], TruncatedLog],
        now_ms: int,
    ) -> None:
        logs = self._logs
        if not offsets:
            return
        if any(logs[number].active_batches for number in offsets):
            self.roll(now_ms)
        with self.catalog.change() as change:
            cuts = [cut(change, self.catalog, logs[n], offset) for n, offset in offsets.items()]
        for each in cuts:
            each.apply()
            self._write_status(each.log)
        self.status.publish()

    def producers(self, number: int) -> list[ActiveProducer]:
        """The answer of DescribeProducers for a partition."""
        return describe_producers(self._logs[number].producers)

    def end_offset_for_epoch(self, number: int, leader_epoch: int) -> tuple[int, int]:
        """For OffsetForLeaderEpoch: the largest epoch up to the requested one, and its end
        offset."""
        log = self._logs[number]
        return log.epochs.end_offset(leader_epoch, log.log_end_offset)

    @property
    def lost_bytes(self) -> Mapping[str, int]:
        """Bytes by topic that retention deleted without the group of the archive, by its cap."""
        return self._maintenance.lost_bytes

    # -- turns --------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> Turn:
        """Begin a turn. There is one at a time, until it is committed or aborted. Raises
        StorageError if a sync has failed: then the store takes no appends until it is opened
        again."""
        if self._flusher.failure is not None:
            raise StorageError(self._flusher.failure)
        assert self._turn is None or self._turn.has_ended, "the turn before has not ended"
        if self._is_roll_due or now_ms >= self._roll_deadline_ms:
            self._roll_when_synced(now_ms)
        self._turn = turn = Turn(
            self._logs,
            self._segment,
            self._on_turn_end,
            now_ms,
            self.options.checkpoint_batches,
        )
        if self._disk_problem is not None:
            # The first free blocks are kept for operations that free more. Without the folder, the
            # files are still there, but only until this process ends.
            self._disk_problem = turn.failure = disk_problem(self.directory, was_full=True)
        return turn

    @property
    def sync_failure(self) -> str | None:
        """Why a sync has failed: the store takes no appends until it is opened again."""
        return self._flusher.failure

    def disk_problem(self, *, was_full: bool) -> str | None:
        """What keeps the store from being written, or None. `was_full`: DISK_FULL was the answer
        before."""
        was_full |= self._disk_problem == DISK_FULL
        problem = disk_problem(self.directory, was_full=was_full)
        if problem not in (None, DISK_FULL):
            self._disk_problem = problem
        return problem

    def _on_turn_end(self, turn: Turn) -> bool:
        """If the turn was committed, publish the new offsets. True if it is synced to disk."""
        if turn.failure is not None:
            self._is_roll_due |= turn.needs_new_segment
            self._must_roll_now |= turn.needs_new_segment
            if turn.is_disk_full or is_disk_space_low(self.directory):
                self._disk_problem = self._disk_problem or DISK_FULL
            return False
        options = self.options
        grown = turn.grown.values()
        is_synced = self._flusher.after_turn(turn, grown, self._segment)
        words = self.status.words
        for log in grown:
            base = HEAD_WORDS + (log.number << SLOT_SHIFT)
            end = log.log_end_offset
            if not log.is_replicated:
                log.high_watermark = end
            undecided = log.undecided
            if undecided.unreplicated:
                undecided.on_high_watermark_updated(log.high_watermark)
            words[base + LOG_END_OFFSET] = end
            words[base + HIGH_WATERMARK] = log.high_watermark
            words[base + LAST_STABLE_OFFSET] = undecided.last_stable_offset(log.high_watermark)
            words[base + ACTIVE_BYTES] = log.active_bytes
            settings = log.settings
            if log.active_batches == 1 or settings.segment_bytes < options.segment_bytes:
                self._note_roll_deadline(log)
                limit = max(settings.segment_bytes, options.segment_bytes_min)
                self._is_roll_due |= log.active_bytes >= limit
        self.status.publish()
        self._active_bytes += turn.appended_bytes
        self._unchecked_map_bytes += turn.appended_bytes
        if self._active_bytes >= options.segment_bytes or (
            self._unchecked_map_bytes >= _MAP_CHECK_BYTES and self._is_map_nearly_full()
        ):
            self._is_roll_due = True
        return is_synced

    # -- time ---------------------------------------------------------------------------------

    def run_due_tasks(self, now_ms: int) -> None:
        """Run what is due: a sync in the sync thread, rolling by age, writing changed settings. To
        be called in every round of the loop.

        Raises StorageError if a sync has failed. The state of the unsynced pages is unknown then,
        and the store takes no appends until it is opened again.
        """
        self._flusher.sync_if_due(now_ms, self._segment)
        if self._is_roll_due or now_ms >= self._roll_deadline_ms:
            self._roll_when_synced(now_ms)
        if self._dirty_rows and now_ms >= self._rows_deadline_ms:
            self._rows_deadline_ms = now_ms + self.options.sync_interval_ms
            # On a full disk they are not written. After a restart they come from the metadata.
            with suppress(StorageError):
                self._keep_rows()

    def next_deadline_ms(self) -> int:
        """When `run_due_tasks` is due next. NEVER if not before the next append."""
        deadline_ms = min(self._flusher.deadline_ms, self._roll_deadline_ms)
        return min(deadline_ms, self._rows_deadline_ms) if self._dirty_rows else deadline_ms

    def expire_producers(self, now_ms: int) -> None:
        """Remove producers that have been idle for producer.id.expiration.ms. Their rows are
        deleted when the segment is sealed."""
        expiration_ms = self.options.producer_id_expiration_ms
        for log in self._logs.values():
            log.expire_producers(now_ms, expiration_ms)

    def set_options(self, options: StoreOptions) -> None:
        """Use producer.id.expiration.ms, log.retention.check.interval.ms and durability of these
        from now on; durability `interval` from the next segment on."""
        before, self.options = self.options, options
        if before.producer_id_expiration_ms != options.producer_id_expiration_ms:
            self._expiration_check_ms = 0
        if before.retention_check_interval_ms != options.retention_check_interval_ms:
            self._maintenance.set_retention_check_interval_ms(options.retention_check_interval_ms)
        self._flusher.syncs_each_turn = options.durability is Durability.COMMIT
        if log_loader.needs_journal(options) and self._segment.journal is None:
            self._is_roll_due = True

    def maintenance(self, now_ms: int) -> Iterator[bool] | None:
        """Retention, compaction and reclaiming of space, in slices of a few milliseconds that run
        between turns. None if nothing is due. A slice yields True if the next one may run at once,
        and False if it waits for the disk. Not inside a turn."""
        if now_ms >= self._expiration_check_ms:
            self._expiration_check_ms = now_ms + self.options.producer_id_expiration_check_ms
            self.expire_producers(now_ms)
        self.catalog.refill_reserves()
        return self._maintenance.run(now_ms)

    def close(self) -> None:
        """Checkpoint all partitions, sync, and release the store. Turns must have ended. Raises
        StorageError, and closes the store even then."""
        try:
            self._maintenance.close()
            self._flusher.close()
            if self._flusher.failure is None:
                write_checkpoints(self._segment, self._logs.values())
                if self._segment.journal is not None:
                    self._segment.journal.trim()
                self._segment.sync()
                self._keep_rows()
                with self.catalog.change() as change:
                    change.put_property("clean", "1")
        finally:
            self.status.close()
            os.close(self._lock)

    def sync(self) -> None:
        """Wait until everything that was committed is on disk. Raises StorageError."""
        self._flusher.sync(self._segment)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and start a new one. Raises StorageError, and keeps the old one
        active then."""
        old = self._segment
        self._flusher.sync(old)
        new_id = self.catalog.next_segment_id()
        new = log_loader.create_active_segment(self.directory, new_id, self.options)
        try:
            with self.catalog.change() as change:
                is_empty = not seal(
                    change, self.catalog, old, logs=self._logs, dead=self._dead, now_ms=now_ms
                )
                change.put_segment(SegmentRow(new_id, SegmentState.ACTIVE, created_ms=now_ms))
        except BaseException:
            unlink_segment(self.directory, new_id)
            raise
        if is_empty:
            unlink_segment(self.directory, old.segment_id)
        else:
            unlink_journal(self.directory, old.segment_id)
        self._segment = new
        # The last turn refers to the old segment, which must become unreferenced.
        self._turn = None
        self._active_bytes = self._dead_bytes = self._unchecked_map_bytes = 0
        self._is_roll_due = self._must_roll_now = False
        self._roll_deadline_ms = NEVER
        for log in self._logs.values():
            log.start_segment()
            self.status.set(log.number, ACTIVE_BYTES, 0)
        self._dead = dict.fromkeys(self._dead)
        self._free_numbers()

    def _roll_when_synced(self, now_ms: int) -> None:
        """Roll after the sync thread has synced most of the segment, so that the roll takes little
        time. A roll that fails is retried at the next call."""
        if self._must_roll_now or self._flusher.is_presynced(self._segment):
            with suppress(StorageError):
                self.roll(now_ms)

    def _is_map_nearly_full(self) -> bool:
        """Whether the map is nearly full. By pages, because small batches leave them half empty."""
        self._unchecked_map_bytes = 0
        information = self._segment.lmdb.info()
        used_bytes = information["last_pgno"] * self._segment.environment.page_size
        return used_bytes >= information["map_size"] // 4 * 3

    def _note_dead_below(self, log: PartitionLog, offset: int) -> None:
        extent = log.active_extent(self._segment.segment_id)
        if extent is not None:
            before = live_bytes(extent, log.log_start_offset)
            self._note_dead_bytes(before - live_bytes(extent, offset))

    def _note_dead_bytes(self, byte_count: int) -> None:
        """Roll when much of the active segment is dead: only a sealed segment can be dropped."""
        self._dead_bytes += byte_count
        enough = max(self.options.segment_dead_bytes_max, self._active_bytes // 2)
        self._is_roll_due |= self._dead_bytes >= enough

    def _note_roll_deadline(self, log: PartitionLog) -> None:
        if log.active_batches:
            self._roll_deadline_ms = min(self._roll_deadline_ms, roll_deadline_ms(log))

    # -- rows ---------------------------------------------------------------------------------

    def _keep_rows(self) -> None:
        if self._dirty_rows:
            with self.catalog.change(may_use_reserve=False) as change:
                for number in self._dirty_rows:
                    change.put_partition(current_row(self.catalog, self._logs[number]))
            self._dirty_rows.clear()

    def _write_status(self, log: PartitionLog) -> None:
        words = self.status.words
        base = HEAD_WORDS + (log.number << SLOT_SHIFT)
        words[base + LOG_START_OFFSET] = log.log_start_offset
        words[base + LOG_END_OFFSET] = log.log_end_offset
        words[base + HIGH_WATERMARK] = log.high_watermark
        words[base + LAST_STABLE_OFFSET] = log.last_stable_offset
        words[base + LEADER_EPOCH] = log.leader_epoch
        words[base + ACTIVE_BYTES] = log.active_bytes
        words[base + ROLE] = log.role

    def _publish(self, log: PartitionLog) -> None:
        self._write_status(log)
        self.status.publish()

    def _on_catalog_change(self) -> None:
        self.status.raise_generation()
        self._free_numbers()

    def _free_numbers(self) -> None:
        """Free the numbers of deleted partitions that have no data left."""
        extents = self.catalog.extents
        free = [n for n, extent in self._dead.items() if extent is None and n not in extents]
        for number in free:
            del self._dead[number]
            self.catalog.free_numbers.append(number)

    # -- opening ------------------------------------------------------------------------------

    def _recover(self, now_ms: int) -> None:
        catalog = self.catalog
        boot_id = recovery.boot_id()
        was_closed = catalog.file.property_of("clean") != "0"
        may_be_torn = recovery.may_be_torn(
            was_closed=was_closed,
            boot_id_then=catalog.file.property_of("boot_id") or "",
            boot_id_now=boot_id,
        )
        log_loader.remove_orphans(catalog)
        if may_be_torn:
            log_loader.examine_active_segment(catalog, self.options, now_ms)
        active_id = catalog.active_segment_id
        if active_id is None:
            active_id = catalog.next_segment_id()
            segment = log_loader.create_active_segment(self.directory, active_id, self.options)
        else:
            segment = log_loader.reopen_active_segment(
                self.directory, active_id, self.options, was_closed=was_closed
            )
        self._segment = segment
        self._logs = log_loader.load_logs(catalog)
        self.log_starts = LogStarts(catalog, self._logs, self.status, self._note_dead_below)
        self.future_replicas = FutureReplicas(catalog, self._logs, self.sync, self._publish)
        log_loader.replay_segment(self._logs, segment, trusts_checkpoints=not may_be_torn)
        log_loader.mark_open(catalog, self._logs, active_id, boot_id=boot_id, now_ms=now_ms)
        self._recover_dead(segment)
        for log in self._logs.values():
            self._recover_log(log, is_trusted=not may_be_torn)
        self._note_dead_bytes(0)
        self.expire_producers(now_ms)
        self._maintenance = Maintenance(
            catalog, self._logs, move_log_starts=self.log_starts.move, options=self.options
        )
        catalog.on_change = self._on_catalog_change
        self.status.raise_generation()
        if may_be_torn:
            self.roll(now_ms)
        elif log_loader.needs_journal(self.options) and segment.journal is None:
            # Only a new segment can get a journal. Until then every turn is synced.
            self._is_roll_due = self._must_roll_now = True
            self._roll_when_synced(now_ms)

    def _recover_dead(self, segment: Segment) -> None:
        """Find what the active segment holds of deleted partitions, and free the unused numbers."""
        for number in log_loader.numbers_in(segment) - self._logs.keys():
            self._dead[number] = dead = log_loader.dead_extent(segment, number)
            if dead is not None:
                self._dead_bytes += dead.byte_count
        self._active_bytes = self._dead_bytes
        self.status.allocate_slots(self.catalog.numbers_end)
        for number in range(self.catalog.numbers_end):
            if number not in self._logs:
                self.status.clear(number)
                self._dead.setdefault(number, None)
        self._free_numbers()

    def _recover_log(self, log: PartitionLog, *, is_trusted: bool) -> None:
        recovered = log_loader.recovered_high_watermark(log, self.status, is_trusted=is_trusted)
        self._recovered_high_watermarks[log.number] = recovered
        # Routers go on reading while a worker is replaced. They must not see uncommitted records.
        log.high_watermark = recovered if is_trusted else log.log_end_offset
        # Each marker that was just read counts as not replicated yet.
        log.undecided.on_high_watermark_updated(recovered)
        log.flushed_offset = log.log_end_offset
        self._write_status(log)
        self._active_bytes += log.active_bytes
        extent = log.active_extent(self._segment.segment_id)
        if extent is not None:
            self._dead_bytes += extent.byte_count - live_bytes(extent, log.log_start_offset)
        self._note_roll_deadline(log)
