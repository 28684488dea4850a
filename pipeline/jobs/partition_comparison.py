"""Compares a partition's records with the rows and dead letters that a job made of them.

Goes through the offsets in windows, so memory is bounded by `window_bytes` of records and the rows
of the same offsets. The records of a window are read once, and a second time only if there are
offsets between them, to learn why. What retention deletes meanwhile counts as expired.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import OffsetsLost
from odradek.pipeline.jobs.column_history import ColumnStarts, before_they_were_added
from odradek.pipeline.jobs.comparison import (
    GONE,
    OFFSET_COLUMN,
    compare_window,
    find_unexplained,
    holes_of,
)
from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex, compare_letters
from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.jobs.window_rows import read_window
from odradek.pipeline.kafka_types import EARLIEST, PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.rows import BadRecord, rows_of, table_schema
from odradek.pipeline.tables.target import TableTarget
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import OffsetGap, gaps_of_partition, read_partition

WINDOW_BYTES = 64 * 1024 * 1024
EXPIRED_OFFSETS = 1_000_000
"""Offsets of a window that has no records any more, only rows."""


@dataclass(slots=True)
class PartitionReport:
    """What was compared in a partition: the offsets [start, end) that the table has committed."""

    topic: str
    partition: int
    start: int
    end: int
    records: int = 0
    """Committed records that fit the schema."""
    bad: int = 0
    """Committed records that do not."""
    rows: int = 0
    rows_of_gone: int = 0
    """Rows whose records the topic does not have any more: compacted or expired."""
    letters_unchecked: int = 0
    """Dead letters of such records, and records whose dead letters may be deleted."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Reason to the number of offsets without a committed record."""


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """What all partitions of a table are compared by."""

    cluster: KafkaCluster
    table: TableTarget
    scan: ExactScan
    values: ValueDecoder
    time_partition: str
    columns: tuple[str, ...]
    """The columns that are compared, `kafka_offset` among them."""
    columns_added: ColumnStarts
    """Columns that the table has only since a later offset."""
    letters: DeadLetterIndex
    window_bytes: int = WINDOW_BYTES

    def compare(self, wanted: PartitionRange, findings: Findings) -> PartitionReport:
        """Compare the range. Raises TopicRecreated, and PipelineError if nobody answers."""
        report = PartitionReport(wanted.topic, wanted.partition, wanted.start, wanted.end)
        position = wanted.start
        while position < wanted.end:
            expired = _part(wanted, position, self._log_start(wanted))
            position = self._compare_expired(expired, report, findings)
            rest = _part(wanted, position, wanted.end)
            try:
                for done in self._compare_records(rest, report, findings):
                    position = done
            except OffsetsLost:
                # Deleted since; what was not compared yet is expired in the next round.
                if self._log_start(wanted) <= position:
                    raise
        return report

    def _log_start(self, wanted: PartitionRange) -> int:
        listed = self.cluster.list_offsets({wanted.name: EARLIEST}, read_committed=True)
        return listed[wanted.name].offset

    def _compare_expired(
        self, expired: PartitionRange, report: PartitionReport, findings: Findings
    ) -> int:
        """Nothing is left to compare with; rows must still be there no more than once."""
        for start in range(expired.start, expired.end, EXPIRED_OFFSETS):
            window = _part(expired, start, min(start + EXPIRED_OFFSETS, expired.end))
            gaps = [OffsetGap(window.start, window.end, "expired")]
            self._compare_window(window, _Records.none(self), gaps, report, findings)
        return expired.end

    def _compare_records(
        self, wanted: PartitionRange, report: PartitionReport, findings: Findings
    ) -> Iterator[int]:
        """Compare window by window; yields the end of each that is done, the range's at last."""
        records, start = _Records.none(self), wanted.start
        if start == wanted.end:
            return
        for batch in read_partition(self.cluster, wanted):
            records.add(batch, self.values, self.time_partition)
            if records.bytes >= self.window_bytes:
                window = _part(wanted, start, records.end)
                self._compare_with_gaps(window, records, report, findings)
                yield window.end
                records, start = _Records.none(self), window.end
        if start < wanted.end:
            window = _part(wanted, start, wanted.end)
            self._compare_with_gaps(window, records, report, findings)
            yield window.end

    def _compare_with_gaps(
        self,
        window: PartitionRange,
        records: "_Records",
        report: PartitionReport,
        findings: Findings,
    ) -> None:
        holes = holes_of(window, pa.chunked_array(records.offsets, pa.int64()))
        gaps: list[OffsetGap] = []
        if holes:
            around = _part(window, holes[0][0], holes[-1][1])
            gaps = list(gaps_of_partition(self.cluster, around))
            find_unexplained(window, holes, gaps, findings)
        self._compare_window(window, records, gaps, report, findings)

    def _compare_window(
        self,
        window: PartitionRange,
        records: "_Records",
        gaps: list[OffsetGap],
        report: PartitionReport,
        findings: Findings,
    ) -> None:
        # Of expired records there is nothing but the offset to compare.
        columns = self.columns if records.offsets else (OFFSET_COLUMN,)
        expected = pa.concat_tables(records.rows).select(columns)
        expected = before_they_were_added(expected, window.name, self.columns_added)
        report.records += len(expected)
        found, unreadable = read_window(self.table, self.scan, window, columns, expected.schema)
        for each in unreadable:
            text = f"offsets {each.start} to {each.end - 1}: {each.reason}"
            findings.add(FindingKind.UNREADABLE, window.name, [each.start], text)
            offset = pc.field(OFFSET_COLUMN)
            expected = expected.filter((offset < each.start) | (offset >= each.end))
        report.rows += len(found)
        report.rows_of_gone += compare_window(
            window, expected, found, [each.offset for each in records.bad], gaps, findings
        )
        is_gone = [range(gap.start, gap.end) for gap in gaps if gap.reason in GONE]
        report.bad += len(records.bad)
        report.letters_unchecked += compare_letters(
            window, records.bad, is_gone, self.letters, findings
        )
        for gap in gaps:
            size = min(gap.end, window.end) - max(gap.start, window.start)
            if size > 0:
                report.gaps[gap.reason] = report.gaps.get(gap.reason, 0) + size


@dataclass(slots=True)
class _Records:
    """The records of a window so far, as what they should have become."""

    rows: list[pa.Table]
    bad: list[BadRecord] = field(default_factory=list)
    offsets: list[pa.Int64Array] = field(default_factory=list)
    bytes: int = 0
    end: int = 0

    @classmethod
    def none(cls, comparison: PartitionComparison) -> "_Records":
        schema = table_schema(comparison.values, comparison.time_partition)
        return cls([schema.empty_table()])

    def add(self, batch: pa.RecordBatch, values: ValueDecoder, time_partition: str) -> None:
        made = rows_of(batch, values, time_partition)
        self.rows.append(made.rows)
        self.bad += made.bad
        self.offsets.append(batch.column("offset"))
        self.bytes += batch.nbytes
        self.end = self.offsets[-1][-1].as_py() + 1


def _part(of: PartitionRange, start: int, end: int) -> PartitionRange:
    """The range's [start, end) that lies within it; empty at `start` if there is none."""
    end = max(start, min(end, of.end))
    return PartitionRange(of.topic, of.topic_id, of.partition, start, end)
