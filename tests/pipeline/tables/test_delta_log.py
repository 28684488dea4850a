"""Delta's own part: versions name their plans. What all formats promise is in test_target."""

import json
from pathlib import Path

import deltalake.fs
import pytest
from deltalake import DeltaTable

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan, run_tasks


def test_a_version_names_its_plan_and_lets_readers_skip_files(tmp_path: Path) -> None:
    table = open_table("delta", str(tmp_path / "orders"))
    table.claim(job("delta"))
    fill(table, plan(1, (0, 0, 6)))
    found = DeltaTable(tmp_path / "orders")
    assert found.transaction_version("odradek.archive") == 1
    assert found.metadata().partition_columns == ["kafka_date"]
    newest = found.history(1)[0]
    assert (newest["job"], newest["plan"]) == ("archive", "1")
    statistics = [
        json.loads(line)["add"]["stats"]
        for log in (tmp_path / "orders" / "_delta_log").glob("*.json")
        for line in log.read_text().splitlines()
        if "add" in json.loads(line)
    ]
    offsets = [json.loads(each)["maxValues"]["kafka_offset"] for each in statistics]
    assert sorted(offsets) == [3, 5]


def test_what_delta_refuses_is_one_line(tmp_path: Path) -> None:
    table = open_table("delta", str(tmp_path / "orders"))
    table.claim(job("delta"))
    first = plan(1, (0, 0, 6))
    table.prepare(first)
    result = run_tasks(table, first)
    log = tmp_path / "orders" / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("{no log}\n")
    with pytest.raises(PipelineError, match=r"Delta table .*orders: ") as raised:
        table.commit(first, result)
    assert "\n" not in str(raised.value)


def test_rows_are_read_without_python_in_the_threads_of_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that asks for Python while it exits aborts the process: `verify` once in thirty."""
    table = open_table("delta", str(tmp_path / "orders"))
    table.claim(job("delta"))
    fill(table, plan(1, (0, 0, 6)))
    monkeypatch.delattr(deltalake.fs.DeltaStorageHandler, "open_input_file")
    assert offsets_in(table) == [0, 1, 2, 3, 4, 5]
