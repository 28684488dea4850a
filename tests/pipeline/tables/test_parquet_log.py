"""Parquet's own part: which files count. What all formats promise is in test_target."""

from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan


def test_files_without_a_commit_are_not_read(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "orders"))
    table.claim(job())
    fill(table, plan(1, (0, 0, 3)))
    stray = next((tmp_path / "orders").rglob("*.parquet"))
    (stray.parent / "stray.parquet").write_bytes(stray.read_bytes())
    assert offsets_in(table) == [0, 1, 2]


def test_commits_are_read_once(tmp_path: Path) -> None:
    """They never change: a scan reads what has come since the last one."""
    table = open_table("parquet", str(tmp_path / "orders"))
    table.claim(job())
    for number in range(3):
        fill(table, plan(number + 1, (0, number, number + 1)))
    reader = open_table("", str(tmp_path / "orders"))
    assert offsets_in(reader) == [0, 1, 2]
    # Not what happens to commits: who reads them again sees it.
    commits = sorted((tmp_path / "orders" / "_odradek" / "commits").glob("*.json"))
    commits[0].write_text("{}")
    fill(table, plan(4, (0, 3, 4)))
    assert offsets_in(reader) == [0, 1, 2, 3]
    with pytest.raises(PipelineError, match="is no commit of a job"):
        offsets_in(open_table("", str(tmp_path / "orders")))
