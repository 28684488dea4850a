"""Parquet's own part: which files are looked into. What all formats promise is in test_target."""

from pathlib import Path

import pytest

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.parquet_log import may_hold
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (PartitionRange("orders", "", 1, 0, 10), False),
        (PartitionRange("orders", "", 1, 0, 11), True),
        (PartitionRange("orders", "", 1, 19, 30), True),
        (PartitionRange("orders", "", 1, 20, 30), False),
        (PartitionRange("orders", "", 0, 0, 30), False),
        (PartitionRange("bills", "", 1, 0, 30), False),
    ],
)
def test_a_file_is_read_if_it_may_hold_wanted_offsets(wanted: PartitionRange, may: bool) -> None:
    file = DataFile("a.parquet", "", "orders", 1, 10, 19, 10, 1)
    assert may_hold(file, wanted) is may


def test_files_without_a_commit_are_not_read(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "orders"))
    table.claim(job())
    fill(table, plan(1, (0, 0, 3)))
    stray = next((tmp_path / "orders").rglob("*.parquet"))
    (stray.parent / "stray.parquet").write_bytes(stray.read_bytes())
    assert offsets_in(table) == [0, 1, 2]
