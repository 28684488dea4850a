"""The job's own files: plans, prepared commits and commits by number."""

from pathlib import Path

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_folder import JobFolder, staging_name
from odradek.pipeline.tables.job_plan import PlanResult, commit_of
from odradek.pipeline.tables.table_folder import TableFolder
from tests.pipeline.tables.table_samples import job, plan

SCHEMA = pa.schema([pa.field("kafka_offset", pa.int64())])


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(TableFolder(str(tmp_path / "orders")))


def test_the_job_is_written_once_and_read_again(folder: JobFolder) -> None:
    assert folder.job() is None
    folder.check_free()
    folder.write_job(job())
    assert folder.job() == job()


def test_commits_are_in_order_of_their_numbers(folder: JobFolder) -> None:
    assert folder.last_number() == 0
    for number in (1, 2, 10, 11):
        result = PlanResult((), bad=number, committed_ms=1, schema=SCHEMA)
        made = commit_of(plan(number, (0, 0, number)), result, None)
        folder.write_prepared(made, SCHEMA)
        assert folder.prepared_commit() == (made, SCHEMA)
        assert folder.last_number() < number
        folder.finish_commit(made)
        folder.finish_commit(made)
    assert folder.prepared_commit() is None
    assert folder.last_number() == 11
    assert folder.commit_numbers() == [1, 2, 10, 11]
    assert folder.read_commit(10)[0].bad == 10
    assert folder.find_commit(10) == folder.read_commit(10)


def test_deleted_commits_and_their_plans_are_gone(folder: JobFolder) -> None:
    for number in (1, 2, 3):
        folder.write_plan(plan(number, (0, 0, number)))
        result = PlanResult((), bad=0, committed_ms=1, schema=SCHEMA)
        made = commit_of(plan(number, (0, 0, number)), result, None)
        folder.write_prepared(made, SCHEMA)
        folder.finish_commit(made)
    folder.delete_commits([1, 2])
    folder.delete_commits([1])
    assert folder.commit_numbers() == [3] == folder.numbers("plans", ".json")
    assert folder.find_commit(2) is None
    assert folder.read_plan(2) is None


def test_a_plan_empties_staging(folder: JobFolder) -> None:
    folder.folder.write_text(f"{staging_name(1)}/left-over", "x")
    folder.write_plan(plan(1, (0, 0, 9)))
    assert not folder.folder.exists(staging_name(1))
    assert folder.read_plan(1) == plan(1, (0, 0, 9))
    assert folder.read_plan(2) is None


def test_the_lock_is_free_again_after_unlock(folder: JobFolder) -> None:
    folder.lock()
    folder.lock()
    other = JobFolder(TableFolder(folder.folder.location))
    with pytest.raises(PipelineError, match="one job at a time"):
        other.lock()
    folder.unlock()
    other.lock()
    other.unlock()


def test_strangers_are_named(folder: JobFolder) -> None:
    folder.folder.write_text("photo.jpg", "")
    with pytest.raises(PipelineError, match=r"has files \(photo.jpg\)"):
        folder.check_free()
