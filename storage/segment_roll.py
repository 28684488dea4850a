"""Sealing: the active segment becomes immutable, and the catalog learns what it adds.

Afterwards the catalog alone says what every partition is, up to the sealed segment's end, and the
next active segment starts as an empty addition to it. Called by the store when it rolls.
"""

from collections.abc import Mapping

import msgspec

from odradek.storage.catalog import Catalog, CatalogChange, PartitionRow, SegmentState
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment import Extent, Segment


def current_row(catalog: Catalog, log: PartitionLog) -> PartitionRow:
    """The catalog's row of a partition with what may have changed between two sealings."""
    return msgspec.structs.replace(
        catalog.partitions[log.number],
        settings=log.settings,
        log_start_offset=log.log_start_offset,
    )


def seal(
    change: CatalogChange,
    catalog: Catalog,
    segment: Segment,
    *,
    logs: Mapping[int, PartitionLog],
    dead: Mapping[int, Extent | None],
    now_ms: int,
) -> bool:
    """Put into the change all that a synced segment adds to the catalog. `dead` is what it holds of
    deleted partitions. False if there is nothing in it: it is forgotten then."""
    segment_id = segment.segment_id
    extents = []
    for number, log in logs.items():
        extent = log.active_extent(segment_id)
        if extent is not None:
            extents.append((number, extent))
            row = msgspec.structs.replace(
                current_row(catalog, log),
                log_end_offset=log.log_end_offset,
                leader_epochs=log.epochs.with_records(log.log_end_offset),
            )
            change.put_partition(row)
        for producer_id in log.unsealed_producers | log.dirty_producers:
            entry = log.producers.get(producer_id)
            if entry is None:
                change.delete_producer(number, producer_id)
            else:
                change.put_producer(number, producer_id, entry.encode())
    extents += [(number, extent) for number, extent in dead.items() if extent is not None]
    if not extents:
        change.delete_segment(segment_id)
        return False
    for number, extent in extents:
        change.put_extent(number, extent)
    change.put_segment(
        msgspec.structs.replace(
            catalog.segments[segment_id],
            state=SegmentState.SEALED,
            sealed_ms=now_ms,
            file_bytes=segment.file_bytes(),
            byte_count=sum(extent.byte_count for _, extent in extents),
            max_timestamp=max(extent.max_timestamp for _, extent in extents),
        )
    )
    return True


def roll_deadline_ms(log: PartitionLog) -> int:
    """When the active segment must be sealed for this partition's sake, if it has data in it:
    segment.ms after its first append, or max.compaction.lag.ms where that is due earlier."""
    settings = log.settings
    age_ms = settings.segment_ms
    if settings.cleanup_compact:
        age_ms = min(age_ms, settings.max_compaction_lag_ms)
    if settings.segment_jitter_ms:
        # Spread by number, so that partitions made together do not all roll together.
        age_ms -= log.number * 2654435761 % settings.segment_jitter_ms
    return log.active_first_append_ms + age_ms
