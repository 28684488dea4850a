"""The report names every finding by its coordinates, and counts those that it does not show."""

from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.jobs.partition_comparison import PartitionReport
from odradek.pipeline.jobs.verify import VerifyReport
from odradek.pipeline.jobs.verify_report import report_document, report_lines
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.tables.job_plan import JobCommit, TableJob

JOB = TableJob(
    name="orders",
    topics=("orders",),
    topic_pattern="",
    format="delta",
    value_format="json",
    time_partition="date",
)
PARTITIONS = (
    PartitionReport(
        "orders", 0, 0, 1_500, 1_200, 3, 1_250, 50, 1, {"control": 100, "expired": 197}
    ),
    PartitionReport("orders", 10, 5, 6, 1, 0, 1),
)


def _report(findings: Findings, *, to_come: tuple[str, ...] = ()) -> VerifyReport:
    commit = JobCommit("orders", 7, {}, 0, 0, 0, 1_790_000_000_000)
    return VerifyReport(JOB, commit, PARTITIONS, findings, to_come)


def test_a_proven_table_for_people() -> None:
    assert [*report_lines(_report(Findings(), to_come=("city",)))] == [
        "topic   partition  from     to  records   rows  bad  control  aborted  compacted  expired",
        "orders          0     0  1,500    1,200  1,250    3      100        0          0      197",
        "orders         10     5      6        1      1    0        0        0          0        0",
        "",
        "The table does not have these columns of the schema yet: city.",
        "50 rows are of records that the topic has compacted or expired: only counted.",
        "1 dead letters could not be checked: they or their records are deleted.",
        "Verified: 1,201 records are in the table once and unchanged; 3 are dead letters;"
        " 297 offsets without a record are explained.",
    ]


def test_findings_for_people() -> None:
    findings = Findings(shown_max=2)
    findings.add(FindingKind.MISSING, PartitionName("orders", 0), range(10, 2_000))
    findings.add(FindingKind.ALTERED, PartitionName("orders", 10), [5], "kafka_key, name")

    assert [*report_lines(_report(findings))][4:-3] == [
        "missing: 1,990",
        "  orders-0 offset 10",
        "  orders-0 offset 11",
        "  and 1,988 more",
        "altered: 1",
        "  orders-10 offset 5: kafka_key, name",
    ]
    assert [*report_lines(_report(findings))][-1] == (
        "NOT verified: 1,991 findings in 1,204 records."
    )


def test_the_document_has_all_of_it() -> None:
    findings = Findings(shown_max=1)
    findings.add(FindingKind.DOUBLED, PartitionName("orders", 0), [10, 12], "2 times")

    document = report_document(_report(findings))

    assert (document["is_proven"], document["plan"], document["job"]) == (False, 7, "orders")
    assert document["findings"] == {
        "doubled": {
            "count": 2,
            "first": [{"topic": "orders", "partition": 0, "offset": 10, "detail": "2 times"}],
        }
    }
    partitions = document["partitions"]
    assert isinstance(partitions, list)
    assert partitions[0] == {
        "topic": "orders",
        "partition": 0,
        "start": 0,
        "end": 1_500,
        "records": 1_200,
        "bad": 3,
        "rows": 1_250,
        "rows_of_gone_records": 50,
        "letters_unchecked": 1,
        "gaps": {"control": 100, "expired": 197},
    }
