"""All formats give rows as they were written (a null list is not an empty one), of one time."""

from pathlib import Path

import pyarrow as pa
import pytest

from odradek.pipeline.kafka_types import HEADER_TYPE, PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.job_plan import PlanResult
from odradek.pipeline.tables.rows import rows_of
from odradek.pipeline.tables.staging import PieceWriter
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.raw_values import RawValues
from tests.pipeline.tables.table_samples import fill, job, plan, records

HEADERS = [None, [], [{"key": "a", "value": None}], None]


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    """Offsets 0 to 3 with other headers each, and 4 to 9 in a second plan."""
    opened = open_table(request.param, str(tmp_path / "orders"))
    opened.claim(job(request.param))
    first = plan(1, (0, 0, 4))
    opened.prepare(first)
    batch = records(range(4), step_us=1)
    batch = batch.set_column(7, "headers", pa.array(HEADERS, pa.list_(HEADER_TYPE)))
    rows = rows_of(batch, RawValues(), "date").rows
    writer = PieceWriter(opened.staging(first), first.ranges[0])
    writer.add(rows)
    opened.commit(first, PlanResult(tuple(writer.close()[0]), 0, 0, rows.schema))
    fill(opened, plan(2, (0, 4, 10)))
    return opened


def test_null_lists_stay_null(table: TableTarget) -> None:
    columns = ("kafka_offset", "kafka_headers", "kafka_date")
    wanted = PartitionRange("orders", "", 0, 0, 4)
    found = pa.Table.from_batches(ExactScan(table).batches(columns, wanted))

    assert tuple(found.column_names) == columns
    assert dict(
        zip(*(found.column(name).to_pylist() for name in columns[:2]), strict=True)
    ) == dict(enumerate(HEADERS))
    assert set(found.column("kafka_date").to_pylist()) == {"1970-01-01"}
    again = pa.Table.from_batches(table.scan(columns, wanted))
    assert again.sort_by("kafka_offset").equals(found.sort_by("kafka_offset"))


def test_all_rows_are_scanned_without_a_range(table: TableTarget) -> None:
    found = pa.Table.from_batches(ExactScan(table).batches(("kafka_offset",)))

    assert sorted(found.column("kafka_offset").to_pylist()) == [*range(10)]


def test_a_range_without_rows_is_nothing(table: TableTarget) -> None:
    assert [
        *ExactScan(table).batches(("kafka_offset",), PartitionRange("orders", "", 1, 0, 9))
    ] == []


def test_rows_stay_the_same_while_the_job_commits_more(table: TableTarget) -> None:
    scan = ExactScan(table)
    wanted = PartitionRange("orders", "", 0, 2, 6)
    first = pa.Table.from_batches(scan.batches(("kafka_offset",), wanted))
    fill(table, plan(3, (0, 10, 12)))
    again = pa.Table.from_batches(scan.batches(("kafka_offset",), wanted))

    assert sorted(first.column("kafka_offset").to_pylist()) == [2, 3, 4, 5]
    assert sorted(again.column("kafka_offset").to_pylist()) == [2, 3, 4, 5]


def test_a_table_without_a_commit_has_no_rows(tmp_path: Path) -> None:
    opened = open_table("parquet", str(tmp_path / "new"))
    opened.claim(job("parquet"))

    assert [*ExactScan(opened).batches(("kafka_offset",))] == []


def test_a_list_of_files_is_read_again_when_one_is_gone(table: TableTarget) -> None:
    scan = ExactScan(table)
    wanted = PartitionRange("orders", "", 0, 0, 4)
    assert sum(map(len, scan.read(("kafka_offset",), wanted))) == 4
    assert not scan.refresh()
    fill(table, plan(3, (0, 10, 12)))
    assert scan.refresh()
    assert not scan.refresh()
    first = table.files()[0]
    (Path(table.location) / first.path).unlink()
    with pytest.raises(FileNotFoundError):
        scan.read(("kafka_offset",), wanted)
