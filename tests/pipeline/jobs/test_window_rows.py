"""A window is read as far as its files can be read."""

from pathlib import Path

import pyarrow as pa
import pytest

from odradek.pipeline.jobs.window_rows import Unreadable, read_window
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.job_plan import DataFile, JobPlan, PlanResult, TableJob
from odradek.pipeline.tables.rows import COORDINATES
from odradek.pipeline.tables.staging import PieceWriter
from odradek.pipeline.tables.target import TableTarget, open_table

COLUMNS = ("kafka_offset",)
SCHEMA = pa.schema([COORDINATES.field("kafka_offset")])


@pytest.fixture
def table(tmp_path: Path) -> TableTarget:
    """Offsets 0 to 9, 10 to 19 and 20 to 29 of a partition in a file each."""
    opened = open_table("parquet", str(tmp_path / "table"))
    opened.claim(
        TableJob(
            name="job",
            topics=("orders",),
            topic_pattern="",
            format="parquet",
            value_format="raw",
            time_partition="none",
        )
    )
    for number in range(3):
        wanted = PartitionRange("orders", "", 0, number * 10, number * 10 + 10)
        plan = JobPlan("job", number + 1, (wanted,))
        opened.prepare(plan)
        opened.commit(plan, PlanResult((_write(opened, plan, wanted),), 0, 0, COORDINATES))
    return opened


def _write(opened: TableTarget, plan: JobPlan, wanted: PartitionRange) -> DataFile:
    rows = [
        {"kafka_topic": "orders", "kafka_partition": 0, "kafka_offset": offset}
        for offset in range(wanted.start, wanted.end)
    ]
    writer = PieceWriter(opened.staging(plan), wanted)
    writer.add(pa.Table.from_pylist(rows, schema=COORDINATES))
    (file,), _ = writer.close()
    return file


def _offsets(rows: pa.Table) -> list[int]:
    return sorted(rows.column("kafka_offset").to_pylist())


def test_a_window_is_read_as_a_whole(table: TableTarget) -> None:
    rows, unreadable = read_window(
        table, ExactScan(table), PartitionRange("orders", "", 0, 5, 25), COLUMNS, SCHEMA
    )

    assert (_offsets(rows), unreadable) == (list(range(5, 25)), [])


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_a_lost_file_leaves_the_rows_of_the_others(
    table: TableTarget, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "table" / table.files()[1].path
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])

    rows, unreadable = read_window(
        table, ExactScan(table), PartitionRange("orders", "", 0, 5, 25), COLUMNS, SCHEMA
    )

    assert _offsets(rows) == [*range(5, 10), *range(20, 25)]
    assert unreadable == [Unreadable(10, 20, unreadable[0].reason)]
    assert path.name in unreadable[0].reason or damage == "cut"


def test_a_window_without_rows_is_an_empty_table(table: TableTarget) -> None:
    rows, unreadable = read_window(
        table, ExactScan(table), PartitionRange("orders", "", 1, 0, 5), COLUMNS, SCHEMA
    )

    assert (rows, unreadable) == (SCHEMA.empty_table(), [])
