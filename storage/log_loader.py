"""Loads the partitions when a store is opened: first the catalog, then the active segment.

The catalog has the state as of the last roll. The active segment has checkpoints of partitions with
many batches, and the batches after each checkpoint, of which only the headers are read. So opening
takes a few microseconds per partition and per batch since its checkpoint.

After a crash of the machine the active segment is examined first (recovery.py). If it is torn, it
is rebuilt from the batches that are intact."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import lmdb
import msgspec

from odradek.protocol.control_records import read_control_batch
from odradek.protocol.records import unpack_header
from odradek.protocol.types import NO_EPOCH
from odradek.storage.append import Turn
from odradek.storage.catalog import Catalog, CatalogFile, PartitionRow, SegmentRow, SegmentState
from odradek.storage.cursors import batches_from, rows_from
from odradek.storage.environment import StorageError, sync_directory
from odradek.storage.journal import Journal
from odradek.storage.layout import (
    EPOCH_KEY,
    FILE_MODE,
    KEY,
    NUMBER,
    NUMBER_MAX,
    OFFSET,
    OWNER_LOCK_NAME,
    STAMP_SIZE,
    journal_ids,
    journal_path,
    segment_ids,
    segment_path,
    unlink_journal,
    unlink_segment,
)
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import PartitionLog
from odradek.storage.producer_state import ProducerStateEntry
from odradek.storage.recovery import Examination
from odradek.storage.segment import Extent, Segment
from odradek.storage.settings import Durability, StoreOptions
from odradek.storage.status import ReplicaRole, StatusTable
from odradek.storage.validation import AppendOrigin

_SALVAGE_TURN_BYTES = 2 << 20


def lock_store(directory: Path) -> int:
    """The descriptor that holds the store's lock. Raises StorageError if another owns it."""
    descriptor = os.open(directory / OWNER_LOCK_NAME, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StorageError(f"{directory} is in use by another process; stop it first") from None
    return descriptor


def mark_open(
    catalog: Catalog,
    logs: Mapping[int, PartitionLog],
    active_id: int,
    *,
    boot_id: str,
    now_ms: int,
) -> None:
    """Record in the catalog that the store is open, and the log ends that were lost."""
    with catalog.change() as change:
        change.put_property("boot_id", boot_id)
        change.put_property("clean", "0")
        if active_id not in catalog.segments:
            change.put_segment(SegmentRow(active_id, SegmentState.ACTIVE, created_ms=now_ms))
        for log in logs.values():
            if log.log_end_offset < log.log_start_offset:
                # The end of the log was lost with the machine. The log continues at its start. The
                # row must say so before the next append, or salvage would find a gap.
                log.log_end_offset = log.log_start_offset
                row = catalog.partitions[log.number]
                change.put_partition(
                    msgspec.structs.replace(row, log_end_offset=log.log_end_offset)
                )


def load_logs(catalog: Catalog) -> dict[int, PartitionLog]:
    """All partitions as of the last roll."""
    logs = {number: PartitionLog(row) for number, row in catalog.partitions.items()}
    for number, producer_id, row in catalog.file.producer_rows():
        log = logs.get(number)
        if log is not None:
            log.producers[producer_id] = ProducerStateEntry.decode(row)
    return logs


def load_log(file: CatalogFile, row: PartitionRow, segment: Segment) -> PartitionLog:
    """One partition's log, for a reader in another process."""
    log = PartitionLog(row)
    for _, producer_id, entry in file.producer_rows(row.number):
        log.producers[producer_id] = ProducerStateEntry.decode(entry)
    replay_segment({row.number: log}, segment, only=row.number)
    return log


def replay_segment(
    logs: Mapping[int, PartitionLog],
    segment: Segment,
    *,
    only: int | None = None,
    trusts_checkpoints: bool = True,
) -> None:
    """Apply the active segment to the partitions, in place.

    After a power loss checkpoints are not trusted, because a page with older rows looks valid. Then
    all batches of the segment are read.
    """
    first = NUMBER.pack(0 if only is None else only)
    end = NUMBER_MAX + 1 if only is None else only + 1
    with segment.begin() as transaction:
        checkpoint_end = end if trusts_checkpoints else 0
        for key, row in rows_from(transaction, segment.extents, first, checkpoint_end):
            log = logs.get(NUMBER.unpack_from(key)[0])
            if log is not None:
                log.resume(Extent.decode(segment.segment_id, row))
        for key, row in rows_from(transaction, segment.producers, first, checkpoint_end):
            number, producer_id = KEY.unpack(key)
            log = logs.get(number)
            if log is not None:
                log.producers[producer_id] = ProducerStateEntry.decode(row)
                log.unsealed_producers.add(producer_id)
        for key, row in rows_from(transaction, segment.epochs, first, end):
            number, epoch = EPOCH_KEY.unpack(key)
            log = logs.get(number)
            if log is not None:
                log.epochs.assign(epoch, OFFSET.unpack(row)[0])
                log.epoch_recorded = epoch
        for log in logs.values():
            log.resume_transactions()
            _replay_batches(log, segment, transaction)
            log.producer_undo.clear()
            log.leader_epoch = log.epochs.latest
            log.epochs.truncate_start(log.log_start_offset)


def _replay_batches(
    log: PartitionLog, segment: Segment, transaction: "lmdb.Transaction[memoryview]"
) -> None:
    for base_offset, value in batches_from(
        transaction, segment.batches, log.number, log.log_end_offset
    ):
        header = unpack_header(value, STAMP_SIZE)
        batch = value[STAMP_SIZE:]
        log.advance(
            header,
            base_offset=base_offset,
            leader_epoch=header.partition_leader_epoch,
            size=len(batch),
            # The time of the append is not recorded. The batch's timestamp is the best estimate:
            # with it the segment may roll too early, never too late.
            append_ms=header.max_timestamp,
            marker=read_control_batch(batch, header) if header.is_control else None,
        )


def recovered_high_watermark(log: PartitionLog, status: StatusTable, *, is_trusted: bool) -> int:
    """The high watermark of a replicated log when its last owner ended, from its slot in the status
    table. Not after a power loss (not `is_trusted`)."""
    high_watermark = status.high_watermark(log.number)
    if not is_trusted or status.role(log.number) is ReplicaRole.ABSENT:
        high_watermark = 0
    return max(log.log_start_offset, min(high_watermark, log.log_end_offset))


def numbers_in(segment: Segment) -> set[int]:
    """The partition numbers that have batches in a segment."""
    numbers = set()
    with segment.begin() as transaction:
        cursor = transaction.cursor(segment.batches)
        found = cursor.first()
        while found:
            number = NUMBER.unpack_from(cursor.key())[0]
            numbers.add(number)
            if number == NUMBER_MAX:
                break
            found = cursor.set_range(KEY.pack(number + 1, 0))
    return numbers


def dead_extent(segment: Segment, number: int) -> Extent | None:
    """A deleted partition's extent in a segment. Reads all its headers."""
    extent: Extent | None = None
    for stored in segment.iterate(number, number + 1):
        header = unpack_header(stored.batch)
        if extent is None:
            extent = Extent(segment.segment_id, stored.base_offset, 0, 0, 0)
        extent = extent._replace(
            end_offset=header.next_offset,
            byte_count=extent.byte_count + len(stored.batch),
            batch_count=extent.batch_count + 1,
        )
    return extent


def remove_orphans(catalog: Catalog) -> None:
    """Unlink segment files that are not in the catalog, and journals of sealed segments. A kill
    leaves them between a file operation and the change of the catalog."""
    for segment_id in segment_ids(catalog.directory):
        if segment_id not in catalog.segments:
            unlink_segment(catalog.directory, segment_id)
    for segment_id in journal_ids(catalog.directory):
        if segment_id != catalog.active_segment_id:
            unlink_journal(catalog.directory, segment_id)


def needs_journal(options: StoreOptions) -> bool:
    """Whether there are unsynced commits, which need a journal (durability.py)."""
    return options.durability is not Durability.COMMIT


def create_active_segment(directory: Path, segment_id: int, options: StoreOptions) -> Segment:
    """Create an empty segment with its journal, and sync both. Raises StorageError, and leaves no
    file then."""
    try:
        segment = Segment.create(directory, segment_id, map_bytes=options.map_bytes())
        if needs_journal(options):
            segment.journal = Journal.create(directory, segment_id)
        segment.sync()
        sync_directory(directory)
    except BaseException:
        unlink_segment(directory, segment_id)
        raise
    return segment


def reopen_active_segment(
    directory: Path, segment_id: int, options: StoreOptions, *, was_closed: bool
) -> Segment:
    """Open the active segment of the last owner, synced. After a kill it has no journal, because
    the journal's buffer is lost. Raises StorageError."""
    segment = Segment.open(directory, segment_id, read_only=False)
    segment.environment.clear_stale_readers()
    if not was_closed:
        segment.sync()
    elif needs_journal(options):
        segment.journal = Journal.reopen(directory, segment_id)
    if not needs_journal(options):
        # The journal would miss what is appended from now on.
        unlink_journal(directory, segment_id)
        sync_directory(directory)
    return segment


def examine_active_segment(catalog: Catalog, options: StoreOptions, now_ms: int) -> None:
    """After a power loss: rebuild the active segment if it is torn. In any case it must be sealed
    before the next append. Raises StorageError if the disk is full."""
    old_id = catalog.active_segment_id
    if old_id is None:
        return
    path = segment_path(catalog.directory, old_id)
    log_ends = {
        number: max(extent.end_offset for extent in extents)
        for number, extents in catalog.extents.items()
    }
    for number, row in catalog.partitions.items():
        log_ends[number] = row.log_end_offset
    if path.exists():
        journal = journal_path(catalog.directory, old_id)
        examination = Examination(path, log_ends=log_ends, journal=journal)
        if examination.is_whole:
            return
        batches = examination.salvaged_batches()
    else:
        batches = iter(())
    new_id = catalog.next_segment_id()
    segment = Segment.create(catalog.directory, new_id, map_bytes=options.map_bytes())
    logs = load_logs(catalog)
    turn = _salvage_turn(logs, segment, options, now_ms)
    for number, batch in batches:
        append = LogAppend(
            batch, 0, len(batch), leader_epoch=NO_EPOCH, origin=AppendOrigin.REPLICATION
        )
        turn.append(number, append)
        if turn.appended_bytes >= _SALVAGE_TURN_BYTES:
            turn.commit()
            turn = _salvage_turn(logs, segment, options, now_ms)
    turn.commit()
    segment.sync()
    with catalog.change() as change:
        change.put_segment(SegmentRow(new_id, SegmentState.ACTIVE, created_ms=now_ms))
        change.delete_segment(old_id)
    unlink_segment(catalog.directory, old_id)


def _salvage_turn(
    logs: Mapping[int, PartitionLog], segment: Segment, options: StoreOptions, now_ms: int
) -> Turn:
    return Turn(logs, segment, lambda _turn: False, now_ms, options.checkpoint_batches)
