"""Changes the configuration of a running node: as its file changes, and as clients ask.

    what has changed in the file                         follows
    ---------------------------------------------------------------------------------------------
    keys of brokers, log.level, log.format, profile,     all processes apply it
    controlled.shutdown.timeout.ms
    durability                                           so they do, the controller first
    workers                                              the controller has them replaced
    listeners, listener.security.protocol.map            the router opens and closes them, and the
                                                         controller registers the broker again
    advertised.listeners, broker.rack                    the controller registers the broker again
    http.listen                                          the supervisor listens there
    cluster.secret, or the file of the secrets           all processes use the new secrets
    what START_FIELDS and START_KEYS name                processes that read it at their start only
                                                         are replaced: process_replacement.py
    anything else                                        a warning: it needs a restart

A file is taken as a whole or not at all: if it is not valid, its key stores cannot be used, an
address cannot be bound, or a process does not start with it, the node keeps what it has. Owned by
the supervisor.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.node_settings import RESTART_REASONS
from odradek.node.address_check import check_address
from odradek.node.child import Child
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.config_watch import ConfigFileWatch
from odradek.node.configuration_rollout import ConfigurationRollout
from odradek.node.data_folder import check_meta_properties, read_meta_properties
from odradek.node.listener_security import check_tls
from odradek.node.log_levels import merged_levels
from odradek.node.metrics.registry import Metrics
from odradek.node.node_overrides import with_overrides
from odradek.node.observability import ChangeLogLevels
from odradek.node.process_replacement import ProcessReplacement
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

_LIVE_FIELDS: Final = (
    "controlled_shutdown_ms",
    "durability",
    "http_host",
    "http_port",
    "log_format",
    "log_level",
    "profile",
    "protocol_map",
    "sources",
)
LIVE_KEYS: Final = frozenset({"broker.rack", "delegation.token.secret.key"})
"""Keys of brokers that the file may change, though DescribeConfigs calls them read-only: another
broker has no say in them."""
_CONTROLLER, _WORKER, _ROUTER = "controller", "worker", "router"
START_FIELDS: Final = {
    "arena_bytes": {_ROUTER},
    "join": {_CONTROLLER},
    "peer_advertised": {_CONTROLLER},
    "peer_host": {_CONTROLLER, _WORKER},
    "peer_port": {_CONTROLLER, _WORKER},
    "peers": {_CONTROLLER},
    "processor_placement": {_WORKER, _ROUTER},
}
"""Fields of NodeConfig that processes of these kinds read only when they start."""
START_KEYS: Final = {"audit.log.path": {_ROUTER}}
"""The same of keys of brokers."""
FIXED_FIELDS: Final = ("cluster_id", "router_count", "store_count")
"""Fields of which only one value is valid for this data folder and this release."""
RESTART_FIELDS: Final = {
    "data": "data",
    "further_log_dirs": "log.dirs",
    "node_id": "node.id",
    "run": "run",
}
"""Fields of NodeConfig that only a start of the node applies, and their keys."""


def updated_config(
    running: NodeConfig, before: NodeConfig, after: NodeConfig
) -> tuple[NodeConfig, list[str]]:
    """The configuration of a running node when its file changes from `before` to `after`, and the
    keys whose change needs a restart. `before` is what the node was started with; `running` has
    what it has found out since, as the ports that it has bound."""
    restart = {
        key for name, key in RESTART_FIELDS.items() if getattr(before, name) != getattr(after, name)
    }
    changes = {name: getattr(after, name) for name in (*_LIVE_FIELDS, *START_FIELDS)}
    if bool(running.cluster_secrets) == bool(after.cluster_secrets):
        changes |= {"cluster_secrets": after.cluster_secrets, "secret_file": after.secret_file}
    else:
        # Whether the traffic between nodes is encrypted at all is fixed.
        restart.add("cluster.secret")
    static = {}
    for key in {**before.static_configs, **after.static_configs}:
        definition = broker_config(key)
        is_fixed = definition is not None and definition.scope is ConfigScope.READ_ONLY
        old, new = before.static_configs.get(key), after.static_configs.get(key)
        if is_fixed and key not in LIVE_KEYS and key not in START_KEYS and old != new:
            if definition is not None and definition.has_effect:
                restart.add(key)
            new = old
        if new is not None:
            static[key] = new
    ports = {(each.name, each.host): each.port for each in running.listeners}
    listeners = tuple(
        each
        if each.port
        else msgspec.structs.replace(each, port=ports.get((each.name, each.host), 0))
        for each in after.listeners
    )
    if (running.configured_worker_count or running.worker_count) != after.worker_count:
        changes["configured_worker_count"] = after.worker_count
    config = msgspec.structs.replace(running, static_configs=static, listeners=listeners, **changes)
    return config, sorted(restart)


def replaced_kinds(before: NodeConfig, after: NodeConfig) -> set[str]:
    """The kinds of processes that have to start anew for this change."""
    kinds: set[str] = set()
    for name, of_field in START_FIELDS.items():
        if getattr(before, name) != getattr(after, name):
            kinds |= of_field
    for key, of_key in START_KEYS.items():
        if before.static_configs.get(key) != after.static_configs.get(key):
            kinds |= of_key
    return kinds


def _check_listeners(before: NodeConfig, after: NodeConfig) -> None:
    """ConfigurationError if the router cannot have the listeners of the changed file."""
    bound = {(each.host, each.port) for each in before.listeners}
    protocols = {each.name: each.security_protocol for each in before.listeners}
    for each in after.listeners:
        if protocols.get(each.name, each.security_protocol) != each.security_protocol:
            # Kafka's text.
            raise ConfigurationError(
                f"Security protocol cannot be updated for existing listener {each.name}"
            )
        if (each.host, each.port) not in bound:
            check_address(each, wait_s=0)


def _check_peer_ports(before: NodeConfig, after: NodeConfig) -> None:
    """ConfigurationError if controller or workers cannot listen for other nodes as in `after`."""
    if after.is_clustered and before.peer_port != after.peer_port:
        for port in (after.peer_port, *map(after.worker_port, range(after.worker_count))):
            peers = ListenerConfig(name="peers", host=after.peer_host, port=port)
            check_address(peers, key="peer.listen", wait_s=0)


def _check_identity(running: NodeConfig, after: NodeConfig) -> None:
    """ConfigurationError if the data folder is another node's by this configuration."""
    properties = read_meta_properties(running.data_folder)
    if properties is not None and after.data == running.data:
        check_meta_properties(running.data_folder, properties, after)


def _log_effect() -> None:
    log.info("the changed configuration file is in effect")


class ConfigurationUpdates:
    """See the module's docstring.

    `current` is the node's configuration. `adopt` makes another one the node's, on disk and in the
    supervisor. It raises OSError if the disk is full and ConfigurationError if http.listen cannot
    be bound; then nothing has happened. `overrides` are the settings that the file does not change,
    because they are set through the cluster.
    """

    def __init__(
        self,
        rollout: ConfigurationRollout,
        replacement: ProcessReplacement,
        watch: ConfigFileWatch | None,
        *,
        current: Callable[[], NodeConfig],
        adopt: Callable[[NodeConfig], None],
        overrides: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._overrides = overrides
        self._rollout = rollout
        self._replacement = replacement
        self._watch = watch
        self._current = current
        self._adopt = adopt
        self._started_with = watch.accepted if watch is not None else None

    def tick(self, now: float) -> None:
        """Look at the file if it is time. `now` is in seconds."""
        watch = self._watch
        if watch is None:
            return
        after = watch.poll(now)
        if after is not None:
            self._apply(watch, after)
        config = self._current()
        if watch.problem != config.file_problem:
            # For those that ask a router.
            with suppress(OSError):
                self._adopt(msgspec.structs.replace(config, file_problem=watch.problem))
                self._rollout.begin(lambda: None)

    def _apply(self, watch: ConfigFileWatch, after: NodeConfig) -> None:
        before = self._current()

        def on_end(problem: str) -> None:
            if problem:
                watch.refuse(ConfigurationError(problem))
            else:
                self._accept(watch, after)
                _log_effect()

        try:
            config = self._updated(after)
            kinds = replaced_kinds(before, config)
            _check_identity(before, after)
            _check_listeners(before, config)
            _check_peer_ports(before, config)
            check_tls(config)
            if kinds:
                self._replacement.begin(
                    config,
                    kinds,
                    adopt=lambda: self._adopt_and_tell(before, self._updated(after)),
                    revert=lambda: self._revert(before, config),
                    on_end=on_end,
                )
            else:
                self._adopt_and_tell(before, config, _log_effect)
                self._accept(watch, after)
        except ConfigurationError as error:
            watch.refuse(error)
        except OSError as error:
            watch.refuse(ConfigurationError(f"it cannot be stored: {error.strerror}"))

    def _updated(self, after: NodeConfig) -> NodeConfig:
        """The configuration as it is now, with what the file has. Raises ConfigurationError if that
        contradicts what is set through the cluster."""
        assert self._started_with is not None
        config, restart_keys = updated_config(self._current(), self._started_with, after)
        config = with_overrides(config, after, self._overrides())
        return msgspec.structs.replace(config, file_problem="", restart_keys=tuple(restart_keys))

    def _adopt_and_tell(
        self,
        before: NodeConfig,
        config: NodeConfig,
        on_applied: Callable[[], None] = lambda: None,
    ) -> None:
        self._adopt(config)
        self._rollout.begin(
            on_applied,
            controller_first=config.durability is not before.durability,
        )

    def _revert(self, before: NodeConfig, config: NodeConfig) -> None:
        """Undo what `config` has changed, and nothing that has changed since."""
        former = {
            name: getattr(before, name)
            for name in before.__struct_fields__
            if getattr(before, name) != getattr(config, name)
        }
        self._adopt(msgspec.structs.replace(self._current(), **former))
        self._rollout.begin(lambda: None)

    def _accept(self, watch: ConfigFileWatch, after: NodeConfig) -> None:
        watch.accept(after)
        for key in self._current().restart_keys:
            log.warning(
                "a setting has changed in the configuration file and needs a restart",
                key=key,
                reason=RESTART_REASONS.get(key, "it is read when the node starts"),
            )

    def fail_log_dirs(self, failed: Mapping[str, str]) -> None:
        """These log directories have failed: they are offline from now on, for all processes, until
        the node is started again (KIP-112)."""
        config = self._current()
        further = tuple(
            msgspec.structs.replace(each, problem=failed[each.path])
            if each.path in failed and not each.problem
            else each
            for each in config.further_log_dirs
        )
        if further == config.further_log_dirs:
            return
        for before, after in zip(config.further_log_dirs, further, strict=True):
            if before != after:
                log.error(
                    "a log directory is offline, with its replicas, until this node is"
                    " started again",
                    path=after.path,
                    reason=after.problem,
                )
        try:
            self._adopt(msgspec.structs.replace(config, further_log_dirs=further))
        except OSError as error:
            log.error("that a log directory has failed cannot be stored", reason=error.strerror)
            return
        self._rollout.begin(lambda: None)

    def change_log_levels(self, child: Child, message: ChangeLogLevels) -> None:
        """Change levels on all processes, as a client has asked of a router."""
        config = self._current()
        levels = merged_levels(config.log_levels, message.levels)
        try:
            self._adopt(msgspec.structs.replace(config, log_levels=levels))
        except OSError as error:
            problem = f"The levels cannot be stored: {error.strerror}"
            child.answer_log_levels(message.request_id, problem)
            return
        for name, level in message.levels.items():
            log.warning(
                "a log level has changed",
                changed_logger=name,
                new_level=level or "that of its parent",
            )
        self._rollout.begin(lambda: child.answer_log_levels(message.request_id))

    @property
    def offline_log_dir_count(self) -> int:
        """The log directories that have failed, beside the data folder."""
        return sum(bool(each.problem) for each in self._current().further_log_dirs)

    @property
    def problem_text(self) -> str:
        """Lines for probes; empty if there is no problem."""
        config, text = self._current(), ""
        if config.file_problem:
            text += f"the configuration file is refused: {config.file_problem}\n"
        for each in config.further_log_dirs:
            if each.problem:
                text += f"log directory {each.path} is offline: {each.problem}\n"
        if config.restart_keys:
            text += f"a restart is needed for {', '.join(config.restart_keys)}\n"
        return text

    def register_metrics(self, metrics: Metrics) -> None:
        """The metrics of the configuration file."""
        watch = self._watch
        metrics.read(
            "odradek_config_file_changes_total",
            lambda: {
                "applied": 0 if watch is None else watch.applied_count,
                "refused": 0 if watch is None else watch.refused_count,
            },
        )
        metrics.read(
            "odradek_config_file_refused",
            lambda: bool(self._current().file_problem),
        )
        metrics.read(
            "odradek_config_restart_pending",
            lambda: len(self._current().restart_keys),
        )
