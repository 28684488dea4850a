"""One child process of the supervisor: start, heartbeats, restart, stop.

    state     event -> next state
    ---------------------------------------------------------------------------------------------
    WAITING   the restart delay is over -> STARTING
    STARTING  ready -> READY; exits -> WAITING; timeouts.start passes -> killed, then WAITING
    READY     exits -> WAITING; no heartbeat for timeouts.heartbeat -> killed, then WAITING
    any       stop -> STOPPING; exits -> ENDED

A child that is to replace another one (process_replacement.py) begins otherwise:

    STARTING  prepared -> PREPARED; exits -> ENDED; timeouts.prepare passes -> killed, then ENDED
    PREPARED  take over -> STARTING, as any other from then on; exits -> ENDED

The first restart has no delay; then the delay doubles, until the child has run for timeouts.stable.
Invariant: a child dies with its supervisor, however that dies. Driven by supervisor.py.
"""

import ctypes
import logging
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import msgspec

from odradek.node.metrics.registry import FamilyLines
from odradek.node.observability import (
    CANDIDATE_VARIABLE,
    LINK_BUFFER_BYTES,
    LINK_KIND,
    LINK_VARIABLE,
    BeginControlledShutdown,
    CandidateRefused,
    CatchUpReport,
    ChangeLogLevels,
    ChangeSettings,
    CollectMetrics,
    ConfigurationApplied,
    ConfigurationChanged,
    Details,
    ListenerReport,
    LogLevelsChanged,
    MetricsReport,
    ProcessHeartbeat,
    ProcessPrepared,
    ProcessReady,
    ResizeWorkers,
    SettingsChanged,
    SettingsOverridden,
    ShutdownAllowed,
    StopProcess,
    StorageReport,
    StorageState,
    TakeOver,
    ToChild,
    decode_from_child,
    encode_link,
    receive_message,
)
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

_PR_SET_PDEATHSIG = 1
# Batches of a megabyte are allocated and freed all the time. malloc must not map and unmap each of
# them (measured: 10 to 15 % of a worker's CPU), nor keep an arena per thread. But LMDB's list of
# dirty pages, 2 MiB of which little is used, must come from a fresh mapping: from recycled memory
# it would be zeroed, and thereby resident, in each of eight stores.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(3 << 19),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTimeouts:
    """The supervisor's timeouts for a child, in seconds."""

    start: float = 600.0
    """From the start until ready. Recovery after a power loss may take minutes."""
    prepare: float = 60.0
    """From the start of a process that is to replace another one until it is prepared."""
    take_over: float = 60.0
    """From taking over until ready: the process before has closed its files."""
    heartbeat: float = 20.0
    """Between heartbeats of a ready child. A sync of a slow disk may take some seconds."""
    stable: float = 30.0
    """A child that ran for so long is restarted without a delay."""
    restart_first: float = 0.1
    restart_max: float = 10.0
    stop: float = 15.0
    """From the stop message until the child is killed."""


class ChildState(Enum):
    """See the module's docstring."""

    WAITING = auto()
    STARTING = auto()
    PREPARED = auto()
    READY = auto()
    STOPPING = auto()
    ENDED = auto()


class ChildPlan(NamedTuple):
    """How to start a child, and the round of the shutdown in which it stops."""

    name: str
    command: Sequence[str]
    stop_round: int


class Child:
    """See the module's docstring."""

    def __init__(
        self,
        plan: ChildPlan,
        timeouts: ChildTimeouts,
        selector: selectors.BaseSelector,
        on_ready: "Callable[[Child], None]",
    ) -> None:
        self.name = plan.name
        self.stop_round = plan.stop_round
        self.state = ChildState.WAITING
        self.restart_count = 0
        self.failures_before_ready = 0
        self.can_shut_down = False
        """Whether it has reported that the controlled shutdown is done."""
        self.exit_code: int | None = None
        """Of the last process that has ended."""
        self.requested_workers: int | None = None
        """The number of workers that it has asked for, until the supervisor takes it."""
        self.details: Details = {}
        self.storage_problem = ""
        self.failed_log_dirs: dict[str, str] = {}
        """The log directories that the process has found to have failed, with the reasons."""
        """Why it could not write its files when it last reported; empty if it could."""
        self.listeners = ListenerReport([], is_serving=True)
        """What it says of its listeners for clients, if it has some."""
        self.catching_up = ""
        """What the node still lacks since its start, as a sentence; empty if that is nothing."""
        self._has_caught_up = False
        self.on_storage_report: Callable[[Child], None] = lambda _child: None
        self.on_details: Callable[[Child], None] = lambda _child: None
        """The details of a child that is ready have changed."""
        self.on_configuration_applied: Callable[[str, int], None] = lambda _name, _revision: None
        self.on_log_levels_request: Callable[[Child, ChangeLogLevels], None] = (
            lambda _child, _message: None
        )
        self.on_node_settings: Callable[[dict[str, str]], None] = lambda _overrides: None
        self.on_settings_request: Callable[[Child, ChangeSettings], None] = (
            lambda _child, _message: None
        )
        self.deadline = 0.0
        """When `on_deadline` is due: the next start, or the end of a timeout."""
        self.refusal = ""
        """Why it could not start with the configuration with which it was to replace another."""
        self._is_candidate = False
        """Whether it is to replace another child, which has not ended yet."""
        self._command = plan.command
        self._selector = selector
        self._on_ready = on_ready
        self._connection: socket.socket | None = None
        self._timeouts = timeouts
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._quick_exits = 0
        self._parts: list[FamilyLines] = []
        self._on_metrics: Callable[[list[FamilyLines]], None] | None = None
        self._metrics_request_id = 0

    @property
    def pid(self) -> int | None:
        """The process id, if the process runs."""
        return None if self._process is None else self._process.pid

    def start(self, now: float, *, candidate: Path | None = None) -> None:
        """Start the process. It logs to our stderr. With `candidate`, the file of a configuration,
        it only prepares to start with that and to replace another child: see `take_over`."""
        self._is_candidate = candidate is not None
        own_end, child_end = socket.socketpair(socket.AF_UNIX, LINK_KIND)
        own_end.setblocking(False)
        # The kernel gives what it allows. Metrics of many partitions are some messages.
        child_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LINK_BUFFER_BYTES)
        with child_end:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                pass_fds=(child_end.fileno(),),
                env=child_environment(child_end.fileno(), candidate=candidate),
                # A session of its own: Ctrl-C in the terminal goes to the supervisor alone.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._connection = own_end
        self._selector.register(own_end, selectors.EVENT_READ, self._receive)
        self.state = ChildState.STARTING
        self._started_at = now
        timeouts = self._timeouts
        self.deadline = now + (timeouts.prepare if self._is_candidate else timeouts.start)

    def continue_from(self, former: "Child") -> None:
        """Keep what the supervisor knows of the child that this one replaces."""
        self.restart_count = former.restart_count
        self.catching_up = former.catching_up
        self._has_caught_up = former._has_caught_up

    def take_over(self, now: float) -> None:
        """The other child has ended: start with the configuration of the node."""
        self._is_candidate = False
        if self._process is None:
            self.start(now)
            return
        self.state = ChildState.STARTING
        self._started_at = now
        self.deadline = now + self._timeouts.take_over
        if not self._send(TakeOver()):
            # It is exiting; `reap` notices.
            self.kill()

    def _receive(self) -> None:
        """Receive the child's messages. Called by the selector's loop."""
        while self._connection is not None:
            payload = receive_message(self._connection)
            if payload is None:
                return
            if not payload:
                # It is exiting; `reap` notices.
                self._close_connection()
                return
            try:
                message = decode_from_child(payload)
            except msgspec.DecodeError:
                log.error(
                    "a process of this node sent a malformed message",
                    child=self.name,
                    reason=repr(payload[:40]),
                )
                continue
            match message:
                case ProcessHeartbeat():
                    pass
                case ProcessReady():
                    self.details = message.details
                    self.failures_before_ready = 0
                    if self.state is ChildState.STARTING:
                        self.state = ChildState.READY
                        self._on_ready(self)
                    elif self.state is ChildState.READY:
                        self.on_details(self)
                case MetricsReport():
                    self._take_metrics(message)
                case StorageReport():
                    self.storage_problem = message.problem
                    self.failed_log_dirs = message.failed_log_dirs
                    self.on_storage_report(self)
                case ListenerReport():
                    self.listeners = message
                case CatchUpReport():
                    # Once: leaders tell of a replica that falls behind later.
                    self._has_caught_up |= not message.problem
                    self.catching_up = "" if self._has_caught_up else message.problem
                case ShutdownAllowed():
                    self.can_shut_down = True
                case ResizeWorkers():
                    self.requested_workers = message.worker_count
                case ConfigurationApplied():
                    self.on_configuration_applied(self.name, message.revision)
                case ChangeLogLevels():
                    self.on_log_levels_request(self, message)
                case SettingsOverridden():
                    self.on_node_settings(message.overrides)
                case ChangeSettings():
                    self.on_settings_request(self, message)
                case CandidateRefused():
                    self.refusal = message.problem
                case ProcessPrepared():
                    if self._is_candidate and self.state is ChildState.STARTING:
                        self.state, self.deadline = ChildState.PREPARED, float("inf")
            if self.state is ChildState.READY:
                self.deadline = time.monotonic() + self._timeouts.heartbeat

    def collect(self, on_metrics: Callable[[list[FamilyLines]], None]) -> bool:
        """Request the child's metrics; False if it is not ready. `on_metrics` gets them, unless
        they are requested once more before."""
        if self.state is not ChildState.READY:
            return False
        self._parts = []
        self._on_metrics = on_metrics
        self._metrics_request_id += 1
        return self._send(CollectMetrics(self._metrics_request_id))

    def _take_metrics(self, message: MetricsReport) -> None:
        if message.request_id != self._metrics_request_id or self._on_metrics is None:
            return  # of an earlier request
        self._parts += message.parts
        if message.is_last:
            on_metrics, self._on_metrics = self._on_metrics, None
            on_metrics(self._parts)

    def begin_controlled_shutdown(self) -> bool:
        """Have the child begin the controlled shutdown; False if it is not ready."""
        return self.state is ChildState.READY and self._send(BeginControlledShutdown())

    def send_storage_state(self, state: StorageState) -> None:
        """Tell the child which processes cannot write their files, if it is ready."""
        if self.state is ChildState.READY:
            self._send(state)

    def send_configuration(self, revision: int) -> bool:
        """Tell the child that the node's configuration has changed; False if it does not run."""
        return self._send(ConfigurationChanged(revision))

    def answer_log_levels(self, request_id: int, problem: str = "") -> None:
        """Answer the child's request to change levels."""
        self._send(LogLevelsChanged(request_id, problem))

    def answer_settings(self, request_id: int, problem: str = "") -> None:
        """Answer the child's request for settings of the node."""
        self._send(SettingsChanged(request_id, problem))

    def on_deadline(self, now: float) -> None:
        """The deadline has passed."""
        if self.state is ChildState.WAITING:
            self.start(now)
        elif self.state in (ChildState.STARTING, ChildState.READY):
            waited = (
                now - self._started_at
                if self.state is ChildState.STARTING
                else self._timeouts.heartbeat
            )
            what = "not ready" if self.state is ChildState.STARTING else "without a heartbeat"
            log.error(
                "a process of this node is killed: it does not respond",
                child=self.name,
                reason=what,
                duration_ms=int(waited * 1000),
            )
            self.kill()
            self.deadline = now + self._timeouts.heartbeat
        elif self.state is ChildState.STOPPING:
            log.error(
                "a process of this node is killed: it did not stop in time",
                child=self.name,
                duration_ms=int(self._timeouts.stop * 1000),
            )
            self.kill()
            self.deadline = float("inf")

    def reap(self, now: float) -> bool:
        """Check whether the process has ended; True if it just has."""
        process = self._process
        if process is None or process.poll() is None:
            return False
        self._process = None
        self.exit_code = process.returncode
        self._close_connection()
        status = _describe_exit(process.returncode)
        if self.state is ChildState.STOPPING:
            if process.returncode:
                log.error(
                    "a process of this node failed while it stopped", child=self.name, status=status
                )
            self.state = ChildState.ENDED
            return True
        if self._is_candidate:
            log.error(
                "a process that was to replace the present one has exited",
                child=self.name,
                status=status,
            )
            self.state = ChildState.ENDED
            return True
        if self.state is ChildState.STARTING:
            self.failures_before_ready += 1
        delay = self._restart_delay(now)
        # A problem of the storage is in the log already, once and not with every attempt.
        level = logging.INFO if self.storage_problem else logging.ERROR
        log.log(
            level,
            "a process of this node has exited and is restarted",
            child=self.name,
            status=status,
            delay_ms=int(delay * 1000),
        )
        self.restart_count += 1
        self.state = ChildState.WAITING
        self.deadline = now + delay
        return True

    def stop(self, now: float, *, is_replaced: bool = False) -> None:
        """Stop the process; it is killed after timeouts.stop. `is_replaced`: another one takes over
        at once."""
        if self._process is None:
            self.state = ChildState.ENDED
            return
        if self.state is not ChildState.STOPPING:
            has_begun = self.state is ChildState.READY
            self.state = ChildState.STOPPING
            self.deadline = now + self._timeouts.stop
            # A process that is still starting may not receive yet, and has nothing to finish.
            if not has_begun or not self._send(StopProcess(is_replaced)):
                self._process.terminate()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def wait(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._process.wait()
            self._process = None
        self._close_connection()

    def extend_deadline(self, now: float) -> None:
        """The supervisor itself was paused: give the child its whole timeout."""
        if self.state is ChildState.READY:
            self.deadline = now + self._timeouts.heartbeat

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _restart_delay(self, now: float) -> float:
        if now - self._started_at >= self._timeouts.stable:
            self._quick_exits = 0
        self._quick_exits += 1
        if self._quick_exits == 1:
            return 0.0
        doubled = self._timeouts.restart_first * 2.0 ** min(self._quick_exits - 2, 30)
        return min(doubled, self._timeouts.restart_max)

    def _send(self, message: ToChild) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.send(encode_link(message))
        except OSError:
            return False
        return True


def child_environment(
    link: int, environment: Mapping[str, str] = os.environ, *, candidate: Path | None = None
) -> dict[str, str]:
    """The environment of a child: ours, the descriptor of its link, the configuration with which it
    is to replace another one, if it is, and the path of our package."""
    made = _MALLOC | dict(environment) | {LINK_VARIABLE: str(link)}
    if candidate is not None:
        made[CANDIDATE_VARIABLE] = str(candidate)
    root = str(Path(__file__).parents[2])
    if root not in site.getsitepackages():
        made["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    return made


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours with this interpreter.

    -P: packages in the current folder must not shadow ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Before exec: have the kernel kill the child when the supervisor dies, even by SIGKILL."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
