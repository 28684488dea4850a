"""What maintenance says that it did."""

from odradek.pipeline.tables.maintenance_report import MaintenanceReport


def test_what_was_done_is_told_line_by_line() -> None:
    report = MaintenanceReport(compacted=2000, written=3, expired=4, deleted=1, folded=1500)
    assert report.lines(dry_run=False) == [
        "2,000 files compacted to 3",
        "4 snapshots expired",
        "1 files of old versions deleted",
        "1,500 commits of the job folded into a checkpoint",
    ]
    assert MaintenanceReport(deleted=7).lines(dry_run=True) == [
        "7 files of old versions would be deleted"
    ]
    assert MaintenanceReport().lines(dry_run=False) == ["nothing to do"]
