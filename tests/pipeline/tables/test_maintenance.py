"""Maintenance changes no row, no plan's number, and nothing that is young."""

from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.maintenance import maintain_delta, maintain_table
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
from odradek.pipeline.tables.target import TableTarget, open_table
from tests.pipeline.tables.table_samples import fill, job, plan

TARGET = 1 << 20
DAY = timedelta(days=1)
NOTHING = timedelta(0)


def _filled(folder: Path, kind: str) -> TableTarget:
    table = open_table(kind, str(folder))
    table.claim(job(kind))
    for number in range(1, 6):
        fill(table, plan(number, (0, 6 * (number - 1), 6 * number)))
    return table


def _offsets(table: TableTarget) -> list[int]:
    return sorted(
        offset
        for batch in table.scan(["kafka_offset"])
        for offset in batch.column("kafka_offset").to_pylist()
    )


def test_small_files_of_delta_become_one_in_each_folder(tmp_path: Path) -> None:
    table = _filled(tmp_path / "orders", "delta")
    files = len(DeltaTable(tmp_path / "orders").file_uris())
    staging = tmp_path / "orders" / "_odradek"
    kept = sorted(staging.rglob("*"))

    report = maintain_delta(
        str(tmp_path / "orders"), {}, target_bytes=TARGET, keep=DAY, dry_run=False
    )

    found = DeltaTable(tmp_path / "orders").file_uris()
    assert len({path.rpartition("/")[0] for path in found}) == len(found) == 8
    # Two plans meet in two of the eight days.
    assert (files, report) == (10, MaintenanceReport(compacted=4, written=2))
    assert _offsets(table) == [*range(30)]
    assert sorted(staging.rglob("*")) == kept


def test_files_of_old_versions_are_deleted_and_the_plans_number_stays(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, "delta")
    maintain_delta(str(folder), {}, target_bytes=TARGET, keep=DAY, dry_run=False)
    parquet = len(list(folder.glob("kafka_date=*/*.parquet")))

    told = maintain_delta(str(folder), {}, target_bytes=TARGET, keep=NOTHING, dry_run=True)
    assert told.deleted > 0
    assert len(list(folder.glob("kafka_date=*/*.parquet"))) == parquet
    done = maintain_delta(str(folder), {}, target_bytes=TARGET, keep=NOTHING, dry_run=False)
    assert done.deleted == told.deleted
    assert len(list(folder.glob("kafka_date=*/*.parquet"))) == parquet - told.deleted

    # A reader that knows nothing but the checkpoint and what follows it.
    (checkpoint,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    for log in (folder / "_delta_log").glob("*.json"):
        if log.stem <= checkpoint.name.partition(".")[0]:
            log.unlink()
    assert DeltaTable(folder).transaction_version("odradek.archive") == 5
    assert _offsets(table) == [*range(30)]
    table.close()
    again = open_table("delta", str(folder))
    again.claim(job("delta"))
    fill(again, plan(6, (0, 30, 36)))
    assert _offsets(again) == [*range(36)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_all_formats_are_compacted_alike(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, kind)
    schema = table.schema()
    assert schema is not None

    def maintained() -> MaintenanceReport:
        return maintain_table(
            str(folder), {}, job(kind), schema, target_bytes=TARGET, keep=DAY, dry_run=False
        )

    report = maintained()
    assert (report.compacted, report.written, report.deleted) == (4, 2, 0)
    assert _offsets(table) == [*range(30)]
    fill(table, plan(6, (0, 30, 36)))
    assert _offsets(table) == [*range(36)]


def test_what_delta_refuses_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"Delta table .*none: "):
        maintain_delta(str(tmp_path / "none"), {}, target_bytes=1, keep=DAY, dry_run=True)
