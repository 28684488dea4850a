"""Which files become one, and that their rows stay what they are."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import HEADER_TYPE
from odradek.pipeline.tables import file_compaction
from odradek.pipeline.tables.file_compaction import (
    CompactionSource,
    compaction_groups,
    merge_files,
)
from odradek.pipeline.tables.table_folder import TableFolder

SCHEMA = pa.schema(
    [
        pa.field("kafka_offset", pa.int64()),
        pa.field("kafka_headers", pa.list_(HEADER_TYPE)),
        pa.field("name", pa.string()),
    ]
)


def _source(
    path: str, size: int, time: str = "", partition: int = 0, first: int = 0
) -> CompactionSource:
    return CompactionSource(path, time, ("orders", partition, first), 3, size)


def _names(groups: list[list[CompactionSource]]) -> list[str]:
    return ["".join(each.path for each in group) for group in groups]


def test_small_files_of_one_time_become_one_in_the_order_of_their_rows() -> None:
    files = [
        _source("d", 10, "2", first=5),
        _source("b", 10, "1", partition=1),
        _source("a", 10, "1", first=9),
        _source("c", 10, "2", first=1),
        _source("x", 10, "3"),
    ]
    assert _names(compaction_groups(files, 100)) == ["ab", "cd"]


def test_a_file_is_about_as_large_as_wanted() -> None:
    files = [_source(name, 40, first=ord(name)) for name in "abcdefg"]
    # Half of what is wanted is no small file any more.
    assert _names(compaction_groups([*files, _source("X", 50), _source("Y", 500)], 100)) == [
        "ab",
        "cd",
        "ef",
    ]


def test_what_was_compacted_is_left_alone_soon() -> None:
    random = Random(14)
    sizes = [random.randint(1, 70) for _ in range(500)]
    rounds = 0
    while groups := compaction_groups(
        [_source(str(index), size, first=index) for index, size in enumerate(sizes)], 100
    ):
        rounds += 1
        merged = {int(each.path) for group in groups for each in group}
        sizes = [size for index, size in enumerate(sizes) if index not in merged]
        sizes += [sum(each.bytes for each in group) for group in groups]
        assert all(size <= 100 for size in sizes)
    assert rounds <= 3
    assert sum(size < 50 for size in sizes) <= 1


@pytest.fixture
def folder(tmp_path: Path) -> TableFolder:
    """Offsets 0 to 2 without a name, and 3 to 5 with one."""
    headers = pa.array([None, [], [{"key": "a", "value": None}]], pa.list_(HEADER_TYPE))
    old = pa.table({"kafka_offset": [0, 1, 2], "kafka_headers": headers})
    new = pa.table({"kafka_offset": [3, 4, 5], "kafka_headers": headers, "name": ["x", None, "y"]})
    pq.write_table(old, tmp_path / "old.parquet")
    pq.write_table(new, tmp_path / "new.parquet")
    return TableFolder(str(tmp_path))


def test_rows_stay_what_they_are_and_columns_that_came_later_are_null(folder: TableFolder) -> None:
    sources = [_source("old.parquet", 1), _source("new.parquet", 1)]
    size = merge_files(folder, sources, "place/merged.parquet", SCHEMA)
    path = Path(folder.path_of("place/merged.parquet"))
    assert size == path.stat().st_size
    found = pq.ParquetFile(path).read()
    assert found.schema.equals(SCHEMA)
    assert found.column("kafka_offset").to_pylist() == [0, 1, 2, 3, 4, 5]
    assert (
        found.column("kafka_headers").to_pylist()
        == [
            None,
            [],
            [{"key": "a", "value": None}],
        ]
        * 2
    )
    assert found.column("name").to_pylist() == [None, None, None, "x", None, "y"]


def test_rows_are_written_by_row_groups(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_compaction, "ROW_GROUP_BYTES", 1)
    merge_files(folder, [_source("old.parquet", 1), _source("new.parquet", 1)], "merged", SCHEMA)
    metadata = pq.ParquetFile(folder.path_of("merged")).metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    bounds = [(each.column(0).statistics.min, each.column(0).statistics.max) for each in groups]
    assert bounds == [(0, 2), (3, 5)]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (CompactionSource("old.parquet", "", ("", 0, 0), 4, 1), "has 3 rows and should have 4"),
        (CompactionSource("none.parquet", "", ("", 0, 0), 3, 1), "none.parquet cannot be read"),
        (CompactionSource("cut.parquet", "", ("", 0, 0), 3, 1), "cut.parquet cannot be read"),
        (CompactionSource("new.parquet", "", ("", 0, 0), 3, 1), "a file has a column name"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_left(
    folder: TableFolder, source: CompactionSource, complaint: str
) -> None:
    old = Path(folder.path_of("old.parquet")).read_bytes()
    Path(folder.path_of("cut.parquet")).write_bytes(old[:-20])
    with pytest.raises(PipelineError, match=complaint):
        merge_files(folder, [_source("old.parquet", 1), source], "merged", SCHEMA.remove(2))
    assert not folder.exists("merged")
