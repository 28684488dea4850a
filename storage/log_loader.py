"""How a store comes to know its partitions again: the catalog, then what came since.

The catalog is the state at the last sealing. The active segment adds to it: checkpoints of those
partitions that had enough batches, and the batches after each checkpoint, of which only the headers
are read. So opening costs a few microseconds for each partition and for each batch since its
checkpoint, however much the store holds.

If the machine went down with the active segment open, the segment is examined first
(recovery.py); what cannot be used as it is, is rebuilt from the batches that are whole.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import lmdb
import msgspec

from odradek.protocol.control_records import read_control_batch
from odradek.protocol.records import unpack_header
from odradek.protocol.types import NO_EPOCH
from odradek.storage.append import LogAppend, Turn
from odradek.storage.catalog import Catalog, CatalogFile, PartitionRow, SegmentRow, SegmentState
from odradek.storage.cursors import batches_from
from odradek.storage.environment import StorageError, sync_directory
from odradek.storage.journal import Journal
from odradek.storage.layout import (
    EPOCH_KEY,
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
    descriptor = os.open(directory / OWNER_LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
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
    """Have the catalog say who has the store open, and what could not be found again."""
    with catalog.change() as change:
        change.put_property("boot_id", boot_id)
        change.put_property("clean", "0")
        if active_id not in catalog.segments:
            change.put_segment(SegmentRow(active_id, SegmentState.ACTIVE, created_ms=now_ms))
        for log in logs.values():
            if log.log_end_offset < log.log_start_offset:
                # The end was lost with the machine; the log goes on where it was cut before.
                # The row says so first, or salvage would find a gap.
                log.log_end_offset = log.log_start_offset
                row = catalog.partitions[log.number]
                change.put_partition(
                    msgspec.structs.replace(row, log_end_offset=log.log_end_offset)
                )


def load_logs(catalog: Catalog) -> dict[int, PartitionLog]:
    """Every partition as of the last sealing."""
    logs = {number: PartitionLog(row) for number, row in catalog.partitions.items()}
    for number, producer_id, row in catalog.file.producer_rows():
        log = logs.get(number)
        if log is not None:
            log.producers[producer_id] = ProducerStateEntry.decode(row)
    return logs


def load_log(file: CatalogFile, row: PartitionRow, segment: Segment) -> PartitionLog:
    """One partition as a reader of another process can know it."""
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
    """Bring partitions from the last sealing up to the end of the active segment, in place.

    After a power loss checkpoints are not to be trusted: a page with an older one of the same rows
    looks as whole as the new one. The batches are read from the segment's start then.
    """
    first = NUMBER.pack(0 if only is None else only)
    end = NUMBER_MAX + 1 if only is None else only + 1
    with segment.begin() as transaction:
        checkpoint_end = end if trusts_checkpoints else 0
        for key, row in _rows(transaction, segment.extents, first, checkpoint_end):
            log = logs.get(NUMBER.unpack_from(key)[0])
            if log is not None:
                log.resume(Extent.decode(segment.segment_id, row))
        for key, row in _rows(transaction, segment.producers, first, checkpoint_end):
            number, producer_id = KEY.unpack(key)
            log = logs.get(number)
            if log is not None:
                log.producers[producer_id] = ProducerStateEntry.decode(row)
                log.unsealed_producers.add(producer_id)
        for key, row in _rows(transaction, segment.epochs, first, end):
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


def _rows(
    transaction: "lmdb.Transaction[memoryview]", database: "lmdb._Database", first: bytes, end: int
) -> Iterator[tuple[memoryview, memoryview]]:
    cursor = transaction.cursor(database)
    if not cursor.set_range(first):
        return
    for key, row in cursor.iternext():
        if NUMBER.unpack_from(key)[0] >= end:
            return
        yield key, row


def recovered_high_watermark(log: PartitionLog, status: StatusTable, *, is_trusted: bool) -> int:
    """How far a replicated log was committed when its last owner ended, as far as that is known:
    its slot still has the high watermark then. Not after a power loss (not `is_trusted`)."""
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
    """What a segment holds of a partition that was deleted; all its headers are read."""
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
    """Unlink segment files that the catalog does not know and journals of sealed segments: left by
    a kill between making a file and naming it, or between forgetting and unlinking one."""
    for segment_id in segment_ids(catalog.directory):
        if segment_id not in catalog.segments:
            unlink_segment(catalog.directory, segment_id)
    for segment_id in journal_ids(catalog.directory):
        if segment_id != catalog.active_segment_id:
            unlink_journal(catalog.directory, segment_id)


def needs_journal(options: StoreOptions) -> bool:
    """Whether turns are committed that are not synced (durability.py says why it matters)."""
    return options.durability is not Durability.COMMIT


def create_active_segment(directory: Path, segment_id: int, options: StoreOptions) -> Segment:
    """A new, empty segment with its journal, both on disk. Raises StorageError, and leaves nothing
    behind then."""
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
    """The segment that the last owner wrote, all of it on disk. After a kill it comes without a
    journal, for what the owner had collected is lost. Raises StorageError."""
    segment = Segment.open(directory, segment_id, read_only=False)
    segment.environment.clear_stale_readers()
    if not was_closed:
        segment.sync()
    elif needs_journal(options):
        segment.journal = Journal.reopen(directory, segment_id)
    if not needs_journal(options):
        # It would lack what is appended from here on, and must not be gone on with after that.
        unlink_journal(directory, segment_id)
        sync_directory(directory)
    return segment


def examine_active_segment(catalog: Catalog, options: StoreOptions, now_ms: int) -> None:
    """After a power loss: rebuild the active segment if it is torn. Either way it must be sealed
    before the store is written again. Raises StorageError if the disk has no room for that."""
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
    for salvaged in batches:
        batch = salvaged.batch
        append = LogAppend(
            batch, 0, len(batch), leader_epoch=NO_EPOCH, origin=AppendOrigin.REPLICATION
        )
        turn.append(salvaged.number, append)
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
    return Turn(logs, segment, _not_synced, now_ms, options.checkpoint_batches)


def _not_synced(turn: Turn) -> bool:
    return False
