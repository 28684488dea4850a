"""Which data files a table of Parquet files has: its commits, and what compactions made of them.

    commits/N.json               files that plan N added
    compactions/M.json.prepared  a larger file is in staging: it will take the place of smaller ones
    compactions/M.json           it has taken it, for whoever reads this log
    checkpoints/K.json           all files after commit N and compaction M, which it names

A compaction that is prepared is rolled forward: the larger file is renamed into place, the log says
so, the smaller files are deleted, and then the preparation. Each step may be done again. Those who
list the folder see its rows twice between the rename and the deletion, and nobody ever misses them.

Readers take no lock. They read commits after compactions, and begin again if a checkpoint came
meanwhile: commits that a checkpoint stands for are deleted.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.job_folder import FOLDER, STAGING, JobFolder, file_of
from odradek.pipeline.tables.job_plan import DataFile, json_object

COMPACTED: Final = f"{STAGING}/compaction"
"""Where a compaction writes: below it, files are named as they will be below the table's folder."""
_COMPACTIONS: Final = "compactions"
_CHECKPOINTS: Final = "checkpoints"
_DONE: Final = ".json"
_PREPARED: Final = ".json.prepared"


@dataclass(frozen=True, slots=True)
class FileReplacement:
    """One compaction: a file with the rows of others."""

    number: int
    """Begins with 1, in an order of its own."""
    removed: tuple[str, ...]
    """Paths, as `DataFile.path`."""
    added: tuple[DataFile, ...]
    """The rows of each Kafka partition in the new file: all have the same path."""

    def to_json(self) -> str:
        """As it is kept in the table's folder."""
        found = {"number": self.number, "removed": self.removed, "added": _listed(self.added)}
        return json.dumps(found, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str) -> "FileReplacement":
        """PipelineError, which names the file, if that is no compaction."""
        found = json_object(text, where)
        try:
            added = tuple(DataFile(**each) for each in found["added"])
            return cls(int(found["number"]), tuple(found["removed"]), added)
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineError(f"{where} is no compaction of a table: {error!r}") from error


class FileLog:
    """The files of a table. It remembers what it has read, and reads what came since."""

    def __init__(self, files: JobFolder) -> None:
        self._files = files
        self._folder = files.folder
        self._checkpoint = 0
        self._folded = (0, 0)
        self._commit = 0
        self._compaction = 0
        self._by_path: dict[str, list[DataFile]] = {}

    def files(self) -> list[DataFile]:
        """All files, in any order; a path stands there once for each Kafka partition in it.

        PipelineError if a commit is lost.
        """
        while not self._catch_up():
            pass
        return [each for entries in self._by_path.values() for each in entries]

    def replace(self, removed: Sequence[str], added: Sequence[DataFile]) -> None:
        """Let a file below COMPACTED, which is durable, take the place of others."""
        if not self._commit:
            self.files()
        record = FileReplacement(self._compaction + 1, tuple(removed), tuple(added))
        name = f"{FOLDER}/{_COMPACTIONS}/{file_of(record.number)}{_PREPARED}"
        self._folder.write_text(name, record.to_json())
        if not self._finish(record.number):
            raise PipelineError(
                f"table {self._folder.location}: staging was emptied while `maintain` ran: the job"
                " must not run meanwhile"
            )
        self._apply(record)

    def finish_prepared(self) -> None:
        """Roll forward what a crash interrupted. Only the process that has the lock may call it."""
        for number in self._files.numbers(_COMPACTIONS, _PREPARED):
            self._finish(number)

    def unfolded(self) -> tuple[int, int]:
        """The number of commits and of compactions that no checkpoint stands for."""
        self.files()
        return self._commit - self._folded[0], self._compaction - self._folded[1]

    def fold(self) -> int:
        """Write a checkpoint, and delete the commits and plans that it stands for: their number.

        The newest commit stays, and those before a change of the columns: `verify` asks since when
        a column is there.
        """
        files = self.files()
        commits = [
            (number, *self._files.read_commit(number)) for number in self._files.commit_numbers()
        ]
        old = [
            number
            for (number, _, schema), (_, _, following) in pairwise(commits)
            if schema.names == following.names and number <= self._commit
        ]
        before, self._checkpoint = self._checkpoint, self._checkpoint + 1
        self._folded = (self._commit, self._compaction)
        found = {
            "commit": self._commit,
            "compaction": self._compaction,
            "files": _listed(files),
        }
        self._folder.write_text(_checkpoint_name(self._checkpoint), json.dumps(found))
        self._files.delete_commits(old)
        compactions = f"{FOLDER}/{_COMPACTIONS}"
        self._folder.delete_files(
            f"{compactions}/{file_of(number)}{_DONE}"
            for number in self._files.numbers(_COMPACTIONS, _DONE)
            if number <= self._compaction
        )
        self._folder.delete_files(
            _checkpoint_name(number)
            for number in self._files.numbers(_CHECKPOINTS, _DONE)
            if number <= before
        )
        return len(old)

    def _finish(self, number: int) -> bool:
        """Roll a prepared compaction forward; back if its file is lost and not yet in place: those
        that it was to replace are all there."""
        name = f"{FOLDER}/{_COMPACTIONS}/{file_of(number)}"
        text = self._folder.read_text(f"{name}{_PREPARED}") or ""
        record = FileReplacement.from_json(text, self._folder.path_of(f"{name}{_PREPARED}"))
        paths = {each.path for each in record.added}
        is_there = all(
            self._folder.exists(path) or self._folder.exists(f"{COMPACTED}/{path}")
            for path in paths
        )
        if is_there or self._folder.exists(f"{name}{_DONE}"):
            self._folder.move((f"{COMPACTED}/{path}", path) for path in paths)
            self._folder.write_text(f"{name}{_DONE}", text)
            self._folder.delete_files(record.removed)
        self._folder.delete_files([f"{name}{_PREPARED}"])
        return is_there

    def _catch_up(self) -> bool:
        """Read what is new; False if it has to begin again."""
        newest = self._newest_checkpoint()
        if newest != self._checkpoint:
            found = self._read_checkpoint(newest)
            if found is None:
                return False
            self._commit, self._compaction, files = found
            self._by_path = {}
            self._add(files)
            self._checkpoint, self._folded = newest, (self._commit, self._compaction)
        # What a compaction removed is of commits that are listed after it.
        numbers = self._files.numbers(_COMPACTIONS, _DONE)
        compactions = [
            self._read_compaction(number) for number in numbers if number > self._compaction
        ]
        expected, commits = self._commit, []
        for number in self._files.commit_numbers():
            if number > self._commit:
                commits.append(self._files.find_commit(number))
                expected += 1
        last = max((each[0].number for each in commits if each is not None), default=expected)
        if self._newest_checkpoint() != self._checkpoint:
            return False
        if last != expected or None in commits or None in compactions:
            raise PipelineError(
                f"table {self._folder.location} has lost files of {FOLDER}/commits or"
                f" {FOLDER}/{_COMPACTIONS}: restore them, or let the job fill a new table"
            )
        for commit in commits:
            if commit is not None:
                self._add(commit[0].files)
                self._commit = commit[0].number
        for compaction in compactions:
            if compaction is not None:
                self._apply(compaction)
        return True

    def _apply(self, compaction: FileReplacement) -> None:
        for path in compaction.removed:
            self._by_path.pop(path, None)
        self._add(compaction.added)
        self._compaction = compaction.number

    def _add(self, files: Iterable[DataFile]) -> None:
        for each in files:
            self._by_path.setdefault(each.path, []).append(each)

    def _newest_checkpoint(self) -> int:
        return max(self._files.numbers(_CHECKPOINTS, _DONE), default=0)

    def _read_checkpoint(self, number: int) -> tuple[int, int, list[DataFile]] | None:
        """Numbers of the commit and the compaction, and the files."""
        name = _checkpoint_name(number)
        text, where = self._folder.read_text(name), self._folder.path_of(name)
        if text is None:
            return None
        found = json_object(text, where)
        try:
            files = [DataFile(**each) for each in found["files"]]
            return int(found["commit"]), int(found["compaction"]), files
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineError(f"{where} is no checkpoint of a table: {error!r}") from error

    def _read_compaction(self, number: int) -> FileReplacement | None:
        name = f"{FOLDER}/{_COMPACTIONS}/{file_of(number)}{_DONE}"
        text = self._folder.read_text(name)
        return None if text is None else FileReplacement.from_json(text, self._folder.path_of(name))


def _checkpoint_name(number: int) -> str:
    return f"{FOLDER}/{_CHECKPOINTS}/{file_of(number)}{_DONE}"


def _listed(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in DataFile.__slots__} for each in files]
