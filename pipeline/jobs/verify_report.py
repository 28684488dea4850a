"""What `verify` found, as JSON for scripts and as text for people."""

from collections.abc import Iterator, Sequence

from odradek.pipeline.jobs.findings import FindingKind, TableFinding
from odradek.pipeline.jobs.partition_comparison import PartitionReport
from odradek.pipeline.jobs.text_table import aligned
from odradek.pipeline.jobs.verify import VerifyReport

GAP_REASONS = ("control", "aborted", "compacted", "expired")
_COUNTS = ("records", "rows", "bad", *GAP_REASONS)


def report_document(report: VerifyReport) -> dict[str, object]:
    """Complete but for the findings beyond the first ones of each kind."""
    return {
        "job": report.job.name,
        "format": report.job.format,
        "plan": report.commit.number,
        "committed_ms": report.commit.committed_ms,
        "is_proven": report.is_proven,
        "partitions": [_partition(each) for each in report.partitions],
        "findings": {
            kind.value: {
                "count": count,
                "first": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "offset": each.offset,
                        "detail": each.detail,
                    }
                    for each in report.findings.shown(kind)
                ],
            }
            for kind, count in report.findings.counts().items()
        },
        "columns_to_come": list(report.columns_to_come),
    }


def _partition(report: PartitionReport) -> dict[str, object]:
    return {
        "topic": report.topic,
        "partition": report.partition,
        "start": report.start,
        "end": report.end,
        "records": report.records,
        "bad": report.bad,
        "rows": report.rows,
        "rows_of_gone_records": report.rows_of_gone,
        "letters_unchecked": report.letters_unchecked,
        "gaps": {reason: report.gaps[reason] for reason in GAP_REASONS if reason in report.gaps},
    }


def report_lines(report: VerifyReport) -> Iterator[str]:
    """A table of partitions, the findings, and a sentence."""
    header = ("topic", "partition", "from", "to", *_COUNTS)
    rows = [
        (
            each.topic,
            str(each.partition),
            f"{each.start:,}",
            f"{each.end:,}",
            f"{each.records:,}",
            f"{each.rows:,}",
            f"{each.bad:,}",
            *(f"{each.gaps.get(reason, 0):,}" for reason in GAP_REASONS),
        )
        for each in report.partitions
    ]
    yield from aligned([header, *rows])
    yield ""
    for kind, count in report.findings.counts().items():
        yield from _kind_lines(kind, count, report.findings.shown(kind))
    if report.columns_to_come:
        names = ", ".join(report.columns_to_come)
        yield f"The table does not have these columns of the schema yet: {names}."
    yield from _left_unchecked(report)
    yield _sentence(report)


def _kind_lines(kind: FindingKind, count: int, shown: Sequence[TableFinding]) -> Iterator[str]:
    yield f"{kind.value}: {count:,}"
    for each in shown:
        detail = f": {each.detail}" if each.detail else ""
        yield f"  {each.topic}-{each.partition} offset {each.offset}{detail}"
    if count > len(shown):
        yield f"  and {count - len(shown):,} more"


def _left_unchecked(report: VerifyReport) -> Iterator[str]:
    gone = sum(each.rows_of_gone for each in report.partitions)
    letters = sum(each.letters_unchecked for each in report.partitions)
    if gone:
        yield f"{gone:,} rows are of records that the topic has compacted or expired: only counted."
    if letters:
        yield f"{letters:,} dead letters could not be checked: they or their records are deleted."


def _sentence(report: VerifyReport) -> str:
    records = sum(each.records for each in report.partitions)
    bad = sum(each.bad for each in report.partitions)
    gaps = sum(sum(each.gaps.values()) for each in report.partitions)
    if not report.is_proven:
        count = sum(report.findings.counts().values())
        return f"NOT verified: {count:,} findings in {records + bad:,} records."
    parts = [f"{records:,} records are in the table once and unchanged"]
    if bad:
        parts.append(f"{bad:,} are dead letters")
    if gaps:
        parts.append(f"{gaps:,} offsets without a record are explained")
    return f"Verified: {'; '.join(parts)}."
