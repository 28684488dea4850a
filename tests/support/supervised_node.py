"""A supervisor in its own process with the stand-in children of `stand_in_node`, and its probes."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("stand_in_node.py")
CONTROLLER = ("controller", "works", 2)
WORKER = ("worker-0", "works", 1)
ROUTER = ("router-0", "works", 0)


class SupervisedNode:
    """A supervisor in its own process, with stand-in children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self._pids: set[int] = set()
        self.file: Path | None = None
        """The configuration file that the node watches, if it has one."""

    def start(
        self,
        *children: tuple[str, str, int],
        timeouts: dict[str, float] | None = None,
        is_clustered: bool = False,
        **options: str,
    ) -> "SupervisedNode":
        if is_clustered:
            options = of_several() | options
        spec = {
            "options": {
                "data": str(self.data),
                "run": str(self.folder / "run"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.format": "text",
            }
            | {key.replace("_", "."): value for key, value in options.items()},
            "file": None if self.file is None else str(self.file),
            "children": children or (CONTROLLER, WORKER, ROUTER),
            "timeouts": {"stop": 5.0, "restart_first": 0.01} | (timeouts or {}),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), "node", json.dumps(spec)],
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            )
        return self

    def events(self, pattern: str = "") -> list[str]:
        path = self.data / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            if matched := re.search(r"starts (\d+)", line):
                self._pids.add(int(matched[1]))
        return [line for line in lines if re.search(pattern, line)]

    def state(self) -> dict[str, object]:
        state = json.loads((self.data / "node.json").read_text())
        assert isinstance(state, dict)
        return state

    def wait_ready(self) -> "SupervisedNode":
        assert self.process is not None
        pid = self.process.pid
        wait_until(lambda: self.state()["pid"] == pid, what=f"ready, see {self.log}")
        return self

    def pid(self, name: str) -> int:
        children = self.state()["children"]
        assert isinstance(children, dict)
        return int(children[name])

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=20)

    def logged(self) -> str:
        return self.log.read_text()

    def survivors(self) -> list[int]:
        self.events()
        return [pid for pid in self._pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def of_several() -> dict[str, str]:
    """The settings of a node of a cluster."""
    return {
        "peers": f"0@127.0.0.1:{free_pair()},1@127.0.0.1:{free_pair()}",
        "cluster_id": "cluster-of-the-test",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
    }


def supervised_node(folder: Path) -> Iterator[SupervisedNode]:
    """For a fixture: a node that is not started yet. Afterwards none of its processes is left."""
    node = SupervisedNode(folder)
    yield node
    if node.process is not None and node.process.poll() is None:
        node.process.kill()
        node.process.wait()
    wait_until(lambda: not node.survivors(), what="every child has ended with its supervisor")


def get(url: str) -> tuple[int, str]:
    """Status and text of a probe."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
