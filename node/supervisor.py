"""The first process of a node: starts the others, watches them, and takes them down in order.

Children are started all at once and find each other by their sockets in the run folder; whoever is
missing is waited for. A child that dies or hangs is restarted; the others go on.

Order of stopping, on SIGTERM, SIGINT or SIGHUP:

    1. A node of several that has served leaves: its controller hands the quorum over if it leads
       it, and asks the active controller, heartbeat by heartbeat, to have others lead what this
       node leads (KIP-631's controlled shutdown). All processes go on meanwhile, so that clients
       are told who leads now before a connection is cut. It ends when the controller is told that
       nothing can be moved any more and the others know, or finds nobody to ask; at the latest
       after `controlled.shutdown.timeout.ms` (10 s).
    2. Routers stop accepting and finish what has begun: 5 s for clients to fetch their answers.
    3. Workers sync and close their stores.
    4. The controller ends. The data folder says that all is on the disk (`last_run`).

Who does not end in a round of 2 to 4 is killed after `Patience.stop`. A second signal ends
everything at once. One invariant: when `run` returns no process of the node is left.

One thread, one selector, no event loop library: the supervisor must stay up and small.
"""

import contextlib
import logging
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from odradek.node.child import Child, ChildState, ChildTimeouts, python_command
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.controller.clean_shutdown import record_clean_shutdown
from odradek.node.data_folder import FolderLock, StateFile, adopt_meta_properties
from odradek.node.http_server import HttpServer, Respond
from odradek.node.observability import (
    CollectMetrics,
    Sample,
    StopProcess,
    configure_logging,
    exposition,
    resident_bytes,
)

log = logging.getLogger(__name__)

EXIT_FAILED = 1
STATE_NAME = "node.json"
_CONFIG_NAME = "config.json"
_TICK_S = 1.0
FIRST_START_FAILURES_MAX = 3
_METRICS_S = 1.0
_ROUTERS, _WORKERS, _CONTROLLER = range(3)
"""The rounds of stopping."""
_WORKER = "worker-"
"""What the names of workers begin with."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """What `node.json` in the data folder says while the node can answer clients."""

    bootstrap: str
    pid: int
    children: dict[str, int]
    http: str = ""


class ChildPlan(NamedTuple):
    """A child to be: its name, its command, and in which round it is stopped."""

    name: str
    command: list[str]
    stop_round: int


def plan_children(config: NodeConfig, config_path: Path) -> list[ChildPlan]:
    """The processes of a node. Rounds of stopping: routers, workers, controller."""
    path = str(config_path)
    controller = python_command("odradek.node.controller.process", path)
    plans = [ChildPlan("controller", controller, _CONTROLLER)]
    for index in range(config.worker_count):
        command = python_command("odradek.node.worker.process", path, str(index))
        plans.append(ChildPlan(f"{_WORKER}{index}", command, _WORKERS))
    for index in range(config.router_count):
        command = python_command("odradek.node.router.process", path, str(index))
        plans.append(ChildPlan(f"router-{index}", command, _ROUTERS))
    return plans


def run(
    config: NodeConfig,
    *,
    formats: bool = True,
    on_ready: Callable[[NodeState], None] = lambda _state: None,
    plan: Callable[[NodeConfig, Path], Iterable[ChildPlan]] = plan_children,
    patience: ChildTimeouts | None = None,
) -> int:
    """Run a node until it is told to stop; the exit code of the process.

    `formats`: make the data folder a node's if it is none yet. `on_ready` is called once, when all
    processes are. Raises ConfigurationError before anything is started if the configuration, the
    data folder or the addresses will not do.
    """
    configure_logging(config, "supervisor")
    if config.settings_without_effect:
        log.warning("without effect here: %s", ", ".join(config.settings_without_effect))
    try:
        config.data_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"data={config.data}: cannot make this folder: {error.strerror}"
        ) from error
    lock = FolderLock(config.data_folder)
    try:
        config = adopt_meta_properties(config, formats=formats)
        for listener in config.listeners:
            check_address(listener)
        if config.is_clustered:
            peers = ListenerConfig(name="peers", host=config.peer_host, port=config.peer_port)
            check_address(peers, key="peer.listen")
        supervisor = Supervisor(
            config, plan=plan, patience=patience or ChildTimeouts(), on_ready=on_ready
        )
        return supervisor.run()
    finally:
        lock.release()


class Supervisor:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        plan: Callable[[NodeConfig, Path], Iterable[ChildPlan]],
        patience: ChildTimeouts,
        on_ready: Callable[[NodeState], None],
    ) -> None:
        self._config = config
        self._on_ready = on_ready
        self._began_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._has_been_ready = False
        self._exit_code = 0
        self._signals: list[int] = []
        # None while the node serves; then the round of stopping that is on.
        self._stop_round: int | None = None
        self._leave_deadline: float | None = None
        """While others take over: when that is given up."""
        self._regrouped: NodeConfig | None = None
        """While the workers end for others to take their place: what these begin with."""
        self._plan = plan
        self._patience = patience
        self._config_path = config.run_folder / _CONFIG_NAME
        self._state_file = StateFile(config.data_folder / STATE_NAME)
        plans = list(plan(config, self._config_path))
        self._children = [self._child(plan) for plan in plans]
        self._rounds = {plan.name: plan.stop_round for plan in plans}
        self._scrapes: list[_Scrape] = []
        self._http: HttpServer | None = None
        if config.http_port is not None:
            routes = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
            self._http = HttpServer(
                self._selector,
                host=config.http_host,
                port=config.http_port,
                routes=routes,
                clock=time.monotonic,
            )

    def _child(self, plan: ChildPlan) -> Child:
        return Child(plan.name, plan.command, self._patience, self._selector, self._on_child_ready)

    def run(self) -> int:
        """Until everything has ended."""
        self._state_file.remove()
        self._prepare_run_folder()
        restore = self._take_signals()
        try:
            last = time.monotonic()
            for child in self._children:
                child.start(last)
            while not all(child.state is ChildState.ENDED for child in self._children):
                now = time.monotonic()
                if now - last > 5 * _TICK_S:
                    for child in self._children:
                        child.extend_deadline(now)
                last = now
                self._turn(now)
            workers = [child for child in self._children if self._rounds[child.name] == _WORKERS]
            if workers and all(child.exit_code == 0 for child in workers):
                record_clean_shutdown(self._config.data_folder)
        finally:
            for child in self._children:
                child.kill()
            for child in self._children:
                child.wait()
            restore()
            if self._http is not None:
                self._http.close()
            self._selector.close()
            self._leave()
        return self._exit_code

    # -- the loop ---------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        due = min(child.deadline for child in self._children if child.state is not ChildState.ENDED)
        due = min([due, *(scrape.deadline for scrape in self._scrapes)])
        if self._leave_deadline is not None:
            due = min(due, self._leave_deadline)
        for key, _ in self._selector.select(max(0.0, min(_TICK_S, due - now))):
            key.data()
        now = time.monotonic()
        for child in self._children:
            self._check_child(child, now)
        for scrape in list(self._scrapes):
            if now >= scrape.deadline:
                scrape.finish()
        if self._http is not None:
            self._http.sweep()
        self._heed_signals()
        if self._stop_round is not None:
            self._stop_next(now)
        else:
            self._regroup(now)

    def _check_child(self, child: Child, now: float) -> None:
        if child.reap(now):
            self._on_death(child)
        if child.state is not ChildState.ENDED and now >= child.deadline:
            child.on_deadline(now)

    def _on_death(self, child: Child) -> None:
        is_stopping = self._stop_round is not None and self._leave_deadline is None
        if is_stopping and child.state is ChildState.WAITING:
            child.state = ChildState.ENDED
        elif not self._has_been_ready and child.failures_before_ready >= FIRST_START_FAILURES_MAX:
            log.critical(
                "%s failed %d times before the node was ready once: giving up, see above",
                child.name,
                child.failures_before_ready,
            )
            self._exit_code = EXIT_FAILED
            self._begin_stop()
        for scrape in list(self._scrapes):
            scrape.without(child.name)

    def _on_child_ready(self, child: Child) -> None:
        """A child can do its work: the node can, if all others can as well."""
        log.info("%s is ready", child.name)
        self._learn_ports(child)
        if self._leave_deadline is not None:
            child.leave()
        if self._stop_round is None and all(c.state is ChildState.READY for c in self._children):
            state = self._state()
            self._write_state(state)
            if not self._has_been_ready:
                self._has_been_ready = True
                log.info(
                    "node %d of cluster %s serves at %s after %.2f s",
                    self._config.node_id,
                    self._config.cluster_id,
                    state.bootstrap,
                    time.monotonic() - self._began_at,
                )
                self._on_ready(state)

    # -- another number of workers -----------------------------------------------------------------

    def _regroup(self, now: float) -> None:
        """Have as many workers as is wanted: all of them end, with their stores in order, before
        the first of the others opens one. The other processes go on meanwhile."""
        for child in self._children:
            wanted, child.wanted_workers = child.wanted_workers, None
            if wanted is not None and wanted != (self._regrouped or self._config).worker_count:
                log.info("%d workers from now on, not %d", wanted, self._config.worker_count)
                self._regrouped = self._config.with_workers(wanted)
                for worker in self._workers():
                    worker.stop(now, StopProcess())
        if self._regrouped is None or any(w.state is not ChildState.ENDED for w in self._workers()):
            return
        # Ports that a router has told of meanwhile are in the configuration of now.
        self._config = self._config.with_workers(self._regrouped.worker_count)
        self._regrouped = None
        self._config.save_json(self._config_path)
        self._children = [child for child in self._children if not _is_worker(child.name)]
        for plan in self._plan(self._config, self._config_path):
            if _is_worker(plan.name):
                worker = self._child(plan)
                self._rounds[plan.name] = plan.stop_round
                self._children.append(worker)
                worker.start(now)

    def _workers(self) -> list[Child]:
        return [child for child in self._children if _is_worker(child.name)]

    def _learn_ports(self, child: Child) -> None:
        """Port 0 has become a real one: a restarted router must find the same."""
        ports = child.details.get("ports")
        if not isinstance(ports, dict):
            return
        listeners = tuple(
            msgspec.structs.replace(listener, port=ports.get(listener.name, listener.port))
            for listener in self._config.listeners
        )
        if listeners != self._config.listeners:
            self._config = msgspec.structs.replace(self._config, listeners=listeners)
            self._config.save_json(self._config_path)

    # -- stopping ---------------------------------------------------------------------------------

    def _take_signals(self) -> Callable[[], None]:
        """Let signals wake the selector; returns what puts everything back as it was."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        handlers: dict[signal.Signals, object] = {}
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # A terminal that is closed; who wants a node to outlive it uses nohup.
            numbers.append(signal.SIGHUP)
        for number in numbers:
            handlers[number] = signal.signal(number, self._on_signal)
        wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)

        def woken() -> None:
            with contextlib.suppress(BlockingIOError):
                reading.recv(4096)

        self._selector.register(reading, selectors.EVENT_READ, woken)

        def restore() -> None:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned
            self._selector.unregister(reading)
            reading.close()
            writing.close()

        return restore

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _heed_signals(self) -> None:
        while self._signals:
            name = signal.Signals(self._signals.pop(0)).name
            if self._stop_round is None:
                log.info("%s: the node stops; a second signal ends it at once", name)
                self._begin_stop()
            else:
                log.warning("%s again: everything is ended at once", name)
                self._leave_deadline = None
                for child in self._children:
                    child.kill()

    def _begin_stop(self) -> None:
        if self._stop_round is None:
            self._stop_round = -1
            self._state_file.remove()
            bound_s = self._config.controlled_shutdown_ms / 1000
            if self._config.is_clustered and self._has_been_ready and bound_s:
                self._leave_deadline = time.monotonic() + bound_s
                for child in self._children:
                    child.leave()

    def _is_leaving(self, now: float) -> bool:
        """Whether other nodes are still taking over."""
        if self._leave_deadline is None:
            return False
        has_left = any(child.can_shut_down for child in self._children)
        if not has_left and now < self._leave_deadline:
            return True
        self._leave_deadline = None
        if not has_left:
            log.warning(
                "other nodes have not taken over all that is led here in %.1f s"
                " (controlled.shutdown.timeout.ms): the node stops all the same",
                self._config.controlled_shutdown_ms / 1000,
            )
        return False

    def _stop_next(self, now: float) -> None:
        """Stop the processes of the next round when those of the last have ended."""
        assert self._stop_round is not None
        if self._is_leaving(now):
            return
        while all(
            child.state is ChildState.ENDED
            for child in self._children
            if self._rounds[child.name] <= self._stop_round
        ):
            if self._stop_round >= max(self._rounds.values()):
                return
            self._stop_round += 1
            for child in self._children:
                if self._rounds[child.name] == self._stop_round:
                    child.stop(now, StopProcess())

    # -- what others find on the disk -------------------------------------------------------------

    def _prepare_run_folder(self) -> None:
        """Make the run folder anew: what is in it belonged to an earlier run of this node."""
        folder = self._config.run_folder
        try:
            if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
                raise ConfigurationError(
                    f"run={folder}: it belongs to somebody else; choose another"
                )
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)
            self._config.save_json(self._config_path)
        except OSError as error:
            raise ConfigurationError(f"run={folder}: cannot make it: {error.strerror}") from error

    def _state(self) -> NodeState:
        listener = self._config.listeners[0]
        host = listener.host if listener.host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        return NodeState(
            bootstrap=f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}",
            pid=os.getpid(),
            children={child.name: child.pid for child in self._children if child.pid is not None},
            http=f"{self._config.http_host}:{self._http.port}" if self._http is not None else "",
        )

    def _write_state(self, state: NodeState) -> None:
        try:
            self._state_file.write(msgspec.json.encode(state))
        except OSError as error:
            # A full disk must not take the node down.
            log.warning("cannot write %s: %s", STATE_NAME, error.strerror)

    def _leave(self) -> None:
        self._state_file.remove()
        shutil.rmtree(self._config.run_folder, ignore_errors=True)

    # -- probes -----------------------------------------------------------------------------------

    def _livez(self, respond: Respond) -> None:
        respond(200, "alive\n")

    def _readyz(self, respond: Respond) -> None:
        text = "".join(f"{child.name} {child.state.name.lower()}\n" for child in self._children)
        is_ready = self._stop_round is None and all(
            child.state is ChildState.READY for child in self._children
        )
        respond(200 if is_ready else 503, text)

    def _metrics(self, respond: Respond) -> None:
        deadline = time.monotonic() + _METRICS_S
        scrape = _Scrape(self._own_samples(), deadline, respond, self._scrapes)
        for child in self._children:
            scrape.ask(child)
        scrape.finish_if_complete()

    def _own_samples(self) -> list[Sample]:
        samples = [
            Sample("odradek_process_cpu_seconds", "counter", "CPU time used", time.process_time()),
            Sample("odradek_process_resident_bytes", "gauge", "Resident memory", resident_bytes()),
            Sample(
                "odradek_uptime_seconds",
                "gauge",
                "Time since the node was started",
                time.monotonic() - self._began_at,
            ),
        ]
        for child in self._children:
            label = (("child", child.name),)
            samples.append(
                Sample(
                    "odradek_child_restarts",
                    "counter",
                    "How often the supervisor restarted this process",
                    child.restart_count,
                    label,
                )
            )
            samples.append(
                Sample(
                    "odradek_child_ready",
                    "gauge",
                    "1 if this process is ready",
                    child.state is ChildState.READY,
                    label,
                )
            )
        return samples


def _is_worker(name: str) -> bool:
    return name.startswith(_WORKER)


class _Scrape:
    """One request for metrics: waits for the children's, for a moment."""

    def __init__(
        self, own: list[Sample], deadline: float, respond: Respond, running: "list[_Scrape]"
    ) -> None:
        self.deadline = deadline
        self._samples: dict[str, list[Sample]] = {"supervisor": own}
        self._missing: set[str] = set()
        self._respond = respond
        self._running = running
        running.append(self)

    def ask(self, child: Child) -> None:
        def on_samples(samples: list[Sample]) -> None:
            self._samples[child.name] = samples
            self.without(child.name)

        if child.collect(on_samples, CollectMetrics()):
            self._missing.add(child.name)

    def without(self, name: str) -> None:
        """Wait no more for this process."""
        self._missing.discard(name)
        self.finish_if_complete()

    def finish_if_complete(self) -> None:
        if not self._missing:
            self.finish()

    def finish(self) -> None:
        """Answer with what is there."""
        if self in self._running:
            self._running.remove(self)
            self._respond(200, exposition(self._samples))


def check_address(listener: ListenerConfig, key: str = "listeners") -> None:
    """Raise ConfigurationError if the listener's address cannot be bound: better now than in a
    child."""
    host = listener.host or "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigurationError(
            f"{key}={listener.name}://{listener.host}:{listener.port}: {error.strerror};"
            " choose another address or stop the process that uses it"
        ) from error
