"""`odradek pipe maintain` on a Delta table."""

from pathlib import Path

from click.testing import CliRunner, Result

from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, plan


def _maintain(*arguments: str) -> Result:
    return CliRunner().invoke(pipe, ["maintain", *arguments])


def test_what_was_done_is_told(tmp_path: Path) -> None:
    table = open_table("delta", str(tmp_path / "orders"))
    table.claim(job("delta"))
    for number in (1, 2, 3):
        fill(table, plan(number, (0, 6 * (number - 1), 6 * number)))
    table.close()

    result = _maintain(str(tmp_path / "orders"), "--dry-run")
    assert (result.exit_code, result.output) == (0, "nothing to do\n")
    result = _maintain(str(tmp_path / "orders"), "--keep", "12h", "--target-size", "1M")
    assert result.exit_code == 0
    assert "files compacted to" in result.output
    assert _maintain(str(tmp_path / "orders")).output == "nothing to do\n"


def test_a_folder_of_parquet_files_is_compacted(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "orders"))
    table.claim(job("parquet", "none"))
    for number in (1, 2, 3):
        fill(table, plan(number, (0, 6 * (number - 1), 6 * number)))
    refused = _maintain(str(tmp_path / "orders"))
    assert (refused.exit_code, "is being written by process" in refused.output) == (1, True)
    table.close()

    result = _maintain(str(tmp_path / "orders"), "--dry-run")
    assert (result.exit_code, result.output) == (0, "3 files would be compacted to 1\n")
    result = _maintain(str(tmp_path / "orders"))
    assert result.output.splitlines() == [
        "3 files compacted to 1",
        "2 commits of the job folded into a checkpoint",
    ]
    assert result.exit_code == 0
    assert _maintain(str(tmp_path / "orders")).output == "nothing to do\n"


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    result = _maintain(str(tmp_path), "--keep", "soon")
    assert (result.exit_code, "soon is no age: write 12h or 7d" in result.output) == (2, True)
    result = _maintain(str(tmp_path), "--target-size", "much")
    assert (result.exit_code, "target-size is 'much'" in result.output) == (2, True)
    result = _maintain(str(tmp_path), "--keep", "0h")
    assert (result.exit_code, "less than an hour" in result.output) == (1, True)
