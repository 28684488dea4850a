"""Compares a window of a partition's offsets: the rows that the topic gives with the table's.

Pure. Every offset of the window ends in exactly one of these places: a good record, a bad record,
or a gap; whatever is in none of them is a finding, and so is a row that does not stand for a good
record. Gaps of records that were compacted or expired may have rows: they were there before.
"""

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.jobs.column_differences import differing_rows
from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.wire.partition_reader import OffsetGap

OFFSET_COLUMN = "kafka_offset"
GONE = ("compacted", "expired")
"""Reasons of gaps whose records may be in the table: it is older than the topic's deletions."""


def compare_window(
    window: PartitionRange,
    expected: pa.Table,
    found: pa.Table,
    bad_offsets: Sequence[int],
    gaps: Sequence[OffsetGap],
    findings: Findings,
) -> int:
    """Compare the rows of the topic's good records, in the order of their offsets, with the table's
    rows of the window, in any order.

    A row that is twice in the table is compared twice. Columns of `found` that `expected` lacks are
    not compared. Returns the number of rows whose records are compacted or expired: nothing is left
    to compare them with.
    """
    offsets = found.column(OFFSET_COLUMN)
    wanted = expected.column(OFFSET_COLUMN)
    if wanted.equals(offsets):
        at, matched = None, found
    else:
        at = pc.index_in(offsets, value_set=wanted)
        matched = found.filter(pc.is_valid(at))
        _add_doubled(window, offsets, findings)
        missing = wanted.filter(pc.invert(pc.is_in(wanted, value_set=offsets)))
        findings.add(FindingKind.MISSING, window.name, missing.to_pylist())
    gone = 0
    if at is not None and at.null_count:
        without_record = offsets.filter(pc.is_null(at)).to_pylist()
        gone = _without_record(window, without_record, set(bad_offsets), gaps, findings)
    counterpart = expected if at is None else expected.take(at.drop_null())
    for row, columns in sorted(differing_rows(counterpart, matched).items()):
        offset = matched.column(OFFSET_COLUMN)[row].as_py()
        findings.add(FindingKind.ALTERED, window.name, [offset], ", ".join(columns))
    return gone


def holes_of(window: PartitionRange, offsets: pa.ChunkedArray) -> list[tuple[int, int]]:
    """The [start, end) of the window that have no record; `offsets` ascend."""
    at = pa.concat_arrays(
        [pa.array([window.start - 1]), *offsets.chunks, pa.array([window.end], pa.int64())]
    )
    before, after = at.slice(0, len(at) - 1), at.slice(1)
    is_hole = pc.greater(pc.subtract(after, before), 1)
    starts = pc.add(before.filter(is_hole), 1).to_pylist()
    return list(zip(starts, after.filter(is_hole).to_pylist(), strict=True))


def find_unexplained(
    window: PartitionRange,
    holes: Sequence[tuple[int, int]],
    gaps: Sequence[OffsetGap],
    findings: Findings,
) -> None:
    """Offsets of the holes that are in no gap. Both ascend."""
    index = 0
    for start, end in holes:
        at = start
        while index < len(gaps) and gaps[index].end <= at:
            index += 1
        following = index
        while at < end:
            if following == len(gaps) or gaps[following].start >= end:
                findings.add(FindingKind.GAP_UNEXPLAINED, window.name, range(at, end))
                break
            findings.add(FindingKind.GAP_UNEXPLAINED, window.name, range(at, gaps[following].start))
            at = max(at, gaps[following].end)
            following += 1


def _add_doubled(window: PartitionRange, offsets: pa.ChunkedArray, findings: Findings) -> None:
    counted = pc.value_counts(offsets)
    times = counted.field("counts")
    is_doubled = pc.greater(times, 1)
    doubled = zip(
        counted.field("values").filter(is_doubled).to_pylist(),
        times.filter(is_doubled).to_pylist(),
        strict=True,
    )
    for offset, count in sorted(doubled):
        findings.add(FindingKind.DOUBLED, window.name, [offset], f"{count} times")


def _without_record(
    window: PartitionRange,
    offsets: Sequence[int],
    bad_offsets: set[int],
    gaps: Sequence[OffsetGap],
    findings: Findings,
) -> int:
    """Says why a row should not be; how many may be, as their records are gone."""
    starts = [gap.start for gap in gaps]
    gone = 0
    for offset in sorted(offsets):
        index = bisect_right(starts, offset) - 1
        gap = gaps[index] if index >= 0 and offset < gaps[index].end else None
        if gap is not None and gap.reason in GONE:
            gone += 1
            continue
        if offset in bad_offsets:
            why = "its record does not fit the schema"
        elif gap is not None and gap.reason == "aborted":
            why = "its record is of an aborted transaction"
        elif gap is not None:
            why = f"its offset is a {gap.reason} record"
        else:
            why = "its offset has no record"
        findings.add(FindingKind.UNEXPECTED, window.name, [offset], why)
    return gone
