"""One process of a node, started alone and controlled as by its supervisor.

Metadata and requests use the bus, where the test plays the other processes. On this pipe the child
reports that it is ready, hands over its metrics, and gets the order to stop.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from odradek.node.child import child_environment
from odradek.node.config import NodeConfig, load
from odradek.node.data_folder import adopt_meta_properties
from odradek.node.metrics.registry import series_of_line
from odradek.node.observability import (
    LINK_KIND,
    MESSAGE_BYTES_MAX,
    CollectMetrics,
    MetricsReport,
    ProcessReady,
    StopProcess,
    ToChild,
    decode_from_child,
    encode_link,
)

M = TypeVar("M")

DEADLINE_S = 20.0
CLUSTER_ID = "cluster-of-the-test"


def node_config(folder: Path, **options: str) -> NodeConfig:
    """The configuration of a node whose folders are all in `folder`; keys with `_` for `.`."""
    keys = {key.replace("_", "."): value for key, value in options.items()}
    settings = {
        "data": str(folder / "data"),
        "run": str(folder / "run"),
        "cluster.id": CLUSTER_ID,
        "profile": "dev",
        "listeners": "127.0.0.1:0",
        **keys,
    }
    config = load(environment={}, options=settings)
    config.data_folder.mkdir(parents=True, exist_ok=True)
    config.run_folder.mkdir(parents=True, exist_ok=True)
    return adopt_meta_properties(config, formats=True)


class ChildProcess:
    """A running child. Its log goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self._link, theirs = socket.socketpair(socket.AF_UNIX, LINK_KIND)
        self._link.settimeout(DEADLINE_S)
        with theirs, log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=file,
                pass_fds=(theirs.fileno(),),
                env=child_environment(theirs.fileno()),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> dict[str, str | int | dict[str, int]]:
        """Wait for the child's report that it is ready; returns its details."""
        while True:
            message = self._receive()
            if isinstance(message, ProcessReady):
                return message.details

    def wait_for(self, kind: type[M]) -> M:
        """The next message of a kind."""
        while True:
            message = self._receive()
            if isinstance(message, kind):
                return message

    def metrics(self) -> dict[str, float]:
        """The present metrics without labels; series with labels are summed."""
        self._send(CollectMetrics(1))
        found: dict[str, float] = {}
        while True:
            message = self._receive()
            if isinstance(message, MetricsReport):
                for line in "".join(part.lines for part in message.parts).splitlines():
                    name, value = series_of_line(line)
                    found[name] = found.get(name, 0) + value
                if message.is_last:
                    return found

    def stop(self) -> int:
        """Stop the child; returns its exit code."""
        self._send(StopProcess())
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait for the end of the child; returns its exit code."""
        code = self._process.wait(DEADLINE_S)
        self._link.close()
        return code

    def _send(self, message: ToChild) -> None:
        self._link.send(encode_link(message))

    def _receive(self) -> object:
        payload = self._link.recv(MESSAGE_BYTES_MAX)
        assert payload, f"the process has ended:\n{self.log.read_text()}"
        return decode_from_child(payload)
