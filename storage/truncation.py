"""Truncation: a follower removes the records that its leader does not have (KIP-101, KIP-279).

The store rolls its active segment first, so that the truncated records are in sealed segments. Then
one change of the catalog shortens the extents and restores row, leader epochs and producers as of
the new log end. Both are synced, so that a truncation is durable before the next append. Files do
not change: batches beyond their extent's end are dead, and are freed with their segment.

Called by Store.truncate and Store.truncate_fully_and_start_at.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from odradek.protocol.control_records import read_control_batch
from odradek.protocol.records import unpack_header
from odradek.protocol.types import NO_OFFSET
from odradek.storage.catalog import Catalog, CatalogChange
from odradek.storage.leader_epochs import LeaderEpochs
from odradek.storage.partition_log import PartitionLog
from odradek.storage.producer_state import ProducerStateEntry, entry_after_batch, entry_after_marker
from odradek.storage.rewrite import base_offset_at, batches_of
from odradek.storage.segment import Extent, Segment
from odradek.storage.segment_roll import current_row


@dataclass(frozen=True, slots=True)
class TruncatedLog:
    """The new state of one log. `apply` is called after the catalog's commit."""

    log: PartitionLog
    log_start_offset: int
    log_end_offset: int
    epochs: LeaderEpochs
    producers: dict[int, ProducerStateEntry]

    def apply(self) -> None:
        """Set the log in memory to the state in the catalog."""
        log, end = self.log, self.log_end_offset
        log.log_start_offset = self.log_start_offset
        log.log_end_offset = end
        log.high_watermark = max(self.log_start_offset, min(log.high_watermark, end))
        log.flushed_offset = min(log.flushed_offset, end)
        log.epochs = self.epochs
        log.epoch_recorded = self.epochs.latest
        log.producers = self.producers
        unreplicated = [entry for entry in log.undecided.unreplicated if entry[1] < end]
        log.resume_transactions()
        log.undecided.unreplicated = unreplicated


def truncate_log(
    change: CatalogChange, catalog: Catalog, log: PartitionLog, end_offset: int
) -> TruncatedLog:
    """Add the truncation of a log to the change: to `end_offset` or, if that is inside a batch, to
    its base offset. The log must have no data in the active segment."""
    number = log.number
    extents = catalog.extents.get(number, [])
    end = _boundary(catalog, number, extents, end_offset)
    gone_producers: set[int] = set()
    has_lost_marker: set[int] = set()
    for extent in list(extents):
        if extent.end_offset <= end:
            continue
        byte_count, batch_count = extent.byte_count, extent.batch_count
        for stored in batches_of(catalog, number, extent, max(end, extent.first_offset)):
            header = unpack_header(stored.batch)
            byte_count -= len(stored.batch)
            batch_count -= 1
            if header.producer_id >= 0:
                gone_producers.add(header.producer_id)
                if header.is_control:
                    has_lost_marker.add(header.producer_id)
        if extent.first_offset >= end:
            change.delete_extent(number, extent.segment_id)
        else:
            # The largest timestamp may be a truncated one. It is only an upper bound.
            change.put_extent(
                number,
                extent._replace(end_offset=end, byte_count=byte_count, batch_count=batch_count),
            )
    producers = _producers_before(catalog, log, end, gone_producers, has_lost_marker)
    changed = gone_producers | log.unsealed_producers | log.dirty_producers
    change.put_producers(number, changed, producers)
    epochs = LeaderEpochs(log.epochs.entries)
    epochs.truncate_end(end)
    cut = TruncatedLog(log, min(log.log_start_offset, end), end, epochs, producers)
    _put_row(change, catalog, cut)
    return cut


def truncate_fully(
    change: CatalogChange, catalog: Catalog, log: PartitionLog, start_offset: int
) -> TruncatedLog:
    """Add the truncation of a whole log to the change: it starts and ends at `start_offset`,
    without leader epochs and producers. The log must have no data in the active segment."""
    for extent in list(catalog.extents.get(log.number, ())):
        change.delete_extent(log.number, extent.segment_id)
    known = log.producers.keys() | log.unsealed_producers | log.dirty_producers
    change.put_producers(log.number, known, {})
    cut = TruncatedLog(log, start_offset, start_offset, LeaderEpochs(), {})
    _put_row(change, catalog, cut)
    return cut


def _put_row(change: CatalogChange, catalog: Catalog, cut: TruncatedLog) -> None:
    row = msgspec.structs.replace(
        current_row(catalog, cut.log),
        log_start_offset=cut.log_start_offset,
        log_end_offset=cut.log_end_offset,
        leader_epochs=cut.epochs.entries,
    )
    change.put_partition(row)


def _boundary(catalog: Catalog, number: int, extents: list[Extent], end_offset: int) -> int:
    for extent in extents:
        if extent.first_offset <= end_offset < extent.end_offset:
            segment = Segment.open(catalog.directory, extent.segment_id)
            return base_offset_at(segment, number, end_offset)
    return end_offset


def _producers_before(
    catalog: Catalog, log: PartitionLog, end: int, gone: set[int], has_lost_marker: set[int]
) -> dict[int, ProducerStateEntry]:
    """The producers as of log end `end`. `gone` have batches after it.

    Most of their entries still have batches below `end`, which is enough. The others, and those
    with a marker after `end`, are rebuilt from the headers of the log."""
    producers = dict(log.producers)
    searched: set[int] = set()
    for producer_id in gone:
        entry = producers.pop(producer_id, None)
        kept = () if entry is None else tuple(b for b in entry.batches if b.base_offset < end)
        if entry is None or not kept or producer_id in has_lost_marker:
            searched.add(producer_id)
            continue
        first_offset = entry.transaction_first_offset
        producers[producer_id] = entry._replace(
            last_timestamp=kept[-1].timestamp,
            transaction_first_offset=first_offset if first_offset < end else NO_OFFSET,
            batches=kept,
        )
    if searched:
        producers |= _replayed(catalog, log, end, searched)
    return producers


def _replayed(
    catalog: Catalog, log: PartitionLog, end: int, searched: set[int]
) -> Mapping[int, ProducerStateEntry]:
    found: dict[int, ProducerStateEntry] = {}
    for extent in catalog.extents.get(log.number, ()):
        if extent.first_offset >= end or extent.end_offset <= log.log_start_offset:
            continue
        for stored in batches_of(catalog, log.number, extent, extent.first_offset):
            if stored.base_offset >= end:
                break
            header = unpack_header(stored.batch)
            producer_id = header.producer_id
            if producer_id not in searched:
                continue
            entry = found.get(producer_id)
            if not header.is_control:
                found[producer_id] = entry_after_batch(entry, header, header.base_offset)
                continue
            marker = read_control_batch(stored.batch, header)
            if marker is not None:
                found[producer_id] = entry_after_marker(entry, header, marker)
    return found
