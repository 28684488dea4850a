"""An Iceberg table is compacted by one snapshot, and what no snapshot has any more is deleted."""

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.maintain import MaintainOptions
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.iceberg_compaction import maintain_iceberg
from odradek.pipeline.tables.maintenance_report import MaintenanceReport
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan, run_tasks
from tests.support.killed_maintenance import chosen_steps, kill_at, lines_of

pytestmark = pytest.mark.filterwarnings(
    # pyiceberg's of its own dependencies; not ours to change.
    "ignore::DeprecationWarning:pyiceberg.*",
    "ignore:.*:ResourceWarning",
)

TARGET = 1 << 20
DAY = timedelta(days=1)
NOTHING = timedelta(0)
SEED = 14


def _claimed(folder: Path, time_partition: str = "date") -> TableTarget:
    table = open_table("iceberg", str(folder))
    table.claim(job("iceberg", time_partition))
    return table


def _filled(folder: Path, time_partition: str = "date", plans: int = 4) -> TableTarget:
    """Plans of two Kafka partitions, three offsets each: with `date`, three folders."""
    table = _claimed(folder, time_partition)
    for number in range(plans):
        fill(table, plan(number + 1, *((each, 3 * number, 3 * number + 3) for each in (0, 1))))
    return table


def _maintained(
    table: TableTarget, keep: timedelta = DAY, *, dry_run: bool = False, target: int = TARGET
) -> MaintenanceReport:
    known, schema = table.job(), table.schema()
    assert known is not None
    assert schema is not None
    return maintain_iceberg(
        table.location, {}, known, schema, target_bytes=target, keep=keep, dry_run=dry_run
    )


def _opened(folder: Path) -> Table:
    """As somebody else opens it."""
    catalog = load_catalog("odradek", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    return catalog.load_table(("odradek", "archive"))


def _rows(folder: Path) -> pa.Table:
    found = _opened(folder).scan().to_arrow()
    return found.sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending")])


def _files(folder: Path) -> set[str]:
    return {task.file.file_path for task in _opened(folder).scan().plan_files()}


def _listed(folder: Path) -> set[str]:
    return {f"file://{path}" for path in folder.rglob("*.parquet")}


@pytest.mark.parametrize(("time_partition", "count"), [("date", 3), ("none", 1)])
def test_files_of_one_time_become_one(tmp_path: Path, time_partition: str, count: int) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, time_partition)
    before, files = _rows(folder), len(_files(folder))
    snapshots = len(_opened(folder).snapshots())
    told = _maintained(table, dry_run=True)
    assert (told.compacted, told.written, len(_files(folder))) == (files, count, files)

    report = _maintained(table)

    assert report == MaintenanceReport(compacted=files, written=count)
    assert len(_files(folder)) == count
    assert _rows(folder).equals(before)
    assert len(_opened(folder).snapshots()) == snapshots + 1
    wanted = PartitionRange("orders", "", 1, 4, 8)
    exact = pa.Table.from_batches(ExactScan(table).read(("kafka_offset",), wanted))
    assert sorted(exact.column(0).to_pylist()) == [4, 5, 6, 7]
    assert _maintained(table).lines(dry_run=False) == ["nothing to do"]
    # The snapshot before is there for whoever has opened it.
    assert len(_listed(folder)) == files + count


def test_the_snapshot_has_the_plan_and_plans_go_on(tmp_path: Path) -> None:
    table = _filled(tmp_path / "orders", plans=2)
    _maintained(table)
    found = _opened(tmp_path / "orders").current_snapshot()
    assert found is not None
    assert found.summary is not None
    assert (found.summary["odradek.job"], found.summary["odradek.plan"]) == ("archive", "2")
    assert found.summary["total-records"] == "12"
    table.close()
    again = _claimed(tmp_path / "orders")
    fill(again, plan(3, (0, 6, 9)))
    assert offsets_in(again) == sorted([*range(9), *range(6)])
    assert _opened(tmp_path / "orders").properties["odradek.plan.archive"] == "3"


def test_snapshots_expire_but_the_current_one_and_their_files_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, "none", plans=3)
    assert _maintained(table, target=2).expired == 0
    told = _maintained(table, NOTHING, dry_run=True, target=2)
    assert (told.expired, told.deleted) == (2, 0)
    done = _maintained(table, NOTHING)
    # Until the compaction somebody may have opened what was the current snapshot.
    assert done == MaintenanceReport(compacted=6, written=1, expired=2)
    assert len(_listed(folder)) == 7
    assert _maintained(table, NOTHING) == MaintenanceReport(expired=1, deleted=6)
    assert _listed(folder) == _files(folder)
    assert len([*folder.glob("metadata/snap-*.avro")]) == 1
    assert _maintained(table, NOTHING).lines(dry_run=False) == ["nothing to do"]
    assert offsets_in(table) == sorted([*range(9)] * 2)
    fill(table, plan(4, (0, 9, 11)))
    assert offsets_in(table) == sorted([*range(11), *range(9)])


def test_files_of_a_tag_stay(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, "none", plans=2)
    opened = _opened(folder)
    tagged = opened.current_snapshot()
    assert tagged is not None
    opened.manage_snapshots().create_tag(tagged.snapshot_id, "year-end").commit()
    before = _rows(folder)
    report = _maintained(table, NOTHING)
    assert (report.written, report.expired, report.deleted) == (1, 1, 0)
    assert _maintained(table, NOTHING).deleted == 0
    found = _opened(folder).scan(snapshot_id=tagged.snapshot_id).to_arrow()
    assert len(found) == len(before)


def test_files_of_others_and_of_unfinished_compactions(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, "none", plans=1)
    (folder / "data").mkdir()
    for name in ("data/compacted-x.parquet", "stranger.parquet"):
        (folder / name).write_bytes(b"")
    (folder / f"compacted-{'0' * 32}.parquet").write_bytes(b"")
    assert _maintained(table).deleted == 1
    assert {path.name for path in folder.rglob("*.parquet")} >= {
        "compacted-x.parquet",
        "stranger.parquet",
    }


def test_columns_that_came_later_are_null_in_older_rows(tmp_path: Path) -> None:
    table = _claimed(tmp_path / "orders")
    text = b'{"id": %d, "name": "x"}'
    for number, schema in enumerate(("id BIGINT", "id BIGINT, name STRING"), 1):
        each = plan(number, (0, 2 * number - 2, 2 * number))
        table.prepare(each)
        table.commit(each, run_tasks(table, each, value_format("json", schema=schema), text))
    assert _maintained(table).written == 1
    found = _rows(tmp_path / "orders")
    assert found.column("name").to_pylist() == [None, None, "x", "x"]


def test_a_table_that_others_partition_is_not_compacted(tmp_path: Path) -> None:
    table = _filled(tmp_path / "orders", plans=2)
    with _opened(tmp_path / "orders").update_spec() as update:
        update.add_identity("kafka_partition")
    assert _maintained(table) == MaintenanceReport()


def test_a_damaged_file_is_named_and_nothing_changes(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _filled(folder, plans=2)
    path = max(folder.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    before = _files(folder)
    with pytest.raises(PipelineError, match=rf"{path.name} cannot be read"):
        _maintained(table)
    assert _files(folder) == before == _listed(folder)


def test_it_may_be_killed_anywhere(tmp_path: Path) -> None:
    """At 20 lines by chance: a reader sees each row once at any time."""
    folder, saved = tmp_path / "orders", tmp_path / "saved"
    _filled(folder).close()
    shutil.copytree(folder, saved)
    rows = _rows(folder)
    options = MaintainOptions(table=str(folder), target_bytes=TARGET, keep=timedelta(hours=1))
    lines = lines_of(options)
    orphans = 0
    for step in chosen_steps(lines, SEED, 20):
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        kill_at(options, step)

        where = f"step {step} of {len(lines)}: {lines[step - 1]}"
        assert _rows(folder).equals(rows), where
        before = len(_listed(folder))
        table = _claimed(folder)
        report = _maintained(table)
        orphans += report.deleted
        assert len(_files(folder)) == 3, where
        assert report.deleted == before - len(_listed(folder)) + report.written, where
        fill(table, plan(5, (0, 12, 13)))
        assert offsets_in(table) == sorted([*range(13), *range(12)]), where
        table.close()
    assert orphans >= 3
