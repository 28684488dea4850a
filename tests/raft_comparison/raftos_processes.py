"""Three processes of stock raftos, observed by their output and by their logs on the disk.

Our cluster of processes is killed in the e2e tests. This module shows that raftos in real processes
behaves as in the scenarios with a clock moved by hand.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.support.ports import free_port
from tests.support.waiting import wait_until

LEADER_S_MAX = 60.0


class RaftosProcesses:
    """See the module's docstring. A context manager; at its end all processes are killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [free_port() for _ in range(3)]
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._readers: dict[int, threading.Thread] = {}
        self._said: list[tuple[int, str]] = []  # by whom, in the order of reading
        self._killed_at_s = 0.0
        self._killed_after = 0

    def __enter__(self) -> Self:
        for port in self._ports:
            others = [str(other) for other in self._ports if other != port]
            module = "tests.raft_comparison.raftos_process"
            command = [sys.executable, "-m", module, str(self._folder), str(port), *others]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self._processes[port] = process
            assert process.stdout is not None
            reader = threading.Thread(target=self._read, args=(port, process.stdout))
            reader.start()
            self._readers[port] = reader
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for port in list(self._processes):
            self._end(port)

    def await_acknowledged(self, count: int) -> int:
        """Wait until one process has acknowledged this many entries; returns its port."""

        def found() -> int | None:
            by_port = Counter(port for port, line in list(self._said) if line != "leads")
            return next((port for port, seen in by_port.items() if seen >= count), None)

        port = wait_until(found, timeout_s=LEADER_S_MAX, what=f"{count} acknowledged entries")
        assert port is not None
        return port

    def kill(self, port: int) -> list[str]:
        """SIGKILL; all acknowledged entries are in its output."""
        self._end(port)
        self._killed_at_s = time.monotonic()
        self._killed_after = len(self._said)
        return [line for _, line in self._said if line != "leads"]

    def seconds_to_the_next_leader(self) -> float:
        """The time since the kill."""
        wait_until(
            lambda: any(line == "leads" for _, line in self._said[self._killed_after :]),
            timeout_s=LEADER_S_MAX,
            what="another leader",
        )
        return time.monotonic() - self._killed_at_s

    def accepts_writes(self, *, within_s: float) -> bool:
        """Whether the survivors acknowledge several entries. The first one proves nothing: it
        may answer an older entry that is applied only now."""
        try:
            wait_until(
                lambda: sum(line != "leads" for _, line in self._said[self._killed_after :]) > 2,
                timeout_s=within_s,
            )
        except AssertionError:
            return False
        return True

    def still_there(self, commands: Iterable[str]) -> int:
        """The number of these entries in the log of a survivor."""
        found: set[str] = set()
        for port in self._processes:
            (log,) = self._folder.glob(f"*_{port}.log")
            for line in log.read_text().splitlines():
                found |= set(json.loads(line)["command"])
        return len(found & set(commands))

    def _end(self, port: int) -> None:
        """Kill it and read the rest of its output."""
        process = self._processes.pop(port)
        process.kill()
        process.wait()
        self._readers.pop(port).join()
        assert process.stdout is not None
        process.stdout.close()

    def _read(self, port: int, output: IO[str]) -> None:
        for line in output:
            self._said.append((port, line.strip()))
