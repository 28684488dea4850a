"""Logging, metrics, and the link between a process and its supervisor.

Logs go to stderr: text on a terminal, JSON lines elsewhere. Metrics are read on request; the hot
paths only count in integers of their own. `SupervisorLink` is the child's end of a socket pair: the
child sends heartbeats, readiness and metrics, the supervisor requests metrics and stops the child.
Invariant: the link never blocks and never raises; a child whose supervisor has died stops.
"""

import contextlib
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.log_levels import set_log_levels

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
HEARTBEAT_S = 1.0
_POLL_S = 0.02
_SAMPLES_OF_A_MESSAGE = 64
_WAITING_MESSAGES_MAX = 1_000

FLOOD_WINDOW_S = 10.0
FLOOD_LINES_MAX = 20
"""Clients can cause log lines: the limit for one line of the code in a window."""


# -- logging ---------------------------------------------------------------------------------------


def configure_logging(config: NodeConfig, process: str) -> None:
    """Log to stderr in the configured format."""
    is_text = config.log_format == "text" or (config.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(process) if is_text else JsonFormatter(process))
    handler.addFilter(RepeatedLineFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_log_levels(config.log_level, config.log_levels)
    logging.raiseExceptions = False
    # They cost time for each line, and no format shows them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False

    def log_failure(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        root.critical("%s failed and exits", process, exc_info=(kind, error, traceback))

    sys.excepthook = log_failure


class TextFormatter(logging.Formatter):
    """`12:00:01.123 WARN  router-0  message`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = f"{process:<10}"

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "WARN" if record.levelno == logging.WARNING else record.levelname
        line = f"{clock}.{int(record.msecs):03d} {level:<5} {self._process} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339), level, process, logger, message, exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


class RepeatedLineFilter(logging.Filter):
    """Passes `FLOOD_LINES_MAX` records of one line of the code in a window; counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        source = (record.name, record.lineno)
        now = self._clock()
        since, count = self._seen.get(source, (now, 0))
        if now - since >= FLOOD_WINDOW_S:
            suppressed = count - FLOOD_LINES_MAX
            if suppressed > 0:
                record.msg = f"{record.getMessage()} ({suppressed} similar lines suppressed)"
                record.args = ()
            since, count = now, 0
        self._seen[source] = (since, count + 1)
        return count < FLOOD_LINES_MAX


# -- metrics ---------------------------------------------------------------------------------------


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A metric's value. `kind` is counter or gauge; `labels` are pairs of name and value."""

    name: str
    kind: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


Reading = Callable[[], float | Mapping[str, float] | Mapping[tuple[str, ...], float]]
Labels = str | Callable[[], tuple[str, ...]]
"""The name of the one label, or a function that returns the names of several."""


class Metrics:
    """The metrics of a process: names, and functions that read the values on request."""

    def __init__(self) -> None:
        self._readings: list[tuple[str, str, str, Labels, Reading]] = []
        self._sample_sources: list[Callable[[], Iterable[Sample]]] = []

    def counter(self, name: str, help_text: str, reading: Reading, *, label: Labels = "") -> None:
        """A count since the start. With `label`, `reading` maps label values to counts."""
        self._readings.append((name, "counter", help_text, label, reading))

    def gauge(self, name: str, help_text: str, reading: Reading, *, label: Labels = "") -> None:
        """A value that goes up and down. With `label` the reading maps label values to values; with
        several labels, tuples of label values."""
        self._readings.append((name, "gauge", help_text, label, reading))

    def samples(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Metrics whose names are only known when they are read."""
        self._sample_sources.append(source)

    def collect(self) -> list[Sample]:
        """Read all metrics."""
        samples = [
            Sample("odradek_process_cpu_seconds", "counter", "CPU time used", time.process_time()),
            Sample("odradek_process_resident_bytes", "gauge", "Resident memory", resident_bytes()),
        ]
        for name, kind, help_text, label, reading in self._readings:
            value = reading()
            if isinstance(value, Mapping):
                names = (label,) if isinstance(label, str) else label()
                for key, of_label in value.items():
                    texts = (key,) if isinstance(key, str) else key
                    labels = tuple(zip(names, texts, strict=True))
                    samples.append(Sample(name, kind, help_text, float(of_label), labels))
            else:
                # float: a bool is not a number in the exposition format.
                samples.append(Sample(name, kind, help_text, float(value)))
        for source in self._sample_sources:
            samples += source()
        return samples


def resident_bytes() -> float:
    """Resident memory of this process; 0 where it is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def exposition(processes: Mapping[str, Iterable[Sample]]) -> str:
    """The samples of all processes in Prometheus' text format, with `process` as a label."""
    families: dict[str, tuple[str, str, list[str]]] = {}
    for process, samples in processes.items():
        for sample in samples:
            _, _, lines = families.setdefault(sample.name, (sample.kind, sample.help, []))
            labels = "".join(f',{name}="{_escaped(value)}"' for name, value in sample.labels)
            lines.append(f'{sample.name}{{process="{process}"{labels}}} {sample.value:.17g}')
    text = []
    for name, (kind, help_text, lines) in sorted(families.items()):
        text.append(f"# HELP {name} {help_text}")
        text.append(f"# TYPE {name} {kind}")
        text.extend(lines)
    return "\n".join(text) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# -- the link to the supervisor --------------------------------------------------------------------


class ProcessHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The child's loop is running."""


class ProcessReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The child is ready; sent again when the details change."""

    details: dict[str, str | int | dict[str, int]] = {}


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """A part of the child's metrics; `is_last` ends the response to one `CollectMetrics`."""

    samples: list[Sample]
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
    """Send the metrics."""


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
        self.metrics = Metrics()
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
        self._loop: asyncio.AbstractEventLoop | None = None
        # Messages for which the supervisor's buffer has no room yet.
        self._waiting: deque[bytes] = deque()
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
        if now >= self._next_poll:
            self._next_poll = now + _POLL_S
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + HEARTBEAT_S
                if not self._waiting:
                    self.send(ProcessHeartbeat())
                if os.getppid() != self._parent:
                    self._is_stopping = True
            if self._waiting:
                self._send_waiting()
            self._receive()
        return self._is_stopping

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
                    self.before_report(self._report)
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
            sys.stderr.flush()
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
            sys.stderr.flush()
            os._exit(0)
        return message

    def _apply_configuration(self, revision: int) -> None:
        if self._config_path is not None:
            config = NodeConfig.load_json(self._config_path)
            configure_logging(config, self.name)
            self.on_configuration(config)
        self.send(ConfigurationApplied(revision))

    def _report(self) -> None:
        samples = self.metrics.collect()
        for start in range(0, len(samples), _SAMPLES_OF_A_MESSAGE):
            part = samples[start : start + _SAMPLES_OF_A_MESSAGE]
            self._report_part(part, is_last=start + len(part) == len(samples))

    def _report_part(self, samples: list[Sample], *, is_last: bool) -> None:
        message = encode_link(MetricsReport(samples, is_last))
        if len(message) <= MESSAGE_BYTES_MAX or len(samples) == 1:
            self._send_encoded(message)
            return
        # Labels of clients may be long, and the supervisor would read a part of the message.
        half = len(samples) // 2
        self._report_part(samples[:half], is_last=False)
        self._report_part(samples[half:], is_last=is_last)

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
