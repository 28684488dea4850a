"""The link between a process and its supervisor.

`SupervisorLink` is the child's end of a socket pair: the child sends heartbeats, readiness and
metrics, the supervisor requests metrics and stops the child.
Invariant: the link never blocks and never raises; a child whose supervisor has died stops.
"""

import contextlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.metrics.process_metrics import register_process_metrics
from odradek.node.metrics.registry import FamilyLines, Metrics
from odradek.node.metrics.report import SlicedReport
from odradek.node.structured_log import configure_logging, finish_logging, say_repeated_lines

if TYPE_CHECKING:
    # A supervisor has no event loop: 2 MB.
    import asyncio

LINK_VARIABLE = "_ODRADEK_LINK"
"""Environment variable with the descriptor of the child's end of the link."""
CANDIDATE_VARIABLE = "_ODRADEK_CANDIDATE"
"""Environment variable of a process that is to replace another one: the file with the configuration
that the node is to have."""

# SEQPACKET keeps message boundaries and reports the end of the connection. Elsewhere a changed
# parent process id reports it.
LINK_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
MESSAGE_BYTES_MAX = 64 * 1024
LINK_BUFFER_BYTES = 1 << 20
HEARTBEAT_S = 1.0
_POLL_S = 0.02
_FULL_BUFFER_S = 0.001
_WAITING_MESSAGES_MAX = 1_000


class ProcessHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The child's loop is running."""


class ProcessReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The child is ready; sent again when the details change."""

    details: dict[str, str | int | dict[str, int]] = {}


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """A part of the child's metrics; `is_last` ends the response to one `CollectMetrics`."""

    request_id: int
    parts: list[FamilyLines]
    is_last: bool


class StorageReport(msgspec.Struct, frozen=True, array_like=True, tag="storage"):
    """Whether the child can write its files: the problem in a few words; empty if it can.
    `failed_log_dirs` are the log directories beside the data folder that have failed, by path."""

    problem: str
    failed_log_dirs: dict[str, str] = {}


class ListenerReport(msgspec.Struct, frozen=True, array_like=True, tag="listeners"):
    """What keeps clients from the child's listeners, or soon will, as sentences; `is_serving`:
    there is a listener that clients can use."""

    problems: list[str]
    is_serving: bool


class CatchUpReport(msgspec.Struct, frozen=True, array_like=True, tag="catchup"):
    """What this node lacks of the partitions that it has replicas of, as a sentence; empty: it has
    caught up since its start."""

    problem: str


class ShutdownAllowed(msgspec.Struct, frozen=True, array_like=True, tag="released"):
    """The controlled shutdown is done: the node may stop."""


class ResizeWorkers(msgspec.Struct, frozen=True, array_like=True, tag="regroup"):
    """Change the number of workers."""

    worker_count: int


class BeginControlledShutdown(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """Begin a controlled shutdown; `ShutdownAllowed` follows."""


class ChangeLogLevels(msgspec.Struct, frozen=True, array_like=True, tag="levels"):
    """Give loggers these levels on all processes of the node, or take theirs away (None)."""

    request_id: int
    levels: dict[str, str | None]


class SettingsOverridden(msgspec.Struct, frozen=True, array_like=True, tag="settings"):
    """The settings of this node that are set through the cluster, by key."""

    overrides: dict[str, str]


class ChangeSettings(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """Answer when the node has these settings through the cluster; `is_trial`: whether it could."""

    request_id: int
    overrides: dict[str, str]
    is_trial: bool


class ConfigurationApplied(msgspec.Struct, frozen=True, array_like=True, tag="applied"):
    """The child has applied the configuration with this number."""

    revision: int


class ConfigurationChanged(msgspec.Struct, frozen=True, array_like=True, tag="configuration"):
    """The file with the node's configuration has changed: read it and answer with its number."""

    revision: int


class LogLevelsChanged(msgspec.Struct, frozen=True, array_like=True, tag="levels"):
    """The answer to `ChangeLogLevels`: all processes have them, or why they do not."""

    request_id: int
    problem: str = ""


class ProcessPrepared(msgspec.Struct, frozen=True, array_like=True, tag="prepared"):
    """The child could start with the changed configuration, and waits for `TakeOver`."""


class CandidateRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The child could not start with the changed configuration, and why."""

    problem: str


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag="takeover"):
    """The process that this one replaces has ended: start."""


class SettingsChanged(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """The answer to `ChangeSettings`: the node has them, or could, or why not."""

    request_id: int
    problem: str = ""


class StopProcess(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Finish, then exit. `is_replaced`: the node stays, another process takes over at once."""

    is_replaced: bool = False


class CollectMetrics(msgspec.Struct, frozen=True, array_like=True, tag="collect"):
    """Send the metrics, in `MetricsReport`s with this number."""

    request_id: int


class StorageState(msgspec.Struct, frozen=True, array_like=True, tag="storage"):
    """The processes of the node that cannot write their files, with their problems. Those in
    `ended` are not running: what was sent to them is lost."""

    problems: dict[str, str]
    ended: frozenset[str] = frozenset()


FromChild = (
    ProcessHeartbeat
    | ProcessReady
    | MetricsReport
    | StorageReport
    | ListenerReport
    | CatchUpReport
    | ShutdownAllowed
    | ResizeWorkers
    | ChangeLogLevels
    | ConfigurationApplied
    | ProcessPrepared
    | CandidateRefused
    | SettingsOverridden
    | ChangeSettings
)
ToChild = (
    StopProcess
    | TakeOver
    | CollectMetrics
    | BeginControlledShutdown
    | StorageState
    | ConfigurationChanged
    | LogLevelsChanged
    | SettingsChanged
)
Details = Mapping[str, str | int | dict[str, int]]

encode_link = msgspec.msgpack.Encoder().encode
decode_from_child: Callable[[bytes], FromChild] = msgspec.msgpack.Decoder(FromChild).decode
_decode_to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode


def receive_message(connection: socket.socket) -> bytes | None:
    """The next message of a link; empty if the other end is closed, None if there is none yet."""
    try:
        return connection.recv(MESSAGE_BYTES_MAX)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class SupervisorLink:
    """The child's end of the link. A process that was started by hand has none, and is not stopped.

    A process with a poller adds `sockets` to it and calls `poll` in every turn; a process with an
    event loop calls `watch` once.
    """

    def __init__(
        self, connection: socket.socket | None, name: str, config_path: Path | None = None
    ) -> None:
        """`config_path` is the file with the node's configuration."""
        self.name = name
        self.metrics = Metrics(name)
        register_process_metrics(self.metrics)
        self.before_report: Callable[[Callable[[], None]], None] = lambda report: report()
        """Gets a function that sends the metrics, and calls it within a second, when the metrics
        are up to date."""
        self.on_storage_state: Callable[[StorageState], None] = lambda _state: None
        """Called when processes of the node can write their files no longer, or can again."""
        self.on_configuration: Callable[[NodeConfig], None] = lambda _config: None
        """Called with a changed configuration of the node, whose log levels are applied already."""
        self.on_log_levels_changed: Callable[[LogLevelsChanged], None] = lambda _message: None
        self.on_settings_changed: Callable[[SettingsChanged], None] = lambda _message: None
        self.is_in_controlled_shutdown = False
        """Whether the node is in controlled shutdown; changes in `poll`."""
        self.is_replaced = False
        """Whether this process stops because another one takes over; changes in `poll`."""
        self._connection = connection
        self._config_path = config_path
        self._parent = os.getppid()
        self._next_poll = self._next_heartbeat = 0.0
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._on_report: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Messages for which the supervisor's buffer has no room yet.
        self._waiting: deque[bytes] = deque()
        self._reports: deque[SlicedReport] = deque()
        if connection is not None:
            connection.setblocking(False)

    @classmethod
    def connect(cls, name: str, config_path: Path | None = None) -> Self:
        """The link of this process. `name` is the process's, for example `worker-0`."""
        descriptor = os.environ.pop(LINK_VARIABLE, "")
        if not descriptor:
            return cls(None, name, config_path)
        return cls(socket.socket(fileno=int(descriptor)), name, config_path)

    @property
    def is_connected(self) -> bool:
        """Whether there is a supervisor."""
        return self._connection is not None

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The sockets to add to a poller."""
        return () if self._connection is None else (self._connection,)

    def poll(self) -> bool:
        """Send a heartbeat if due, handle messages; True when it is time to stop. Cheap."""
        now = time.monotonic()
        if now >= self._next_poll or self.is_busy:
            self._next_poll = now + _POLL_S
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + HEARTBEAT_S
                say_repeated_lines()
                if not self._waiting:
                    self.send(ProcessHeartbeat())
                if os.getppid() != self._parent:
                    self._is_stopping = True
            if self._waiting:
                self._send_waiting()
            self._receive()
            if self._reports and not self._waiting and self._reports[0].run():
                self._reports.popleft()
        return self._is_stopping

    @property
    def is_busy(self) -> bool:
        """Whether `poll` has something to do that no socket announces: it is due at once."""
        return bool(self._reports or self._waiting)

    def watch(self, loop: "asyncio.AbstractEventLoop", on_stop: Callable[[], None]) -> None:
        """Do the work of `poll` in an event loop; `on_stop` is called once."""
        self._loop = loop
        has_stopped = False

        def poll() -> None:
            nonlocal has_stopped
            self._next_poll = 0.0
            if self.poll() and not has_stopped:
                has_stopped = True
                if self._connection is not None:
                    loop.remove_reader(self._connection.fileno())
                on_stop()

        def send_report() -> None:
            if self._connection is not None:
                poll()
                if self.is_busy:
                    # Other work of the loop between two slices; a full buffer gets some time.
                    loop.call_later(_FULL_BUFFER_S if self._waiting else 0, send_report)

        self._on_report = send_report

        def heartbeat() -> None:
            poll()
            self._timer = loop.call_later(HEARTBEAT_S, heartbeat)

        if self._connection is not None:
            loop.add_reader(self._connection.fileno(), poll)
        heartbeat()

    def close(self) -> None:
        """Close the link."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _receive(self) -> None:
        while self._connection is not None and not self._is_stopping:
            payload = receive_message(self._connection)
            if not payload:
                # Empty: the supervisor has ended.
                self._is_stopping = payload is not None
                return
            match message := _decode_to_child(payload):
                case StopProcess():
                    self._is_stopping, self.is_replaced = True, message.is_replaced
                case CollectMetrics():
                    self.before_report(partial(self._begin_report, message.request_id))
                case BeginControlledShutdown():
                    self.is_in_controlled_shutdown = True
                case StorageState():
                    self.on_storage_state(message)
                case ConfigurationChanged():
                    self._apply_configuration(message.revision)
                case LogLevelsChanged():
                    self.on_log_levels_changed(message)
                case SettingsChanged():
                    self.on_settings_changed(message)
                case TakeOver():
                    pass

    def wait_for_turn(self, check: Callable[[NodeConfig], None] = lambda _config: None) -> None:
        """In a process that is to replace another one: call `check` with the configuration that the
        node is to have, say that this process is prepared, and wait until the other one has ended.
        In any other process, return at once. Ends this process if it is not needed, or if `check`
        raises ConfigurationError."""
        candidate = os.environ.pop(CANDIDATE_VARIABLE, "")
        if not candidate or self._connection is None:
            return
        self._connection.setblocking(True)
        try:
            check(NodeConfig.load_json(Path(candidate)))
        except ConfigurationError as error:
            self._connection.send(encode_link(CandidateRefused("; ".join(error.faults))))
            finish_logging()
            os._exit(1)
        self._connection.send(encode_link(ProcessPrepared()))
        while not isinstance(self._next_message(self._connection), TakeOver):
            pass
        self._connection.setblocking(False)

    @staticmethod
    def _next_message(connection: socket.socket) -> ToChild:
        payload = receive_message(connection)
        message = _decode_to_child(payload) if payload else StopProcess()
        if isinstance(message, StopProcess):
            finish_logging()
            os._exit(0)
        return message

    def _apply_configuration(self, revision: int) -> None:
        if self._config_path is not None:
            config = NodeConfig.load_json(self._config_path)
            configure_logging(config, self.name)
            self.on_configuration(config)
        self.send(ConfigurationApplied(revision))

    def _begin_report(self, request_id: int) -> None:
        def send(parts: list[FamilyLines], is_last: bool) -> None:
            self.send(MetricsReport(request_id, parts, is_last))

        self._reports.append(SlicedReport(self.metrics.collect(), send))
        self._on_report()

    def send(self, message: FromChild) -> None:
        """Send a message, as soon as the supervisor's buffer has room."""
        self._send_encoded(encode_link(message))

    def _send_encoded(self, message: bytes) -> None:
        if self._connection is not None and len(self._waiting) < _WAITING_MESSAGES_MAX:
            self._waiting.append(message)
            self._send_waiting()

    def _send_waiting(self) -> None:
        # An ended supervisor is noticed by `_receive`; with a full buffer, the next poll sends.
        with contextlib.suppress(OSError):
            while self._waiting and self._connection is not None:
                self._connection.send(self._waiting[0])
                self._waiting.popleft()
