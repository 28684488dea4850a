"""Files of a table from commits, compactions and checkpoints, and what a crash leaves of them."""

import json
from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.file_log import COMPACTED, FileLog, FileReplacement
from odradek.pipeline.tables.job_folder import JobFolder
from odradek.pipeline.tables.job_plan import DataFile
from odradek.pipeline.tables.table_folder import TableFolder
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.value_format import value_format
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan, run_tasks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three plans, each a file."""
    table = _claimed(tmp_path / "orders")
    for number in (1, 2, 3):
        fill(table, plan(number, (0, 5 * number, 5 * number + 5)))
    table.close()
    return tmp_path / "orders"


def _claimed(folder: Path) -> TableTarget:
    table = open_table("parquet", str(folder))
    table.claim(job(time_partition="none"))
    return table


def _log(folder: Path) -> FileLog:
    return FileLog(JobFolder(TableFolder(str(folder))))


def _paths(log: FileLog) -> list[str]:
    return [each.path for each in log.files()]


def _stage(folder: Path, name: str, source: str) -> DataFile:
    """A file that a compaction has written: here the copy of another."""
    staged = folder / COMPACTED / name
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes((folder / source).read_bytes())
    return DataFile(name, "", "orders", 0, 5, 9, 5, 1)


def test_a_file_takes_the_place_of_others(folder: Path) -> None:
    log, other = _log(folder), _log(folder)
    first, second, third = _paths(other)
    added = _stage(folder, "large.parquet", first)
    log.replace([first, second], [added, added])
    assert _paths(log) == _paths(other) == _paths(_log(folder))
    assert _paths(log) == [third, "large.parquet", "large.parquet"]
    assert sorted(path.name for path in folder.glob("*.parquet")) == sorted(
        [third, "large.parquet"]
    )
    assert log.unfolded() == (3, 1)


def test_a_checkpoint_stands_for_commits_and_compactions(folder: Path) -> None:
    log, other = _log(folder), _log(folder)
    first, second, third = _paths(other)
    log.replace([second], [_stage(folder, "large.parquet", first)])
    assert log.fold() == 2
    assert (log.unfolded(), log.fold()) == ((0, 0), 0)
    expected = [first, third, "large.parquet"]
    assert _paths(log) == _paths(other) == _paths(_log(folder)) == expected
    left = sorted(
        str(path.relative_to(folder / "_odradek"))
        for name in ("commits", "plans", "compactions", "checkpoints")
        for path in (folder / "_odradek" / name).glob("*")
    )
    # And the job goes on after the newest commit.
    assert left == [
        f"{name}.json"
        for name in ("checkpoints/0000000002", "commits/0000000003", "plans/0000000003")
    ]
    table = _claimed(folder)
    assert table.last_commit() is not None
    fill(table, plan(4, (0, 20, 25)))
    assert len(_paths(other)) == len(_paths(_log(folder))) == 4
    assert other.unfolded() == _log(folder).unfolded() == (1, 0)
    log.replace([first], [_stage(folder, "larger.parquet", third)])
    assert sorted(_paths(log)) == sorted(_paths(other))
    assert other.unfolded() == (1, 1)


def test_commits_before_a_change_of_columns_stay(tmp_path: Path) -> None:
    table = open_table("parquet", str(tmp_path / "orders"))
    table.claim(job())
    for number, schema in enumerate(("id BIGINT",) * 3 + ("id BIGINT, name STRING",) * 3, 1):
        each = plan(number, (0, number, number + 1))
        table.prepare(each)
        values = value_format("json", schema=schema)
        table.commit(each, run_tasks(table, each, values, b'{"id": %d}'))
    files = JobFolder(TableFolder(str(tmp_path / "orders")))
    FileLog(files).fold()
    assert files.commit_numbers() == [3, 6]
    assert offsets_in(open_table("", str(tmp_path / "orders"))) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("done", ["prepared", "moved", "told", "half deleted", "deleted"])
def test_an_interrupted_compaction_is_rolled_forward(folder: Path, done: str) -> None:
    """What a killed process leaves behind, one after the other."""
    first, second, third = _paths(_log(folder))
    record = FileReplacement(1, (first, second), (_stage(folder, "large.parquet", first),))
    compactions = folder / "_odradek" / "compactions"
    compactions.mkdir()
    (compactions / "0000000001.json.prepared").write_text(record.to_json())
    if done != "prepared":
        (folder / COMPACTED / "large.parquet").rename(folder / "large.parquet")
    if done not in ("prepared", "moved"):
        (compactions / "0000000001.json").write_text(record.to_json())
    if done in ("half deleted", "deleted"):
        (folder / first).unlink()
    if done == "deleted":
        (folder / second).unlink()
    known = [first, second, third] if done in ("prepared", "moved") else [third, "large.parquet"]
    assert _paths(_log(folder)) == known

    table = _claimed(folder)
    assert [each.path for each in table.files()] == [third, "large.parquet"]
    assert sorted(path.name for path in folder.glob("*.parquet")) == sorted(
        [third, "large.parquet"]
    )
    assert [path.name for path in compactions.iterdir()] == ["0000000001.json"]
    fill(table, plan(4, (0, 20, 25)))


def test_a_compaction_whose_file_is_lost_is_rolled_back(folder: Path) -> None:
    paths = _paths(_log(folder))
    added = _stage(folder, "large.parquet", paths[0])
    record = FileReplacement(1, tuple(paths), (added,))
    prepared = folder / "_odradek" / "compactions" / "0000000001.json.prepared"
    prepared.parent.mkdir()
    prepared.write_text(record.to_json())
    (folder / COMPACTED / "large.parquet").unlink()

    assert [each.path for each in _claimed(folder).files()] == paths
    assert sorted(path.name for path in folder.glob("*.parquet")) == sorted(paths)
    assert not prepared.exists()
    log = _log(folder)
    with pytest.raises(PipelineError, match="staging was emptied while `maintain` ran"):
        log.replace(paths, [added])
    assert _paths(log) == paths


def test_a_lost_commit_is_told(folder: Path) -> None:
    (folder / "_odradek" / "commits" / "0000000002.json").unlink()
    with pytest.raises(PipelineError, match="has lost files of _odradek/commits"):
        _log(folder).files()


def test_what_is_no_record_of_ours_is_named(folder: Path) -> None:
    for place, found, complaint in (
        ("compactions", {"number": 1, "removed": []}, "0000000001.json is no compaction"),
        ("checkpoints", {"commit": 1, "files": []}, "0000000001.json is no checkpoint"),
        ("checkpoints", [], "0000000001.json is no JSON object"),
    ):
        path = folder / "_odradek" / place / "0000000001.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found))
        with pytest.raises(PipelineError, match=complaint):
            _log(folder).files()
