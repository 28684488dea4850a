"""Rolling: the active segment is sealed, and its content is entered into the catalog.

Afterwards the catalog has the whole state of every partition, up to the end of the sealed segment.
Called by the store.
"""

from collections.abc import Mapping

import msgspec

from odradek.storage.catalog import Catalog, CatalogChange, PartitionRow, SegmentState
from odradek.storage.partition_log import PartitionLog
from odradek.storage.segment import Extent, Segment


def current_row(catalog: Catalog, log: PartitionLog) -> PartitionRow:
    """The catalog's row of a partition, with the current settings and log start offset."""
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
    """Add the content of a synced segment to the change. `dead` are its extents of deleted
    partitions. False if the segment is empty: then it is removed from the catalog."""
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
        changed = log.unsealed_producers | log.dirty_producers
        change.put_producers(number, changed, log.producers)
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
            may_have_aborted=segment.has_aborted(),
        )
    )
    return True


def roll_deadline_ms(log: PartitionLog) -> int:
    """When the active segment must be rolled for this partition, if it has data of it: segment.ms
    after the first append, or max.compaction.lag.ms if that is earlier."""
    settings = log.settings
    age_ms = settings.segment_ms
    if settings.cleanup_compact:
        age_ms = min(age_ms, settings.max_compaction_lag_ms)
    if settings.segment_jitter_ms:
        # Spread by number, so that partitions created together do not roll together.
        age_ms -= log.number * 2654435761 % settings.segment_jitter_ms
    return log.active_first_append_ms + age_ms
