"""The first process of a node: starts the other processes, restarts them, and stops them in order.

All children start at once and find each other by their sockets in the run folder. A child that dies
or hangs is restarted; the others continue. Children are replaced while the node runs when its
configuration changes in what they read at their start only (process_replacement.py).

Order of shutdown, on SIGTERM, SIGINT or SIGHUP:

    1. Controlled shutdown (KIP-631), in a cluster and if the node has been ready: the controller
       transfers leadership of the quorum and requests from the active controller, by heartbeats,
       to move the partition leaders. All processes keep serving, so that clients learn of the
       new leaders before their connections are closed. It ends when nothing is left to move in
       this node's image, when there is no quorum, or after `controlled.shutdown.timeout.ms`.
    2. Routers answer what waits, serve until clients have turned to other nodes (3.5 s at most),
       and finish: see node/router/graceful_stop.py.
    3. Workers sync and close their stores.
    4. The controller ends. The clean shutdown is recorded (`clean_shutdown`).

A process that does not end in a round of 2 to 4 is killed after `ChildTimeouts.stop`. A second
signal kills everything at once. Invariant: when `run` returns, no process of the node is left.

One thread, one selector, no event loop library: the supervisor has to be small and to stay up.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.node.address_check import check_address
from odradek.node.child import Child, ChildPlan, ChildState, ChildTimeouts, python_command
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.config_watch import ConfigFileWatch
from odradek.node.configuration_rollout import ConfigurationRollout
from odradek.node.configuration_updates import ConfigurationUpdates
from odradek.node.controller.clean_shutdown import record_clean_shutdown
from odradek.node.data_folder import FolderLock, StateFile, adopt_meta_properties
from odradek.node.listener_security import check_tls, warn_of_open_listeners
from odradek.node.orphans import reap_orphans
from odradek.node.override_updates import OverrideUpdates
from odradek.node.probe_server import ProbeServer
from odradek.node.process_replacement import ProcessReplacement
from odradek.node.storage_health import NodeStorage
from odradek.node.structured_log import (
    configure_logging,
    finish_logging,
    get_logger,
    say_repeated_lines,
)

log = get_logger(__name__)

EXIT_FAILED = 1
STATE_NAME = "node.json"
_CONFIG_NAME = "config.json"
_CANDIDATE_NAME = "candidate.json"
_TICK_S = 1.0
FIRST_START_FAILURES_MAX = 3
_ROUTERS, _WORKERS, _CONTROLLER = range(3)
"""The rounds of the shutdown."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `node.json` in the data folder while the node serves clients."""

    bootstrap: str
    pid: int
    children: dict[str, int]
    http: str = ""


def plan_children(config: NodeConfig, config_path: Path) -> list[ChildPlan]:
    """The processes of a node. They stop in this order: routers, workers, controller."""
    path = str(config_path)
    controller = python_command("odradek.node.controller.process", path)
    plans = [ChildPlan("controller", controller, _CONTROLLER)]
    for index in range(config.worker_count):
        command = python_command("odradek.node.worker.process", path, str(index))
        plans.append(ChildPlan(f"worker-{index}", command, _WORKERS))
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
    timeouts: ChildTimeouts | None = None,
    watch: ConfigFileWatch | None = None,
) -> int:
    """Run a node until a signal stops it; the exit code of the process.

    `formats`: format the data folder if it is not formatted. `on_ready` is called once, when all
    processes are ready. `watch` watches the configuration file, if there is one. Raises
    ConfigurationError before anything is started if the configuration, the data folder or an
    address is unusable.
    """
    configure_logging(config, "supervisor")
    if config.settings_without_effect:
        log.warning("settings have no effect", key=", ".join(config.settings_without_effect))
    try:
        config.data_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"data={config.data}: cannot create this folder: {error.strerror}"
        ) from error
    lock = FolderLock(config.data_folder)
    try:
        config = adopt_meta_properties(config, formats=formats)
        configure_logging(config, "supervisor")  # with the node's id
        for listener in config.listeners:
            check_address(listener)
        check_tls(config)
        # What was set while the cluster ran is not known yet.
        layer = ConfigLayer(ConfigSource.STATIC_BROKER, config.broker_configs)
        warn_of_open_listeners(config.listeners, (layer,))
        if config.is_clustered:
            peers = ListenerConfig(name="peers", host=config.peer_host, port=config.peer_port)
            check_address(peers, key="peer.listen")
        supervisor = Supervisor(
            config,
            plan=plan,
            timeouts=timeouts or ChildTimeouts(),
            on_ready=on_ready,
            watch=watch,
        )
        return supervisor.run()
    finally:
        finish_logging()
        lock.release()


class Supervisor:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        plan: Callable[[NodeConfig, Path], Iterable[ChildPlan]],
        timeouts: ChildTimeouts,
        on_ready: Callable[[NodeState], None],
        watch: ConfigFileWatch | None = None,
    ) -> None:
        self._config = config
        self._on_ready = on_ready
        self._began_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._has_been_ready = False
        self._exit_code = 0
        self._signals: list[int] = []
        # The current round of the shutdown; None while the node serves.
        self._stop_round: int | None = None
        self._controlled_shutdown_deadline: float | None = None
        """During a controlled shutdown: when it times out."""
        self._resized_config: NodeConfig | None = None
        """While all workers stop to be replaced: the configuration with the new number of them."""
        self._plan = plan
        self._timeouts = timeouts
        self._config_path = config.run_folder / _CONFIG_NAME
        self._state_file = StateFile(config.data_folder / STATE_NAME)
        self._rollout = ConfigurationRollout(lambda: self._children)
        self._replacement = ProcessReplacement(
            lambda: self._children,
            make_child=self._child,
            plan=lambda config: plan(config, self._config_path),
            candidate_path=config.run_folder / _CANDIDATE_NAME,
        )
        self._overrides = OverrideUpdates(
            self._rollout,
            self._replacement,
            own=lambda: config if watch is None else watch.accepted,
            current=lambda: self._config,
            adopt=self._adopt,
        )
        self._updates = ConfigurationUpdates(
            self._rollout,
            self._replacement,
            watch,
            current=lambda: self._config,
            adopt=self._adopt,
            overrides=lambda: self._overrides.applied,
        )
        self._children = [self._child(each) for each in plan(config, self._config_path)]
        self._storage = NodeStorage(config.data_folder)
        self._probes = ProbeServer(
            self._selector,
            config,
            children=lambda: self._children,
            is_stopping=lambda: self._stop_round is not None,
            hindrances=self._hindrances,
            problems=lambda: self._updates.problem_text + self._overrides.problem_text,
        )
        self._register_metrics()

    def _child(self, plan: ChildPlan) -> Child:
        child = Child(plan, self._timeouts, self._selector, self._on_child_ready)
        child.on_storage_report = self._on_storage_report
        child.on_details = self._on_details
        child.on_configuration_applied = self._rollout.on_applied
        child.on_node_settings = self._overrides.want
        child.on_settings_request = self._overrides.ask
        child.on_log_levels_request = self._updates.change_log_levels
        return child

    def run(self) -> int:
        """Run until all processes have ended."""
        self._state_file.remove()
        self._prepare_run_folder()
        restore = self._install_signal_handlers()
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
            workers = self._workers()
            if workers and all(child.exit_code == 0 for child in workers):
                record_clean_shutdown(self._config.data_folder)
        finally:
            self._replacement.abandon()
            for child in self._children:
                child.kill()
            for child in self._children:
                child.wait()
            restore()
            self._probes.close()
            self._selector.close()
            self._state_file.remove()
            shutil.rmtree(self._config.run_folder, ignore_errors=True)
        return self._exit_code

    # -- the loop ---------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        say_repeated_lines()
        due = min(child.deadline for child in self._children if child.state is not ChildState.ENDED)
        due = min(due, self._probes.next_deadline)
        if self._controlled_shutdown_deadline is not None:
            due = min(due, self._controlled_shutdown_deadline)
        for key, _ in self._selector.select(max(0.0, min(_TICK_S, due - now))):
            key.data()
        now = time.monotonic()
        reap_orphans({child.pid for child in (*self._children, *self._replacement.successors)})
        for child in self._children:
            if child.reap(now):
                self._on_exit(child)
            if child.state is not ChildState.ENDED and now >= child.deadline:
                child.on_deadline(now)
        self._probes.turn(now)
        self._handle_signals()
        if self._stop_round is not None:
            self._stop_next(now)
        else:
            # One change of the processes at a time.
            if not self._replacement.is_active:
                self._resize_workers(now)
            if self._resized_config is None:
                if not self._replacement.is_active:
                    self._updates.tick(now)
                if not self._replacement.is_active:
                    self._overrides.tick(now)
                self._replacement.turn(now)

    def _on_exit(self, child: Child) -> None:
        is_stopping = self._stop_round is not None and self._controlled_shutdown_deadline is None
        if is_stopping and child.state is ChildState.WAITING:
            child.state = ChildState.ENDED
        elif not self._has_been_ready and child.failures_before_ready >= FIRST_START_FAILURES_MAX:
            log.critical(
                "a process of this node failed before the node was ready, and the node gives up",
                child=child.name,
                count=child.failures_before_ready,
                action="see the errors of the process above",
            )
            self._exit_code = EXIT_FAILED
            self._begin_stop()
        self._probes.on_exit(child.name)
        self._rollout.on_exit(child.name)
        if child.storage_problem:
            self._send_storage_state()

    def _on_details(self, child: Child) -> None:
        """A router has other listeners than before."""
        self._keep_ports(child)
        if self._has_been_ready and self._stop_round is None:
            self._write_state(self._state())

    def _on_storage_report(self, child: Child) -> None:
        if self._storage.update(child.name, child.storage_problem):
            self._send_storage_state()
        self._updates.fail_log_dirs(child.failed_log_dirs)

    def _send_storage_state(self) -> None:
        """Tell the routers which processes cannot write their files."""
        ended = [child.name for child in self._children if child.state is ChildState.WAITING]
        for child in self._children:
            if child.stop_round == _ROUTERS:
                child.send_storage_state(self._storage.state(ended))

    def _on_child_ready(self, child: Child) -> None:
        """A child is ready. The node is ready when all of them are."""
        log.info("a process of this node is ready", child=child.name)
        if self._storage.problem:
            self._send_storage_state()
        self._keep_ports(child)
        if self._controlled_shutdown_deadline is not None:
            child.begin_controlled_shutdown()
        if self._stop_round is None and all(c.state is ChildState.READY for c in self._children):
            state = self._state()
            self._write_state(state)
            if not self._has_been_ready:
                self._has_been_ready = True
                log.info(
                    "the node is ready",
                    cluster_id=self._config.cluster_id,
                    address=state.bootstrap,
                    duration_ms=int((time.monotonic() - self._began_at) * 1000),
                )
                self._on_ready(state)

    # -- another number of workers -----------------------------------------------------------------

    def _resize_workers(self, now: float) -> None:
        """Change the number of workers as the controller requests: all old workers close their
        stores before the first new one opens one. The other processes keep running."""
        for child in self._children:
            requested, child.requested_workers = child.requested_workers, None
            if (
                requested is not None
                and requested != (self._resized_config or self._config).worker_count
            ):
                log.info(
                    "the number of workers changes",
                    count=requested,
                    former_count=self._config.worker_count,
                )
                self._resized_config = self._config.with_workers(requested)
                for worker in self._workers():
                    worker.stop(now)
        if self._resized_config is None or any(
            w.state is not ChildState.ENDED for w in self._workers()
        ):
            return
        # The current configuration may have got ports from a router meanwhile.
        self._config = self._config.with_workers(self._resized_config.worker_count)
        self._resized_config = None
        self._config.save_json(self._config_path)
        self._children = [child for child in self._children if child.stop_round != _WORKERS]
        for plan in self._plan(self._config, self._config_path):
            if plan.stop_round == _WORKERS:
                worker = self._child(plan)
                self._children.append(worker)
                worker.start(now)
        self._storage.keep(child.name for child in self._children)
        self._send_storage_state()

    def _workers(self) -> list[Child]:
        return [child for child in self._children if child.stop_round == _WORKERS]

    def _keep_ports(self, child: Child) -> None:
        """Keep the ports that a router bound for port 0: a restarted router must use the same."""
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

    # -- the configuration ---------------------------------------------------------------------

    def _adopt(self, config: NodeConfig) -> None:
        """Make this the node's configuration. Raises ConfigurationError if http.listen cannot be
        bound, OSError if the disk is full; then nothing has changed."""
        is_moved = self._probes.follow(self._config, config)
        config.save_json(self._config_path)
        self._config = config
        configure_logging(config, "supervisor")
        if is_moved and self._has_been_ready:
            self._write_state(self._state())

    # -- stopping ---------------------------------------------------------------------------------

    def _install_signal_handlers(self) -> Callable[[], None]:
        """Have signals wake the selector; returns a function that undoes this."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        handlers: dict[signal.Signals, object] = {}
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # The terminal was closed. With nohup, the node continues.
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

    def _handle_signals(self) -> None:
        while self._signals:
            name = signal.Signals(self._signals.pop(0)).name
            if self._stop_round is None:
                log.info(
                    "shutting down", signal=name, action="a second signal kills the node at once"
                )
                self._begin_stop()
            else:
                log.warning("a second signal: all processes are killed", signal=name)
                self._controlled_shutdown_deadline = None
                for child in self._children:
                    child.kill()

    def _begin_stop(self) -> None:
        if self._stop_round is None:
            self._stop_round = -1
            self._replacement.abandon()
            self._state_file.remove()
            bound_s = self._config.controlled_shutdown_ms / 1000
            if self._config.is_clustered and self._has_been_ready and bound_s:
                self._controlled_shutdown_deadline = time.monotonic() + bound_s
                for child in self._children:
                    child.begin_controlled_shutdown()

    def _is_in_controlled_shutdown(self, now: float) -> bool:
        """Whether the controlled shutdown is still under way."""
        if self._controlled_shutdown_deadline is None:
            return False
        is_done = any(child.can_shut_down for child in self._children)
        if not is_done and now < self._controlled_shutdown_deadline:
            return True
        self._controlled_shutdown_deadline = None
        if not is_done:
            log.warning(
                "controlled shutdown timed out (controlled.shutdown.timeout.ms): stopping"
                " with partitions that this node still leads",
                duration_ms=self._config.controlled_shutdown_ms,
            )
        return False

    def _stop_next(self, now: float) -> None:
        """Stop the processes of the next round when those of the current one have ended."""
        assert self._stop_round is not None
        if self._is_in_controlled_shutdown(now):
            return
        while all(
            child.state is ChildState.ENDED
            for child in self._children
            if child.stop_round <= self._stop_round
        ):
            if self._stop_round == _CONTROLLER:
                return
            self._stop_round += 1
            for child in self._children:
                if child.stop_round == self._stop_round:
                    child.stop(now)

    # -- files ------------------------------------------------------------------------------------

    def _prepare_run_folder(self) -> None:
        """Recreate the run folder: its content is from an earlier run."""
        folder = self._config.run_folder
        try:
            if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
                raise ConfigurationError(
                    f"run={folder}: this folder belongs to another user. Choose another one."
                )
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)
            self._config.save_json(self._config_path)
        except OSError as error:
            raise ConfigurationError(
                f"run={folder}: cannot create this folder: {error.strerror}"
            ) from error

    def _state(self) -> NodeState:
        listener = self._config.listeners[0]
        host = listener.host if listener.host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        bootstrap = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        for child in self._children:
            # A router's listeners may be others than those of the node's own configuration.
            if child.details.get("bootstrap"):
                bootstrap = str(child.details["bootstrap"])
        http_port = self._probes.port
        return NodeState(
            bootstrap=bootstrap,
            pid=os.getpid(),
            children={child.name: child.pid for child in self._children if child.pid is not None},
            http="" if http_port is None else f"{self._config.http_host}:{http_port}",
        )

    def _write_state(self, state: NodeState) -> None:
        try:
            self._state_file.write(msgspec.json.encode(state))
        except OSError as error:
            # A full disk must not stop the node.
            log.warning(
                "the state of the node cannot be written", path=STATE_NAME, reason=error.strerror
            )

    # -- probes -----------------------------------------------------------------------------------

    def _hindrances(self) -> str:
        problem = self._storage.problem
        return f"{self._config.data_folder} cannot be written: {problem}\n" if problem else ""

    def _register_metrics(self) -> None:
        metrics = self._probes.metrics
        self._updates.register_metrics(metrics)
        metrics.read("odradek_config_settings_refused", lambda: bool(self._overrides.problem_text))
        metrics.read("odradek_processes_replaced_total", lambda: self._replacement.replaced_count)
        metrics.read(
            "odradek_offline_log_directories",
            lambda: bool(self._storage.problem) + self._updates.offline_log_dir_count,
        )
        metrics.read("odradek_storage_problems_total", lambda: self._storage.problem_count)
