"""Which files of a snapshot are looked into, and what is in their paths."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.parquet_snapshot import FileBounds, ParquetSnapshot
from odradek.pipeline.tables.table_folder import TableFolder

ANY_OFFSET = (-(2**63), 2**63)
SCHEMA = pa.schema(
    [
        ("kafka_topic", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("name", pa.string()),
        ("kafka_date", pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (PartitionRange("orders", "", 1, 0, 10), False),
        # The file begins at the last offset of the range, and ends at its first one.
        (PartitionRange("orders", "", 1, 0, 11), True),
        (PartitionRange("orders", "", 1, 19, 30), True),
        (PartitionRange("orders", "", 1, 20, 30), False),
        (PartitionRange("orders", "", 1, 12, 13), True),
        (PartitionRange("orders", "", 0, 0, 30), False),
        (PartitionRange("orders", "", 2, 0, 30), False),
        (PartitionRange("bills", "", 1, 0, 30), False),
    ],
)
def test_a_file_is_read_if_it_may_hold_wanted_offsets(
    wanted: PartitionRange, may: bool, tmp_path: Path
) -> None:
    file = DataFile("a.parquet", "", "orders", 1, 10, 19, 10, 1)
    bounds = FileBounds.of(file, TableFolder(str(tmp_path)))
    assert bounds == FileBounds(f"{tmp_path}/a.parquet", (1, 1), (10, 19), "orders")
    assert bounds.may_hold(wanted) is may


def test_what_a_file_does_not_say_may_be_in_it() -> None:
    wanted = PartitionRange("bills", "", 1, 5, 6)
    assert FileBounds("a.parquet", (0, 3), ANY_OFFSET).may_hold(wanted)
    assert not FileBounds("a.parquet", (2, 3), ANY_OFFSET).may_hold(wanted)


def snapshot_of(folder: Path, *offsets: tuple[int, int]) -> ParquetSnapshot:
    """Files with rows from the first to the last offset, each in the folder of a day."""
    files = []
    for number, (first, last) in enumerate(offsets):
        path = folder / f"kafka_date=2026-11-0{number + 1}" / f"{number}.parquet"
        path.parent.mkdir()
        listed = [
            {"kafka_topic": "orders", "kafka_partition": 0, "kafka_offset": offset}
            for offset in range(first, last + 1)
        ]
        kept = pa.schema([SCHEMA.field(name) for name in listed[0]])
        pq.write_table(pa.Table.from_pylist(listed, schema=kept), path)
        files.append(FileBounds(str(path), (0, 0), (first, last), "orders"))
    return ParquetSnapshot(tuple(files), TableFolder(str(folder)), SCHEMA, "kafka_date")


def test_only_rows_of_the_range_are_read(tmp_path: Path) -> None:
    found = snapshot_of(tmp_path, (0, 9), (10, 19), (20, 29))
    # The last file is lost: who does not need it does not open it.
    Path(found.files[2].path).unlink()
    wanted = PartitionRange("orders", "", 0, 9, 11)
    rows = pa.Table.from_batches(found.scan(["kafka_offset", "name", "kafka_date"], wanted))
    assert sorted(rows.to_pylist(), key=lambda row: row["kafka_offset"]) == [
        {"kafka_offset": 9, "name": None, "kafka_date": "2026-11-01"},
        {"kafka_offset": 10, "name": None, "kafka_date": "2026-11-02"},
    ]
    with pytest.raises(FileNotFoundError, match=r"2\.parquet"):
        list(found.scan(["kafka_offset"], replace(wanted, end=21)))
    assert [*found.scan(["kafka_offset"], replace(wanted, partition=1))] == []


def test_snapshots_of_the_same_files_are_equal(tmp_path: Path) -> None:
    found = snapshot_of(tmp_path, (0, 9), (10, 19))
    assert found == replace(found, folder=TableFolder(str(tmp_path)))
    assert found != replace(found, files=found.files[:1])
