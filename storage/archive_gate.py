"""The retention gate of a log (odradek.archive.group): what a consumer group has not committed yet
is kept, up to a cap.

Retention says which prefix of the log may go, the gate how much of that goes now: what the group
has committed (below `archived_offset`), and what is above the cap (`odradek.archive.max.ms`,
`odradek.archive.max.bytes`). Compaction stops at the same offset. The caller knows what the group
has committed; until it says so, nothing goes. DeleteRecords does not ask the gate.

Invariant: without a cap retention deletes no record that the group has not committed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from odradek.storage.partition_log import PartitionLog
from odradek.storage.retention import CountedPrefix, OpenSegment, Slices, expired_offset, live_bytes
from odradek.storage.segment import Extent


class GatedRetention(NamedTuple):
    """What a check of retention found at the gate. Bytes are estimated within a segment."""

    log_start_offset: int
    """Where the log may start."""
    held_bytes: int
    """Of what retention would delete and the gate keeps."""
    lost_bytes: int
    """Of what goes although the group has not committed it: it is above the cap."""


def offset_by_cap(
    log: PartitionLog,
    extents: Sequence[Extent],
    open_segment: OpenSegment,
    *,
    now_ms: int,
    known: dict[int, CountedPrefix],
) -> Slices:
    """The log start if only the cap counted, whatever the group has committed. `known` is the cache
    of `offset_by_bytes`, another one than that of the retention itself."""
    settings = log.settings
    return (
        yield from expired_offset(
            log,
            extents,
            open_segment,
            age_ms_max=settings.archive_max_ms,
            bytes_max=settings.archive_max_bytes,
            now_ms=now_ms,
            known=known,
        )
    )


def pass_gate(
    extents: Sequence[Extent],
    *,
    log_start_offset: int,
    retained_offset: int,
    archived_offset: int,
    capped_offset: int,
) -> GatedRetention:
    """Which part of [log_start_offset, retained_offset), that retention would delete, goes.

    `archived_offset` is what the group has committed, -1 if that is nothing or not known.
    """
    released = max(archived_offset, capped_offset)
    offset = max(log_start_offset, min(retained_offset, released))
    archived = min(max(archived_offset, log_start_offset), offset)
    return GatedRetention(
        offset,
        held_bytes=_bytes_between(extents, offset, retained_offset),
        lost_bytes=_bytes_between(extents, archived, offset),
    )


def _bytes_between(extents: Sequence[Extent], start: int, end: int) -> int:
    """Bytes of [start, end), estimated by the share of offsets."""
    if start >= end:
        return 0
    return sum(live_bytes(extent, start) - live_bytes(extent, end) for extent in extents)
