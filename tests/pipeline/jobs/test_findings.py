"""All findings are counted, a bounded number of them is kept."""

from odradek.pipeline.jobs.findings import FindingKind, Findings, TableFinding
from odradek.pipeline.kafka_types import PartitionName

ORDERS = PartitionName("orders", 3)


def test_first_ones_of_each_kind_are_kept_and_all_are_counted() -> None:
    findings = Findings(shown_max=3)
    findings.add(FindingKind.ALTERED, ORDERS, [9], "kafka_key")
    findings.add(FindingKind.MISSING, ORDERS, [1, 2])
    findings.add(FindingKind.MISSING, ORDERS, range(5, 1_000_000_000))

    assert findings.counts() == {FindingKind.MISSING: 999_999_997, FindingKind.ALTERED: 1}
    assert [each.offset for each in findings.shown(FindingKind.MISSING)] == [1, 2, 5]
    assert findings.shown(FindingKind.ALTERED) == (
        TableFinding(FindingKind.ALTERED, "orders", 3, 9, "kafka_key"),
    )


def test_nothing_is_no_finding() -> None:
    findings = Findings()
    findings.add(FindingKind.MISSING, ORDERS, [])

    assert findings.counts() == {}
    assert findings.shown(FindingKind.DOUBLED) == ()
