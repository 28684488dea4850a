"""`maintain` in a process of its own, which is killed by SIGKILL at a line of the code of tables.

Processes are forked by multiprocessing's fork server, which has imported everything and has never
used Arrow, so one of them lasts a tenth of a second.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType

from odradek.pipeline.jobs.maintain import MaintainOptions, maintain

_WATCHED = (
    "file_log.py",
    "table_folder.py",
    "job_folder.py",
    "file_compaction.py",
    "parquet_compaction.py",
    "iceberg_compaction.py",
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["odradek.pipeline.tables.iceberg_compaction", "tests.support.killed_maintenance"]
)
_TIMEOUT_S = 120.0

Line = tuple[str, int]
"""File and number."""


def lines_of(options: MaintainOptions) -> list[Line]:
    """Run to the end: all lines of tables' code, in the order in which they ran."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(options, 0, sender))
    process.start()
    sender.close()
    found: list[Line] = receiver.recv()
    process.join(_TIMEOUT_S)
    assert process.exitcode == 0
    return found


def kill_at(options: MaintainOptions, step: int) -> None:
    """Run until before the line that is the `step`th, and die there."""
    _, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(options, step, sender))
    process.start()
    process.join(_TIMEOUT_S)
    assert process.exitcode == -signal.SIGKILL


def chosen_steps(lines: Sequence[Line], seed: int, count: int, each_of: str = "") -> list[int]:
    """Steps to be killed at: `count` of all by chance, and of each line of the module `each_of`
    one of the times that it ran."""
    random = Random(seed)
    found = set(random.sample(range(1, len(lines) + 1), count))
    steps: dict[Line, list[int]] = {}
    for step, line in enumerate(lines, 1):
        if Path(line[0]).name == each_of:
            steps.setdefault(line, []).append(step)
    return sorted(found | {random.choice(each) for each in steps.values()})


def _run(options: MaintainOptions, step: int, sender: Connection) -> None:
    ran: list[Line] = []

    def trace(frame: FrameType, event: str, _: object) -> object:
        if os.path.basename(frame.f_code.co_filename) not in _WATCHED:
            return None
        if event == "line":
            ran.append((frame.f_code.co_filename, frame.f_lineno))
            if len(ran) == step:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]  # typeshed wants the type of itself
    maintain(options)
    sys.settrace(None)
    sender.send(ran)
