"""What maintenance has done to a table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What was done, or with a dry run what would be."""

    compacted: int = 0
    """Files that became part of a larger one."""
    written: int = 0
    """The larger ones."""
    deleted: int = 0
    """Files that no version needs any more."""
    expired: int = 0
    """Snapshots."""
    folded: int = 0
    """Commits of the job for which a checkpoint stands now."""

    def lines(self, *, dry_run: bool) -> list[str]:
        """For people: what there was to do."""
        would = "would be " if dry_run else ""
        done = [
            (self.compacted, f"files {would}compacted to {self.written:,}"),
            (self.expired, f"snapshots {would}expired"),
            (self.deleted, f"files of old versions {would}deleted"),
            (self.folded, f"commits of the job {would}folded into a checkpoint"),
        ]
        return [f"{count:,} {text}" for count, text in done if count] or ["nothing to do"]
