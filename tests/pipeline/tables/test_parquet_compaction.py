"""A folder of Parquet files is compacted, and no row is lost or doubled wherever it is killed."""

import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.maintain import MaintainOptions, maintain
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables import parquet_compaction
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.parquet_compaction import maintain_parquet, parts_of
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan, run_tasks
from tests.support.killed_maintenance import chosen_steps, kill_at, lines_of

TARGET = 1 << 20
SEED = 14
ROWS = 18


def _claimed(folder: Path, time_partition: str = "date") -> TableTarget:
    table = open_table("parquet", str(folder))
    table.claim(job(time_partition=time_partition))
    return table


def _filled(folder: Path, time_partition: str = "date") -> Path:
    """Six plans of two Kafka partitions, three offsets each: with `date`, five folders."""
    table = _claimed(folder, time_partition)
    for number in range(6):
        fill(table, plan(number + 1, *((each, 3 * number, 3 * number + 3) for each in (0, 1))))
    table.close()
    return folder


def _options(folder: Path) -> MaintainOptions:
    return MaintainOptions(table=str(folder), target_bytes=TARGET, keep=timedelta(hours=1))


def _read_by_others(folder: Path) -> pa.Table:
    """As somebody who knows nothing of jobs, sorted."""
    found = ds.dataset(folder, partitioning="hive").to_table()
    return found.sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending")])


def _listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def _logged(folder: Path) -> set[str]:
    return {each.path for each in open_table("", str(folder)).files()}


@pytest.mark.parametrize(("time_partition", "count"), [("date", 5), ("none", 1)])
def test_files_of_one_time_become_one(tmp_path: Path, time_partition: str, count: int) -> None:
    folder = _filled(tmp_path / "orders", time_partition)
    before, files = _read_by_others(folder), len(_listed(folder))
    told = maintain(replace(_options(folder), dry_run=True))
    assert (told.compacted, told.written, len(_listed(folder))) == (files, count, files)

    report = maintain(_options(folder))

    assert (report.compacted, report.written, report.folded) == (files, count, 5)
    assert len(_listed(folder)) == count
    assert _listed(folder) == _logged(folder)
    assert _read_by_others(folder).equals(before)
    table = open_table("", str(folder))
    schema = table.schema()
    assert schema is not None
    rows = pa.Table.from_batches(table.scan(), schema)
    assert rows.sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending")]).equals(
        before
    )
    wanted = PartitionRange("orders", "", 1, 7, 12)
    assert offsets_in(table, wanted) == [7, 8, 9, 10, 11]
    exact = pa.Table.from_batches(ExactScan(table).read(("kafka_offset",), wanted))
    assert sorted(exact.column(0).to_pylist()) == [7, 8, 9, 10, 11]
    # Again there is nothing to do, and the job goes on.
    assert maintain(_options(folder)).lines(dry_run=False) == ["nothing to do"]
    again = _claimed(folder, time_partition)
    fill(again, plan(7, (0, 18, 20)))
    assert offsets_in(again) == sorted([*range(20), *range(18)])


def test_files_tell_which_offsets_they_have_and_rows_are_in_their_order(tmp_path: Path) -> None:
    folder = _filled(tmp_path / "orders", "none")
    maintain(_options(folder))
    table = open_table("", str(folder))
    parts = [
        (each.partition, each.first_offset, each.last_offset, each.rows) for each in table.files()
    ]
    assert parts == [(0, 0, 17, ROWS), (1, 0, 17, ROWS)]
    (path,) = folder.glob("*.parquet")
    size = path.stat().st_size
    assert size - 1 <= sum(each.bytes for each in table.files()) <= size
    assert pq.ParquetFile(path).read(["kafka_offset"]).column(0).to_pylist() == [*range(18)] * 2
    # A compacted file that is small becomes a part of the next one.
    again = _claimed(folder, "none")
    fill(again, plan(7, (0, 18, 20)))
    again.close()
    maintain(_options(folder))
    assert [
        (each.partition, each.first_offset, each.last_offset, each.rows)
        for each in open_table("", str(folder)).files()
    ] == [(0, 0, 17, ROWS), (1, 0, 17, ROWS), (0, 18, 19, 2)]


def test_parts_that_follow_each_other_become_one() -> None:
    def part(partition: int, first: int, last: int, rows: int) -> DataFile:
        return DataFile("old", "", "orders", partition, first, last, rows, 1)

    found = parts_of(
        [part(0, 0, 4, 5), part(0, 8, 9, 1), part(1, 0, 9, 2), part(1, 5, 6, 2)], "new", 1000
    )
    assert [(each.path, each.partition, each.first_offset, each.last_offset) for each in found] == [
        ("new", 0, 0, 9),
        ("new", 1, 0, 9),
        ("new", 1, 5, 6),
    ]
    assert [(each.rows, each.bytes) for each in found] == [(6, 600), (2, 200), (2, 200)]


def test_columns_that_came_later_are_null_in_older_rows(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    table = _claimed(folder)
    text = b'{"id": %d, "name": "x"}'
    for number, schema in enumerate(("id BIGINT", "id BIGINT, name STRING"), 1):
        each = plan(number, (0, 2 * number - 2, 2 * number))
        table.prepare(each)
        table.commit(each, run_tasks(table, each, value_format("json", schema=schema), text))
    table.close()
    assert maintain(_options(folder)).written == 1
    found = _read_by_others(folder)
    assert found.column("name").to_pylist() == [None, None, "x", "x"]
    assert found.column("id").to_pylist() == [0, 1, 2, 3]


def test_a_lost_file_stops_it_and_what_was_compacted_stays(tmp_path: Path) -> None:
    folder = _filled(tmp_path / "orders")
    (folder / sorted(_listed(folder))[-1]).unlink()
    with pytest.raises(PipelineError, match=r"cannot be read: .*: run `odradek pipe verify`"):
        maintain(_options(folder))
    assert not (folder / "_odradek" / "staging").exists()
    assert len([*folder.glob("*/compacted-*.parquet")]) == 4
    # The log knows it, and knows that it is lost.
    assert len(_logged(folder) - _listed(folder)) == 1
    assert _listed(folder) < _logged(folder)


def test_a_scan_follows_a_compaction(tmp_path: Path) -> None:
    """Whoever has opened the table before reads the same rows of other files."""
    folder = _filled(tmp_path / "orders")
    scan = ExactScan(open_table("", str(folder)))
    wanted = PartitionRange("orders", "", 0, 0, ROWS)
    for _ in range(2):
        found = pa.Table.from_batches(scan.read(("kafka_offset",), wanted))
        assert sorted(found.column(0).to_pylist()) == [*range(ROWS)]
        maintain(_options(folder))
    (folder / next(iter(_listed(folder)))).unlink()
    with pytest.raises(FileNotFoundError):
        scan.read(("kafka_offset",), wanted)


def test_many_commits_become_a_checkpoint_without_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_compaction, "UNFOLDED_COMMITS_MAX", 4)
    folder = tmp_path / "orders"
    table = _claimed(folder, "none")
    for number in range(1, 6):
        fill(table, plan(number, (0, number, number + 1)))
    schema = table.schema()
    assert schema is not None
    report = maintain_parquet(
        str(folder), job(time_partition="none"), schema, target_bytes=2, dry_run=False
    )
    assert (report.compacted, report.folded) == (0, 4)
    assert offsets_in(table) == [1, 2, 3, 4, 5]


def test_it_may_be_killed_anywhere(tmp_path: Path) -> None:
    """At 20 lines by chance and at each line of the log's code: a reader of the log sees each row
    once at once, a reader of the folder never misses one, and whoever comes next repairs it."""
    folder, saved = tmp_path / "orders", tmp_path / "saved"
    shutil.copytree(_filled(folder), saved)
    rows = _read_by_others(folder)
    offsets = sorted([*range(ROWS)] * 2)
    lines = lines_of(_options(folder))
    steps = chosen_steps(lines, SEED, 20, "file_log.py")
    assert len(steps) > 60
    seen: Counter[str] = Counter()
    for index, step in enumerate(steps):
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        kill_at(_options(folder), step)

        where = f"step {step} of {len(lines)}: {lines[step - 1]}"
        assert offsets_in(open_table("", str(folder))) == offsets, where
        found = _read_by_others(folder)
        assert _distinct(found).equals(rows), where
        seen["doubled"] += len(found) > len(rows)
        seen["prepared"] += any((folder / "_odradek").glob("compactions/*.prepared"))
        seen["staged"] += any((folder / "_odradek").glob("staging/**/*.parquet"))
        seen["compacted"] += any(folder.glob("*/compacted-*"))

        if index % 2:
            maintain(_options(folder))
            assert len(_listed(folder)) == 5, where
            assert _read_by_others(folder).equals(rows), where
        table = _claimed(folder)
        fill(table, plan(7, (0, ROWS, ROWS + 1)))
        table.close()
        found = _read_by_others(folder)
        assert len(found) == len(rows) + 1, where
        assert found.filter(ds.field("kafka_offset") < ROWS).equals(rows), where
        assert _listed(folder) == _logged(folder), where
    # These are the states that had to be repaired.
    assert min(seen[each] for each in ("doubled", "prepared", "staged", "compacted")) >= 3, seen


def _distinct(rows: pa.Table) -> pa.Table:
    """A table that is sorted, with the first of rows that have the same offset."""
    keys = list(
        zip(
            *(rows.column(f"kafka_{name}").to_pylist() for name in ("partition", "offset")),
            strict=True,
        )
    )
    return rows.take(
        [index for index, key in enumerate(keys) if index == 0 or keys[index - 1] != key]
    )
