"""The retention gate of a log (odradek.archive.group): what a consumer group has not committed yet
is kept, up to a cap.

Retention says which prefix of the log may go, the gate how much of that goes now: what the group
has committed (below `archived_offset`), and what is above the cap (`odradek.archive.max.ms`,
`odradek.archive.max.bytes`). Compaction stops at the same offset. The caller knows what the group
has committed; until it says so, nothing goes. DeleteRecords does not ask the gate.

Invariant: without a cap retention deletes no record that the group has not committed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek.storage.partition_log import NOT_KNOWN, ArchiveState, PartitionLog
from odradek.storage.retention import CountedPrefix, OpenSegment, Slices, expired_offset, live_bytes
from odradek.storage.segment import Extent

KNOWN_WITHIN_MS: Final = 120_000
"""A node asks for the offsets of a group every minute."""


class GatedRetention(NamedTuple):
    """What a check of retention found at the gate. Bytes are estimated within a segment."""

    log_start_offset: int
    """Where the log may start."""
    held_bytes: int
    """Of what retention would delete and the gate keeps."""
    lost_bytes: int
    """Of what goes although the group has not committed it: it is above the cap."""


def is_cap_due(archive: ArchiveState, *, now_ms: int) -> bool:
    """Whether the cap counts. A store that was just opened is told first what the group has
    committed, or what is archived would go as if it were not."""
    if archive.archived_offset != NOT_KNOWN:
        return True
    if archive.unknown_since_ms is None:
        archive.unknown_since_ms = now_ms
    return now_ms - archive.unknown_since_ms >= KNOWN_WITHIN_MS


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

    `archived_offset` is what the group has committed, negative if that is nothing or not known.
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
