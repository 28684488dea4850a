"""Changes are merged by key, each plan once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.delta_merge import DeltaMerge, MergeCounts

SCHEMA = pa.schema(
    [
        pa.field("kafka_key", pa.binary()),
        pa.field("kafka_partition", pa.int32()),
        pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("Some Value", pa.string()),
        pa.field("gone", pa.bool_()),
    ]
)


def _changes(*rows: tuple[bytes, int, int, str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "kafka_key": key,
                "kafka_partition": partition,
                "kafka_timestamp": time_us,
                "Some Value": value,
                "gone": value is None,
            }
            for key, partition, time_us, value in rows
        ],
        schema=schema,
    )


def _rows(folder: Path) -> dict[bytes, str]:
    found = DeltaTable(folder).to_pyarrow_table()
    assert "gone" not in found.column_names
    return dict(
        zip(*(found.column(i).to_pylist() for i in ("kafka_key", "Some Value")), strict=True)
    )


def test_rows_are_inserted_updated_and_deleted_by_key(tmp_path: Path) -> None:
    table = DeltaMerge(str(tmp_path / "t"), {})

    first = _changes((b"a", 0, 1, "1"), (b"b", 0, 1, "2"), (b"never", 0, 1, None))
    assert table.merge("job", 1, first, "gone", 1) == MergeCounts(2, 0, 0)
    second = _changes((b"a", 0, 0, None), (b"b", 0, 0, "3"), (b"c", 0, 2, "4"))
    assert table.merge("job", 2, second, "gone", 1) == MergeCounts(1, 1, 1)

    assert _rows(tmp_path / "t") == {b"b": "3", b"c": "4"}
    assert DeltaTable(tmp_path / "t").transaction_version("odradek.job") == 2


def test_a_plan_that_the_table_has_is_not_merged_again(tmp_path: Path) -> None:
    table = DeltaMerge(str(tmp_path / "t"), {})
    table.merge("job", 1, _changes((b"a", 0, 1, "1")), "gone", 1)
    table.merge("job", 2, _changes((b"a", 0, 1, "2")), "gone", 1)

    assert table.merge("job", 1, _changes((b"a", 0, 1, "1")), "gone", 1) == MergeCounts(0, 0, 0)
    assert _rows(tmp_path / "t") == {b"a": "2"}


def test_of_other_partitions_the_younger_change_wins(tmp_path: Path) -> None:
    table = DeltaMerge(str(tmp_path / "t"), {})
    table.merge("job", 1, _changes((b"a", 0, 10, "1"), (b"b", 0, 10, "1")), "gone", 1)
    table.merge("job", 2, _changes((b"a", 1, 9, "old"), (b"b", 1, 11, "new")), "gone", 1)

    assert _rows(tmp_path / "t") == {b"a": "1", b"b": "new"}


def test_new_columns_are_added(tmp_path: Path) -> None:
    table = DeltaMerge(str(tmp_path / "t"), {})
    table.merge("job", 1, _changes((b"a", 0, 1, "1")), "gone", 1)
    more = SCHEMA.append(pa.field("more", pa.int64()))
    table.merge("job", 2, _changes((b"b", 0, 1, "2"), schema=more), "gone", 1)

    assert DeltaTable(tmp_path / "t").to_pyarrow_table().column_names[-1] == "more"
    assert _rows(tmp_path / "t") == {b"a": "1", b"b": "2"}


def test_nothing_to_merge_makes_an_empty_table(tmp_path: Path) -> None:
    table = DeltaMerge(str(tmp_path / "t"), {})

    assert table.merge("job", 1, _changes(), "gone", 1) == MergeCounts(0, 0, 0)
    assert _rows(tmp_path / "t") == {}


def test_what_delta_refuses_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{no log}\n")

    with pytest.raises(PipelineError, match=r"Delta table .*t: ") as raised:
        DeltaMerge(str(tmp_path / "t"), {}).merge("job", 1, _changes(), "gone", 1)
    assert "\n" not in str(raised.value)
