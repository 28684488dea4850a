"""Compares a table and its dead letters with the topics that a job moved: the proof.

What each record should have become is computed again, by the function that the job uses, from what
the topic holds now, and compared column by column. Partitions are compared one after the other, in
windows of bounded size. Without Spark: the table is read by Arrow.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.column_history import columns_added
from odradek.pipeline.jobs.comparison import OFFSET_COLUMN
from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex
from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.jobs.partition_comparison import (
    WINDOW_BYTES,
    PartitionComparison,
    PartitionReport,
)
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.job_plan import JobCommit, TableJob
from odradek.pipeline.tables.rows import table_schema
from odradek.pipeline.tables.target import TableTarget
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.wire.cluster import KafkaCluster

_COORDINATES = ("kafka_topic", "kafka_partition", OFFSET_COLUMN)
_NOT_COMMITTED = "the job has not committed this offset"
_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` says about a table."""

    job: TableJob
    commit: JobCommit
    """The last one, whose ranges were compared."""
    partitions: tuple[PartitionReport, ...]
    findings: Findings
    columns_to_come: tuple[str, ...]
    """Columns of the schema that the table will have after the next commit."""

    @property
    def is_proven(self) -> bool:
        """Whether nothing is unexplained."""
        return not self.findings.counts()

    @property
    def verified_offsets(self) -> dict[PartitionName, int]:
        """Up to where each partition is proven, to be committed for `verified_group`.

        PipelineError if it is not: data must stay in the topic then.
        """
        if not self.is_proven:
            raise PipelineError("the table is not proven: nothing is committed")
        return {PartitionName(each.topic, each.partition): each.end for each in self.partitions}


def verified_group(name: str) -> str:
    """The group whose offsets say up to where a job's table is proven: for the topic's setting
    `odradek.archive.group`, by which the broker keeps what is not."""
    return f"pipe.{name}.verified"


def verify_table(
    cluster: KafkaCluster,
    table: TableTarget,
    values: ValueDecoder,
    read_letters: Callable[[], DeadLetterIndex],
    *,
    told: Callable[[PartitionReport], None] = lambda report: None,
    window_bytes: int = WINDOW_BYTES,
) -> VerifyReport:
    """Compare all that the table has committed; `told` is called after each partition.

    `values` is the format that the job has. `read_letters` is called when the commit is known: the
    job sends the letters of a plan before it commits. PipelineError if the table has no commit,
    if a topic is deleted, created again or not reachable, or if the schema is another one.
    """
    job, commit = table.job(), table.last_commit()
    if job is None or commit is None:
        raise PipelineError("the table has no commit yet: run offload first")
    missing = sorted(commit.topics.keys() - cluster.topics(tuple(commit.topics)).keys())
    if missing:
        raise PipelineError(
            f"topic {missing[0]} does not exist any more: the table's rows of it cannot be compared"
        )
    columns, to_come = _columns(table, job, values)
    letters = read_letters()
    scan = ExactScan(table)
    comparison = PartitionComparison(
        cluster=cluster,
        table=table,
        scan=scan,
        values=values,
        time_partition=job.time_partition,
        columns=columns,
        columns_added=columns_added(table),
        letters=letters,
        window_bytes=window_bytes,
    )
    findings = Findings()
    reports = []
    for topic, at in sorted(commit.topics.items()):
        for partition, end in sorted(at.ends.items()):
            wanted = PartitionRange(topic, at.topic_id, partition, at.starts[partition], end)
            reports.append(comparison.compare(wanted, findings))
            told(reports[-1])
    _find_foreign_rows(table, scan, commit, findings)
    _find_foreign_letters(table, letters, findings)
    return VerifyReport(job, commit, tuple(reports), findings, to_come)


def _columns(
    table: TableTarget, job: TableJob, values: ValueDecoder
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to compare, and those that the table does not have yet."""
    of_table = table.schema()
    names = set() if of_table is None else set(of_table.names)
    wanted = table_schema(values, job.time_partition).names
    more = sorted(names.difference(wanted))
    if more:
        raise PipelineError(
            f"the table has columns that the schema lacks ({', '.join(more)}):"
            " verify with the schema that the job has"
        )
    to_come = tuple(name for name in wanted if name not in names)
    return tuple(name for name in wanted if name in names), to_come


def _find_foreign_rows(
    table: TableTarget, scan: ExactScan, commit: JobCommit, findings: Findings
) -> None:
    """Rows outside of all that was committed. The job may commit more while the table is read."""
    try:
        outside = [
            rows
            for batch in scan.batches(_COORDINATES)
            if (rows := _outside(pa.Table.from_batches([batch]), commit)).num_rows
        ]
    except (OSError, pa.ArrowException, PipelineError) as error:
        if isinstance(error, FileNotFoundError) and scan.refresh():
            _find_foreign_rows(table, scan, commit, findings)
            return
        if FindingKind.UNREADABLE in findings.counts():
            return
        raise
    newest = table.last_commit()
    if not outside or newest is None:
        return
    rows = _outside(pa.concat_tables(outside), newest)
    for topic, partition, offset in zip(
        *(rows.column(name).to_pylist() for name in _COORDINATES), strict=True
    ):
        at = PartitionName(topic, partition)
        findings.add(FindingKind.UNEXPECTED, at, [offset], _NOT_COMMITTED)


def _outside(rows: pa.Table, commit: JobCommit) -> pa.Table:
    """The rows that are in none of the commit's ranges; a null counts as -1."""
    nothing = dict(zip(_COORDINATES, ("", -1, -1), strict=True))
    filled = [pc.fill_null(rows.column(name), value) for name, value in nothing.items()]
    rows = pa.Table.from_arrays(filled, names=_COORDINATES)
    parts = [rows.schema.empty_table()]
    ends = rows.group_by(["kafka_topic", "kafka_partition"]).aggregate(
        [(OFFSET_COLUMN, "min"), (OFFSET_COLUMN, "max")]
    )
    for each in ends.to_pylist():
        topic, partition = each["kafka_topic"], each["kafka_partition"]
        at = commit.topics.get(topic)
        is_known = at is not None and partition in at.ends
        start, end = (at.starts[partition], at.ends[partition]) if at and is_known else (0, 0)
        if start <= each[f"{OFFSET_COLUMN}_min"] and each[f"{OFFSET_COLUMN}_max"] < end:
            continue
        column = pc.field(OFFSET_COLUMN)
        is_of_partition = (pc.field("kafka_topic") == topic) & (
            pc.field("kafka_partition") == partition
        )
        parts.append(rows.filter(is_of_partition & ((column < start) | (column >= end))))
    return pa.concat_tables(parts)


def _find_foreign_letters(table: TableTarget, letters: DeadLetterIndex, findings: Findings) -> None:
    """Dead letters outside of what was committed and of what a plan is about to commit."""
    pending, commit = table.pending(), table.last_commit()
    known = [] if pending is None else list(pending.ranges)
    for topic, at in ({} if commit is None else commit.topics).items():
        known += [
            PartitionRange(topic, at.topic_id, partition, at.starts[partition], end)
            for partition, end in at.ends.items()
        ]
    for name in letters.partitions():
        ranges = [range(each.start, each.end) for each in known if each.name == name]
        everything = PartitionRange(name.topic, "", name.partition, 0, _NO_END)
        foreign = [
            offset
            for offset in letters.offsets(everything)
            if not any(offset in each for each in ranges)
        ]
        findings.add(FindingKind.DEAD_LETTER_UNEXPECTED, name, foreign, _NOT_COMMITTED)
