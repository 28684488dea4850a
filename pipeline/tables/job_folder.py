"""`_odradek/` in a table's folder: the job, its plans and its commits, and the lock of its writer.

    job.json                 what may never change (TableJob)
    lock                     held by the process that writes
    plans/N.json             written before anything of plan N runs
    staging/N/               where tasks write
    commits/N.json.prepared  all files of plan N are written: from here on it will be committed
    commits/N.json           plan N is committed

A table of Parquet files has compactions and checkpoints, too (file_log.py).

A plan whose commit is prepared is rolled forward: publishing its files again does nothing, in all
formats. Readers of tables leave names with `_` in front alone.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_plan import JobCommit, JobPlan, TableJob
from odradek.pipeline.tables.table_folder import TableFolder

FOLDER: Final = "_odradek"
STAGING: Final = f"{FOLDER}/staging"
_JOB: Final = f"{FOLDER}/job.json"
_PREPARED: Final = ".json.prepared"


class JobFolder:
    """The job's own files in a table's folder. One writer: `lock` before anything is written."""

    def __init__(self, folder: TableFolder) -> None:
        self.folder = folder
        self._lock: int | None = None

    def job(self) -> TableJob | None:
        """None before the first `write_job`."""
        text = self.folder.read_text(_JOB)
        if text is None:
            return None
        try:
            found = json.loads(text)
            return TableJob(**found | {"topics": tuple(found["topics"])})
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{self.folder.path_of(_JOB)} is no description of a job: {error!r}"
            ) from error

    def check_free(self) -> None:
        """PipelineError if the folder has files of others."""
        strangers = [name for name in self.folder.names() if name != FOLDER]
        if strangers:
            raise PipelineError(
                f"{self.folder.location} has files ({strangers[0]}) and is no table of a job:"
                " choose an empty folder"
            )

    def write_job(self, job: TableJob) -> None:
        """Once."""
        self.folder.write_text(_JOB, json.dumps(asdict(job), indent=1))

    def lock(self) -> None:
        """Until `unlock` or the end of the process; PipelineError if another process has it.

        Only local folders can be locked. Elsewhere two writers are told apart by the transactions
        of the job's dead letters, which fence the older one.
        """
        if not self.folder.is_local or self._lock is not None:
            return
        path = self.folder.path_of(f"{FOLDER}/lock")
        self.folder.filesystem.create_dir(self.folder.path_of(FOLDER), recursive=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise PipelineError(
                f"table {self.folder.location} is being written by process {owner or '?'}:"
                " one job at a time"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def last_number(self) -> int:
        """Of the newest commit; 0 without one."""
        return max(self.numbers("commits", ".json"), default=0)

    def commit_numbers(self) -> list[int]:
        """Of the commits that are there, sorted: a checkpoint may stand for older ones."""
        return sorted(self.numbers("commits", ".json"))

    def read_commit(self, number: int) -> tuple[JobCommit, pa.Schema]:
        """A commit and the schema that the table had after it."""
        return self._read_commit(number, ".json")

    def find_commit(self, number: int) -> tuple[JobCommit, pa.Schema] | None:
        """As `read_commit`; None if it is not there."""
        name = f"{FOLDER}/commits/{file_of(number)}.json"
        text = self.folder.read_text(name)
        return None if text is None else JobCommit.from_json(text, self.folder.path_of(name))

    def delete_commits(self, numbers: Iterable[int]) -> None:
        """And their plans."""
        names = [f"{file_of(number)}.json" for number in numbers]
        for place in ("commits", "plans"):
            self.folder.delete_files(f"{FOLDER}/{place}/{name}" for name in names)

    def numbers(self, place: str, ending: str) -> list[int]:
        """Of the files of a folder below FOLDER, in any order."""
        return [
            int(digits)
            for name in self.folder.names(f"{FOLDER}/{place}")
            if name.endswith(ending) and (digits := name.removesuffix(ending)).isdecimal()
        ]

    def read_plan(self, number: int) -> JobPlan | None:
        """None if it was not prepared."""
        name = f"{FOLDER}/plans/{file_of(number)}.json"
        text = self.folder.read_text(name)
        return None if text is None else JobPlan.from_json(text, self.folder.path_of(name))

    def write_plan(self, plan: JobPlan) -> None:
        """Durably, with an empty staging folder."""
        self.empty_staging()
        self.folder.write_text(f"{FOLDER}/plans/{file_of(plan.number)}.json", plan.to_json())

    def empty_staging(self) -> None:
        """Of all plans."""
        self.folder.delete_folder(STAGING)

    def prepared_commit(self) -> tuple[JobCommit, pa.Schema] | None:
        """The commit that is to be rolled forward."""
        found = sorted(self.numbers("commits", _PREPARED))
        return self._read_commit(found[-1], _PREPARED) if found else None

    def write_prepared(self, commit: JobCommit, schema: pa.Schema) -> None:
        """From here on the plan will be committed: its files must not be deleted any more."""
        name = f"{FOLDER}/commits/{file_of(commit.number)}{_PREPARED}"
        self.folder.write_text(name, commit.to_json(schema))

    def finish_commit(self, commit: JobCommit) -> None:
        """After it was published."""
        name = f"{FOLDER}/commits/{file_of(commit.number)}"
        self.folder.move([(f"{name}{_PREPARED}", f"{name}.json")])

    def _read_commit(self, number: int, ending: str) -> tuple[JobCommit, pa.Schema]:
        name = f"{FOLDER}/commits/{file_of(number)}{ending}"
        return JobCommit.from_json(self.folder.read_text(name) or "", self.folder.path_of(name))


def staging_name(number: int) -> str:
    """The staging folder of a plan, below the table's folder."""
    return f"{STAGING}/{file_of(number)}"


def file_of(number: int) -> str:
    """So that names sort as numbers do."""
    return f"{number:010d}"
