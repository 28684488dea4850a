"""Whether a node can write its files: the reports of its processes, and what follows from them.

    worker, controller  -- StorageReport -->  supervisor  -- StorageState -->  routers

A process that writes reports its problem, and that it has none, when it becomes ready and with each
change. One that has to end because of a problem reports it first: its successor may not get as far.
The supervisor logs each change once, counts problems, and shows them in readiness and metrics. The
routers tell clients: KAFKA_STORAGE_ERROR instead of silence.

A log directory beside the data folder that fails is no problem of the process: it goes offline
until the node is started again. The supervisor puts that into the configuration of the node, which
all processes follow.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from odradek.node.observability import StorageReport, StorageState
from odradek.node.structured_log import get_logger

log = get_logger(__name__)


class StorageHealth:
    """The problems of one process, by the part of its storage that has them."""

    def __init__(self, send: Callable[[StorageReport], None]) -> None:
        self._send = send
        self._problems: dict[str, str] = {}
        self._failed_log_dirs: dict[str, str] = {}
        self._reported: StorageReport | None = None

    @property
    def problem(self) -> str:
        """What keeps this process from writing; empty: nothing."""
        return joined(self._problems.values())

    def set_problem(self, part: str, problem: str | None) -> None:
        """The problem of a part; None if it can be written. Reported if that changes anything."""
        if problem is not None:
            self._problems[part] = problem
        else:
            self._problems.pop(part, None)
        if self._reported is not None or self._problems:
            self.report()

    def fail_log_dir(self, path: str, problem: str) -> None:
        """A log directory beside the data folder has failed. It stays offline until the node is
        started again."""
        self._failed_log_dirs[path] = problem
        self.report()

    def report(self) -> None:
        """Report the present state, unless it was the last one reported."""
        report = StorageReport(self.problem, dict(self._failed_log_dirs))
        if report != self._reported:
            self._reported = report
            self._send(report)


class NodeStorage:
    """The problems of all processes of the node, for the supervisor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: dict[str, str] = {}
        self.problem = ""
        """What keeps the node from writing its data folder; empty: nothing."""
        self._causes: set[str] = set()
        self.problem_count = 0
        """Problems reported since the start."""

    def update(self, process: str, problem: str) -> bool:
        """What a process has reported; empty if it can write. Whether that is new."""
        if problem == self._problems.get(process, ""):
            return False
        if problem:
            self._problems[process] = problem
            self.problem_count += 1
        else:
            del self._problems[process]
        self._log_change()
        return True

    def keep(self, processes: Iterable[str]) -> None:
        """Forget processes that are not among these: the number of workers has changed."""
        kept = set(processes)
        self._problems = {name: text for name, text in self._problems.items() if name in kept}
        self._log_change()

    def state(self, ended: Iterable[str]) -> StorageState:
        """What the routers get to know. `ended` are the processes that are not running."""
        problems = dict(self._problems)
        return StorageState(problems, frozenset(name for name in ended if name in problems))

    def _log_change(self) -> None:
        before, self.problem = self.problem, joined(self._problems.values())
        # A disk that cannot be written makes one file fail after the other: that is one change.
        known, self._causes = self._causes, {_cause(text) for text in self._problems.values()}
        if not self._causes <= known:
            log.error(
                "files cannot be written: until they can, writes get KAFKA_STORAGE_ERROR",
                path=str(self._folder),
                reason=self.problem,
                action="free space, or repair the disk",
            )
        elif before and not self.problem:
            log.warning("files can be written again", path=str(self._folder))


def joined(problems: Iterable[str]) -> str:
    """The different ones among some problems, as one text."""
    return "; ".join(sorted(set(problems)))


def _cause(problem: str) -> str:
    """The operating system's words, without the names of the file and of the operation."""
    return problem.rpartition(": ")[2]
