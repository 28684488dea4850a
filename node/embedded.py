"""A whole node in child processes, for programs and tests that need a real broker.

The pytest fixture uses it. The node has its own folder and port, and ends with the process that
started it, however that ends: it watches its standard input. Invariant: `bootstrap_servers` stays
the same across restarts.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.config import is_secret
from odradek.node.config_sources import environment_name
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from odradek.protocol.types import Request

POLL_S = 0.005
LOG_TAIL_BYTES = 4000
BROKER_DEFAULT = -1  # CreateTopics: let the broker choose

R = TypeVar("R")


class BrokerFailure(RuntimeError):
    """The node did not start, stop or respond. The message ends with the last lines of its log."""


class EmbeddedBroker:
    """One node in processes of its own: a context manager, or `start` and `stop` it."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        port: int = 0,
    ) -> None:
        """`directory` gets data and log; `settings` are those of `odradek serve --set`, secret
        ones in the environment. Port 0 is a free port. With `listeners` among the settings, the
        port is that of the first listener."""
        self.directory = directory
        self.settings = dict(settings or {})
        self.environment: dict[str, str] = {}
        """Variables added to the environment at the next start."""
        self.timeout_s = timeout_s
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: set[int] = set()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for Kafka clients."""
        if not self._port:
            raise BrokerFailure("The broker was not started.")
        return f"127.0.0.1:{self._port}"

    @property
    def data(self) -> Path:
        """The node's data folder."""
        return self.directory / "data"

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by name (`controller`, `router-0`, `worker-0`, ...), from when all of them
        were last ready."""
        return self._state().children

    @property
    def pid(self) -> int:
        """The process id of the node's supervisor."""
        if self._process is None:
            raise BrokerFailure("The broker is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the node is running."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The node's log so far."""
        try:
            return (self.directory / "node.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def start(self) -> None:
        """Start the node and wait until it serves clients."""
        if self._process is not None:
            raise BrokerFailure("The broker is already running.")
        self.directory.mkdir(parents=True, exist_ok=True)
        # -P: packages in the folder of the tests must not shadow ours.
        command = [sys.executable, "-P", "-m", "odradek", "serve", "--attached"]
        command += ["--data", str(self.data)]
        if "listeners" not in self.settings:
            command += ["--listen", f"127.0.0.1:{self._port}"]
        for key, value in self.settings.items():
            if not is_secret(key):
                command += ["--set", f"{key}={value}"]
        # Settings of the surrounding shell are not for this node.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")}
        environment |= {
            environment_name(key): value for key, value in self.settings.items() if is_secret(key)
        }
        environment |= self.environment
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(Path(__file__).parents[2]), environment.get("PYTHONPATH")])
        )
        with (self.directory / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal goes to the tests
            )
        try:
            self.wait_until_ready()
        except BrokerFailure:
            self.kill()
            raise
        self._port = int(self._state().bootstrap.rpartition(":")[2])

    def stop(self) -> None:
        """Shut the node down; acknowledged records are on the disk. Does nothing if it is down."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailure(f"The node did not stop in time{self._log_tail()}") from None
        self._forget_process()

    def restart(self) -> None:
        """Stop and start again, at the same address and with the same data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL all processes, like a crash of the machine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget_process()

    def kill_worker(self, index: int = 0) -> None:
        """SIGKILL a worker. The supervisor restarts it; `wait_until_ready` waits for it."""
        self.kill_process(f"worker-{index}")

    def kill_process(self, name: str) -> None:
        """SIGKILL one of `processes`."""
        pid = self.processes[name]
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)

    def wait_until_ready(self) -> None:
        """Wait until every process is ready, also the killed ones."""
        deadline = time.monotonic() + self.timeout_s
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                raise BrokerFailure(f"The node has exited{self._log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailure(f"The node is not ready in time{self._log_tail()}")
            time.sleep(POLL_S)

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until all partitions have a leader. Raises ApiError."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=BROKER_DEFAULT,
                    configs=[
                        CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=int(self.timeout_s * 1000),
        )
        (created,) = self.ask(request).topics
        if created.error_code:
            raise ApiError(ErrorCode(created.error_code), created.error_message)
        deadline = time.monotonic() + self.timeout_s
        while not self._has_leaders(name, partitions):
            if time.monotonic() > deadline:
                raise BrokerFailure(f"Partitions of {name} have no leader{self._log_tail()}")
            time.sleep(POLL_S)

    def ask(self, request: Request[R]) -> R:
        """The response to a request, in the newest common version. Raises OSError, and
        BrokerFailure if the node does not respond."""
        try:
            with BlockingClient("127.0.0.1", self._port, self.timeout_s) as client:
                return client.ask(request)
        except NotABrokerError as error:
            raise BrokerFailure(f"Request to the node failed: {error}{self._log_tail()}") from error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.data, ignore_errors=True)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        (topic,) = self.ask(request).topics
        return (
            topic.error_code == 0
            and len(topic.partitions) == partitions
            and all(p.error_code == 0 and p.leader_id >= 0 for p in topic.partitions)
        )

    def _state(self) -> NodeState:
        return msgspec.json.decode((self.data / STATE_NAME).read_bytes(), type=NodeState)

    def _is_ready(self) -> bool:
        try:
            pids = set(self.processes.values())
        except FileNotFoundError:
            return False
        return not pids & self._killed

    def _forget_process(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        self._killed.clear()
        # A killed node leaves it behind. It must not make the next start look ready.
        (self.data / STATE_NAME).unlink(missing_ok=True)

    def _log_tail(self) -> str:
        text = self.log()[-LOG_TAIL_BYTES:].strip()
        return f". The end of its log:\n{text}" if text else ". Its log is empty."
