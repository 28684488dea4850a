"""What tasks write: a file for each time, rows in the order of offsets, attempts apart."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables import staging
from odradek.pipeline.tables.rows import BadRecord, rows_of
from odradek.pipeline.tables.staging import PieceWriter, StagingPlace, read_bad
from odradek.pipeline.values.raw_values import RawValues
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import DAY_US, records

WANTED = PartitionRange("orders", "", 0, 0, 1000)


def place(folder: Path, *, is_time_in_file: bool = False) -> StagingPlace:
    return StagingPlace(str(folder), 7, "kafka_date", is_time_in_file)


def add(writer: PieceWriter, offsets: range, step_us: int = DAY_US // 4) -> None:
    writer.add(rows_of(records(offsets, step_us=step_us), RawValues(), "date").rows)


def test_a_file_has_the_rows_of_one_time_in_order(tmp_path: Path) -> None:
    writer = PieceWriter(place(tmp_path), WANTED)
    add(writer, range(6))
    add(writer, range(6, 9))
    files, bad = writer.close()
    assert bad == ""
    found = {file.time: file for file in files}
    assert [*found] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    second = found["1970-01-02"]
    assert (second.first_offset, second.last_offset, second.rows) == (4, 7, 4)
    assert second.path.startswith("kafka_date=1970-01-02/0000000007-0-0-")
    assert second.bytes == (tmp_path / second.path).stat().st_size
    rows = pq.read_table(tmp_path / second.path, partitioning=None)
    assert rows.column("kafka_offset").to_pylist() == [4, 5, 6, 7]
    assert "kafka_date" not in rows.column_names


def test_times_in_any_order_are_sorted_out(tmp_path: Path) -> None:
    writer = PieceWriter(place(tmp_path, is_time_in_file=True), WANTED)
    rows = rows_of(records(range(8)), RawValues(), "date").rows
    # The days of offsets: 0, 1, 0, 1, ...
    days = pa.array(["1970-01-01", "1970-01-02"] * 4)
    writer.add(rows.set_column(rows.num_columns - 1, "kafka_date", days))
    found = {file.time: file for file in writer.close()[0]}
    for time, offsets in (("1970-01-01", [0, 2, 4, 6]), ("1970-01-02", [1, 3, 5, 7])):
        read = pq.read_table(tmp_path / found[time].path, partitioning=None)
        assert read.column("kafka_offset").to_pylist() == offsets
        assert set(read.column("kafka_date").to_pylist()) == {time}


def test_files_of_attempts_never_meet(tmp_path: Path) -> None:
    paths = set()
    for _ in range(2):
        writer = PieceWriter(place(tmp_path), WANTED)
        add(writer, range(3))
        paths |= {file.path for file in writer.close()[0]}
    assert len(paths) == 2
    assert all((tmp_path / path).exists() for path in paths)


def test_more_times_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(staging, "HELD_BYTES_MAX", 600)
    writer = PieceWriter(place(tmp_path), WANTED)
    add(writer, range(10), DAY_US)
    add(writer, range(10), DAY_US)
    files = writer.close()[0]
    assert sum(file.rows for file in files) == 20
    assert len({file.time for file in files}) == 10
    read = [
        offset
        for file in files
        for offset in pq.read_table(tmp_path / file.path, partitioning=None)
        .column("kafka_offset")
        .to_pylist()
    ]
    assert sorted(read) == sorted([*range(10)] * 2)


def test_nothing_makes_no_file(tmp_path: Path) -> None:
    writer = PieceWriter(place(tmp_path / "staging"), WANTED)
    add(writer, range(0))
    writer.add_bad([])
    assert writer.close() == ([], "")
    assert not (tmp_path / "staging").exists()


def test_bad_records_come_back_as_they_were(tmp_path: Path) -> None:
    writer = PieceWriter(place(tmp_path), WANTED)
    listed = [
        BadRecord("orders", 0, 5, -1, "why", None, b"{", (("a", b"1"), ("a", None))),
        BadRecord("orders", 0, 6, 9 * 10**15, "é", b"k", None, ()),
    ]
    writer.add_bad(listed[:1])
    writer.add_bad(listed[1:])
    files, bad = writer.close()
    assert files == []
    assert [*read_bad(place(tmp_path), bad)] == listed


def test_nested_columns_are_written_with_the_others(tmp_path: Path) -> None:
    tags = "tags ARRAY<STRUCT<name: STRING>>"
    values = value_format(
        "json", schema=f"id BIGINT, {tags}, of MAP<STRING, INT>, at STRUCT<x: DOUBLE>"
    )
    value = b'{"id": 1, "tags": [{"name": "a"}], "of": {"k": 2}, "at": {"x": 0.5}}'
    writer = PieceWriter(place(tmp_path), WANTED)
    writer.add(rows_of(records(range(1), value=value), values, "date").rows)
    (file,) = writer.close()[0]
    (row,) = pq.read_table(tmp_path / file.path, partitioning=None).to_pylist()
    assert (row["id"], row["tags"], row["at"]) == (1, [{"name": "a"}], {"x": 0.5})
    assert row["of"] == [("k", 2)]
