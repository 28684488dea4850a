"""A table takes each plan once, whatever happens at whatever point: Parquet, Delta and Iceberg."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.tables.file_log import FileLog
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import PlanResult, commit_of
from odradek.pipeline.tables.parquet_log import move_into_place
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.target import FORMATS, TableTarget, open_log, open_table
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan, run_tasks

pytestmark = pytest.mark.filterwarnings(
    # pyiceberg's of its own dependencies; not ours to change.
    "ignore::DeprecationWarning:pyiceberg.*",
    "ignore:.*:ResourceWarning",
)


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def claimed(kind: str, folder: Path, time_partition: str = "date") -> TableTarget:
    table = open_table(kind, str(folder))
    table.claim(job(kind, time_partition))
    return table


def read_by_others(kind: str, folder: Path) -> list[int]:
    """Offsets as somebody reads them who knows nothing of jobs."""
    if kind == "parquet":
        found = ds.dataset(folder, partitioning="hive").to_table(columns=["kafka_offset"])
    elif kind == "delta":
        found = DeltaTable(folder).to_pyarrow_table(columns=["kafka_offset"])
    else:
        catalog = load_catalog("odradek", type="sql", uri=f"sqlite:///{folder}/catalog.db")
        found = catalog.load_table(("odradek", "archive")).scan().to_arrow()
    return sorted(found.column("kafka_offset").to_pylist())


def test_plans_follow_each_other_and_others_read_the_rows(kind: str, tmp_path: Path) -> None:
    with_table = claimed(kind, tmp_path / "orders")
    assert with_table.last_commit() is None
    assert with_table.pending() is None
    assert offsets_in(with_table) == []
    fill(with_table, plan(1, (0, 0, 10), (1, 100, 103)))
    fill(with_table, plan(2, (0, 10, 15)))
    with_table.close()
    found = open_table("", str(tmp_path / "orders"))
    last = found.last_commit()
    assert last is not None
    assert (last.number, last.rows, last.bad) == (2, 5, 0)
    assert last.topics["orders"].starts == {0: 0, 1: 100}
    assert last.topics["orders"].ends == {0: 15, 1: 103}
    assert sum(each.rows for each in found.files()) == 18
    expected = [*range(15), 100, 101, 102]
    assert offsets_in(found) == expected
    assert read_by_others(kind, tmp_path / "orders") == expected
    assert offsets_in(found, PartitionRange("orders", "", 0, 8, 12)) == [8, 9, 10, 11]
    assert offsets_in(found, PartitionRange("orders", "", 1, 0, 50)) == []
    assert offsets_in(found, PartitionRange("bills", "", 0, 0, 50)) == []


@pytest.mark.parametrize("time_partition", ["date", "hour", "none"])
def test_all_columns_come_back(kind: str, time_partition: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders", time_partition)
    fill(table, plan(1, (0, 3, 6)))
    schema = table.schema()
    assert schema is not None
    rows = pa.Table.from_batches(table.scan()).sort_by("kafka_offset")
    assert rows.schema.names == schema.names
    first = rows.to_pylist()[0]
    assert first["kafka_topic"] == "orders"
    assert first["kafka_key"] == b"key-3"
    assert first["kafka_value"] == b"value-3"
    assert first["kafka_headers"] == []
    times = {"date": ["1970-01-01", "1970-01-02"], "hour": ["1970-01-01-18", "1970-01-02-00"]}
    column = {"date": "kafka_date", "hour": "kafka_hour"}.get(time_partition)
    if column is not None:
        assert [row[column] for row in rows.to_pylist()][:2] == times[time_partition]


def test_a_prepared_plan_is_pending_until_it_is_committed(kind: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders")
    first = plan(1, (0, 0, 4))
    table.prepare(first)
    run_tasks(table, first)
    table.close()
    # As after a crash in the middle of a task.
    again = claimed(kind, tmp_path / "orders")
    assert again.pending() == first
    again.prepare(first)
    again.commit(first, run_tasks(again, first))
    assert again.pending() is None
    assert offsets_in(again) == [0, 1, 2, 3]
    assert not (tmp_path / "orders" / "_odradek" / "staging").exists()


def test_committing_twice_does_nothing(kind: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders")
    first = plan(1, (0, 0, 4))
    table.prepare(first)
    result = run_tasks(table, first)
    assert table.commit(first, result) == table.commit(first, result)
    assert read_by_others(kind, tmp_path / "orders") == [0, 1, 2, 3]
    with pytest.raises(PipelineError, match="plan 1 does not follow 1"):
        table.prepare(first)


@pytest.mark.parametrize("point", ["prepared", "half moved", "moved", "published"])
def test_a_crash_within_a_commit_is_rolled_forward(kind: str, point: str, tmp_path: Path) -> None:
    """The states that a killed process leaves behind, one after the other."""
    table = claimed(kind, tmp_path / "orders")
    fill(table, plan(1, (0, 0, 8)))
    second = plan(2, (0, 8, 16))
    table.prepare(second)
    result = run_tasks(table, second)
    schema = table.schema()
    assert schema is not None
    made = commit_of(second, result, table.last_commit())
    assert len(made.files) > 1
    files = JobFolder(TableFolder(str(tmp_path / "orders")))
    files.write_prepared(made, schema)
    if point == "half moved":
        staging = tmp_path / "orders" / "_odradek" / "staging" / "0000000002"
        target = tmp_path / "orders" / made.files[0].path
        target.parent.mkdir(exist_ok=True)
        (staging / made.files[0].path).rename(target)
    elif point == "moved":
        move_into_place(files.folder, made)
    elif point == "published":
        open_log(kind, files, FileLog(files), {}).publish(job(kind), made, schema)
    table.close()
    # A reader sees the first plan; the job goes on.
    reader = open_table("", str(tmp_path / "orders"))
    last = reader.last_commit()
    assert last is not None
    assert last.number == 1
    again = claimed(kind, tmp_path / "orders")
    assert again.last_commit() == made
    assert again.pending() is None
    assert read_by_others(kind, tmp_path / "orders") == [*range(16)]
    again.close()
    assert claimed(kind, tmp_path / "orders").last_commit() == made
    assert read_by_others(kind, tmp_path / "orders") == [*range(16)]


def test_a_plan_without_rows_is_committed(kind: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders")
    fill(table, plan(1, (0, 0, 2)))
    nothing = run_tasks(table, plan(2, (0, 2, 2)))
    second = plan(2, (0, 2, 9))
    table.prepare(second)
    made = table.commit(second, PlanResult((), bad=7, committed_ms=1, schema=nothing.schema))
    assert (made.rows, made.bad, made.topics["orders"].ends) == (0, 7, {0: 9})
    fill(table, plan(3, (0, 9, 10)))
    assert offsets_in(table) == [0, 1, 9]


def test_added_fields_become_columns_that_older_rows_have_as_null(
    kind: str, tmp_path: Path
) -> None:
    table = claimed(kind, tmp_path / "orders")
    first, second = plan(1, (0, 0, 2)), plan(2, (0, 2, 4))
    text = b'{"id": %d, "name": "x", "at": "2026-11-23T12:00:00Z"}'
    for each, schema in (
        (first, "id BIGINT"),
        (second, "id BIGINT, name STRING, at TIMESTAMP"),
    ):
        values = value_format("json", schema=schema)
        table.prepare(each)
        table.commit(each, run_tasks(table, each, values, text))
    # And a schema that lacks a field leaves it null.
    third = plan(3, (0, 4, 5))
    table.prepare(third)
    table.commit(third, run_tasks(table, third, value_format("json", schema="id BIGINT"), text))
    rows = pa.Table.from_batches(table.scan(["kafka_offset", "id", "name", "kafka_date"]))
    found = {row["kafka_offset"]: row for row in rows.to_pylist()}
    assert [found[offset]["id"] for offset in range(5)] == [0, 1, 2, 3, 4]
    assert [found[offset]["name"] for offset in range(5)] == [None, None, "x", "x", None]
    assert found[4]["kafka_date"] == "1970-01-02"
    assert read_by_others(kind, tmp_path / "orders") == [0, 1, 2, 3, 4]


def test_a_field_of_another_type_is_refused(kind: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders")
    first, second = plan(1, (0, 0, 2)), plan(2, (0, 2, 4))
    table.prepare(first)
    values = value_format("json", schema="id BIGINT")
    table.commit(first, run_tasks(table, first, values, b'{"id": 1}'))
    table.prepare(second)
    result = run_tasks(table, second, value_format("json", schema="id STRING"), b'{"id": "a"}')
    with pytest.raises(PipelineError, match="column id is int64 in the table and string"):
        table.check_schema(result.schema)
    with pytest.raises(PipelineError, match="column id is int64 in the table and string"):
        table.commit(second, result)
    assert offsets_in(table) == [0, 1]


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    table = claimed("parquet", tmp_path / "orders")
    code = (
        "import sys; from odradek.pipeline.tables.target import open_table;"
        "from tests.pipeline.tables.table_samples import job;"
        "open_table('parquet', sys.argv[1]).claim(job())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "orders")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"is being written by process {os.getpid()}" in ran.stderr
    table.close()
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "other"}, "made with name archive and not other"),
        ({"topics": ("bills",)}, "made with topics orders and not bills"),
        ({"value_format": "json"}, "made with value.format raw and not json"),
        ({"time_partition": "hour"}, "made with time.partition date and not hour"),
    ],
)
def test_a_table_stays_with_its_job(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    claimed("parquet", tmp_path / "orders").close()
    other = type(job())(**{name: getattr(job(), name) for name in job().__slots__} | change)
    with pytest.raises(PipelineError, match=complaint):
        open_table("parquet", str(tmp_path / "orders")).claim(other)
    with pytest.raises(PipelineError, match="made with format parquet and not delta"):
        open_table("delta", str(tmp_path / "orders"))


def test_a_folder_of_others_is_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(PipelineError, match=r"has files \(photo.jpg\) and is no table of a job"):
        claimed(kind, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no table of a job"):
        open_table("", str(tmp_path))
    with pytest.raises(PipelineError, match="format is 'orc'"):
        open_table("orc", str(tmp_path))
    with pytest.raises(PipelineError, match="table gopher://x"):
        open_table("parquet", "gopher://x")
    claimed("parquet", tmp_path / "orders")
    (tmp_path / "orders" / "_odradek" / "job.json").write_text(json.dumps({"name": 1}))
    with pytest.raises(PipelineError, match="is no description of a job"):
        open_table("", str(tmp_path / "orders"))


def test_a_file_that_is_not_here_is_named_and_the_plan_can_run_again(
    kind: str, tmp_path: Path
) -> None:
    """A task has written it into a folder of its machine, or somebody has deleted it."""
    table = claimed(kind, tmp_path / "orders")
    first = plan(1, (0, 0, 2))
    table.prepare(first)
    result = run_tasks(table, first)
    path = tmp_path / "orders" / "_odradek" / "staging" / "0000000001" / result.files[0].path
    path.unlink()
    with pytest.raises(PipelineError, match=r"needs a folder that all of Spark's machines share"):
        table.commit(first, result)
    table.close()
    again = claimed(kind, tmp_path / "orders")
    assert again.last_commit() is None
    assert again.pending() == first
    again.prepare(first)
    again.commit(first, run_tasks(again, first))
    assert offsets_in(again) == [0, 1]


def test_a_file_that_is_lost_within_a_commit_is_named(kind: str, tmp_path: Path) -> None:
    table = claimed(kind, tmp_path / "orders")
    first = plan(1, (0, 0, 2))
    table.prepare(first)
    result = run_tasks(table, first)
    files = JobFolder(TableFolder(str(tmp_path / "orders")))
    files.write_prepared(commit_of(first, result, None), result.schema)
    table.close()
    path = tmp_path / "orders" / "_odradek" / "staging" / "0000000001" / result.files[0].path
    path.unlink()
    with pytest.raises(PipelineError, match=r"is lost, and the table needs it"):
        claimed(kind, tmp_path / "orders")
    assert open_table("", str(tmp_path / "orders")).last_commit() is None


def test_errors_of_the_disk_keep_their_number(tmp_path: Path) -> None:
    """A full disk, or here a folder that is a file, is an OSError until a job tells people."""
    (tmp_path / "orders").write_text("")
    with pytest.raises(OSError, match="orders") as raised:
        claimed("parquet", tmp_path / "orders")
    assert raised.value.errno in (errno.ENOTDIR, errno.EEXIST)
