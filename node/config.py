"""The static configuration of one node, checked and typed.

`NodeConfig` is immutable and the same in every process of a node: the supervisor writes it to the
run folder, its children read it there. `load` makes it from defaults < file < environment < command
line. One invariant: a NodeConfig that exists is valid. `load` reports all errors at once, each with
the key, the value, its origin and what would be valid.

Keys of brokers are defined in cluster/metadata and go to `static_configs`, the lowest layer of the
cluster's dynamic configuration.
"""

import difflib
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from odradek.cluster.metadata.broker_settings import CORDONED_LOG_DIRS
from odradek.cluster.metadata.config_constraints import cordoned_fault, violated_constraints
from odradek.cluster.metadata.config_definitions import ConfigSource, invalid_value
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, TOPIC_CONFIGS, broker_config
from odradek.cluster.metadata.listener_addresses import (
    SECURITY_PROTOCOLS,
    parse_addresses,
    parse_host_and_port,
    parse_protocol_map,
)
from odradek.cluster.metadata.settings import static_config_error
from odradek.node.config_parsers import (
    parse_arena_bytes,
    parse_choice,
    parse_cluster_id,
    parse_count,
    parse_folder,
    parse_folders,
    parse_node_id,
    parse_peer_listen,
    parse_router_count,
    parse_run_folder,
)
from odradek.node.config_providers import resolve
from odradek.node.config_sources import (
    SECRET_FILE,
    ConfigurationError,
    Setting,
    chains,
    from_environment,
    from_file,
    merge,
)
from odradek.node.cpu_affinity import ProcessorSets, node_processor_sets
from odradek.node.default_folders import default_data_folder, default_run_folder
from odradek.node.machine_defaults import default_arena_bytes, default_worker_count
from odradek.node.peer_config import (
    PeerConfig,
    SeedConfig,
    cluster_errors,
    parse_join,
    parse_peers,
    parse_secrets,
    read_secrets,
)
from odradek.node.sasl_config import sasl_errors
from odradek.protocol.types import ZERO_UUID, Uuid
from odradek.storage.settings import Durability

T = TypeVar("T")

DEFAULT_PORT = 9092
STORE_COUNT_MAX = 256
DEFAULT_STORE_COUNT = 8
_REQUEST_BYTES_MAX = "socket.request.max.bytes"
_SECRET = "cluster.secret"
HIDDEN = "[hidden]"
"""In place of a secret value."""

WORKER_LISTENER_PREFIX = "worker-"
"""The prefix, before the worker's number, of the listener in a broker's registration at which the
worker serves the workers of other nodes. Clients cannot use it."""

_DEV_PROFILE_CONFIGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.streams.initial.rebalance.delay.ms": "100",
}
"""Defaults of the dev profile. With this delay members that a program starts together form one
generation. With none the first would have its own, and the others wait for its next heartbeat."""


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A listener for clients. An empty host means every address of the machine; port 0 any free
    port. Without an advertised address clients get the one at which they reached the node.
    """

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"
    advertised_host: str | None = None
    advertised_port: int | None = None


class LogDirectory(msgspec.Struct, frozen=True):
    """A directory with stores. The first one of a node is its data folder."""

    path: str
    directory_id: str = ""
    """From its meta.properties; empty if it has not been read, or an older release formatted it."""
    problem: str = ""
    """Why it is offline since the start of the node; empty if it is not (KIP-112)."""

    @property
    def uuid(self) -> Uuid:
        """The directory id as the metadata log has it; zero if there is none."""
        return uuid.UUID(self.directory_id).bytes if self.directory_id else ZERO_UUID

    @property
    def stores_folder(self) -> Path:
        """One folder per store."""
        return Path(self.path) / "stores"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one node.

    `cluster_id` may be empty and `store_count` 0 until the data folder has been read: then its
    meta.properties apply (data_folder.py).
    """

    node_id: int
    data: str
    run: str
    listeners: tuple[ListenerConfig, ...]
    cluster_id: str = ""
    worker_count: int = 1
    configured_worker_count: int = 0
    """The static worker count if a dynamic one has replaced it; else 0."""
    router_count: int = 1
    store_count: int = 0
    profile: str = "standard"
    durability: Durability = Durability.INTERVAL
    processor_placement: str = "split"
    arena_bytes: int = 1 << 30
    log_level: str = "INFO"
    log_format: str = "auto"
    log_levels: dict[str, str] = msgspec.field(default_factory=dict)
    """Of loggers, as they were set while the node runs; lost when it stops."""
    sources: dict[str, tuple[tuple[str, str], ...]] = msgspec.field(default_factory=dict)
    """Of each key that is set: (value, origin), the strongest first. Secret values are hidden."""
    overridden: dict[str, str] = msgspec.field(default_factory=dict)
    """The node's own values of keys that have another one through the cluster (node_overrides)."""
    file_problem: str = ""
    """Why the configuration file, as it is now, is refused; empty if it is in effect."""
    settings_problem: str = ""
    """Why what is set for this node through the cluster is not in effect."""
    restart_keys: tuple[str, ...] = ()
    """The keys that have changed in the file and need a restart."""
    http_host: str = ""
    http_port: int | None = None
    peers: tuple[PeerConfig, ...] = ()
    """The bootstrap voters, by id; none for a single node and for one that joins a cluster."""
    join: tuple[SeedConfig, ...] = ()
    """Peer addresses of nodes of the running cluster that this node joins."""
    peer_host: str = ""
    peer_port: int = 0
    """Where this node listens for other nodes; port 0: nowhere, it is a single node."""
    peer_advertised: SeedConfig | None = None
    """The address that other nodes use, if it is another one."""
    cluster_secrets: tuple[str, ...] = ()
    """With the first this node listens for others; others may listen with any of them."""
    secret_file: str = ""
    """Where the secrets were read; empty if they are set themselves."""
    controlled_shutdown_ms: int = 10_000
    """The longest controlled shutdown of a node in a cluster; 0: it stops at once."""
    directory_id: str = ""
    """Of the data folder; empty if an older release formatted it."""
    protocol_map: dict[str, str] = msgspec.field(default_factory=dict)
    """The security protocols by listener, also of listeners that are added later."""
    further_log_dirs: tuple[LogDirectory, ...] = ()
    """The log directories beside the data folder."""
    static_configs: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def broker_configs(self) -> dict[str, str]:
        """The static layer of broker configs: the profile's, those set, and the node's own."""
        node = {
            "broker.id": str(self.node_id),
            "node.id": str(self.node_id),
            "listeners": ",".join(f"{x.name}://{x.host}:{x.port}" for x in self.listeners),
            "log.dir": self.data,
            "log.dirs": ",".join(each.path for each in self.log_dirs),
            "durability": self.durability.value,
            "workers": str(self.configured_worker_count or self.worker_count),
        }
        advertised = [
            f"{x.name}://{x.advertised_host}:{x.advertised_port or x.port}"
            for x in self.listeners
            if x.advertised_host
        ]
        if advertised:
            node["advertised.listeners"] = ",".join(advertised)
        if self.protocol_map:
            node["listener.security.protocol.map"] = ",".join(
                f"{name}:{protocol}" for name, protocol in self.protocol_map.items()
            )
        profile = _DEV_PROFILE_CONFIGS if self.profile == "dev" else {}
        if self.profile == "dev" or not self.is_clustered:
            profile = {**profile, "internal.topics.replication.adaptive": "true"}
        return profile | self.static_configs | node | self._own_settings()

    def _own_settings(self) -> dict[str, str]:
        """The keys of a node that are set, or have another value than the default."""
        peer = (self.peer_host, self.peer_port) if self.peer_port else None
        texts = {
            "profile": self.profile,
            "run": self.run,
            "stores": str(self.store_count) if self.store_count else None,
            "routers": str(self.router_count),
            "arena.bytes": str(self.arena_bytes),
            "processor.placement": self.processor_placement,
            "log.level": self.log_level,
            "log.format": self.log_format,
            "http.listen": None
            if self.http_port is None
            else _address(self.http_host, self.http_port),
            "controlled.shutdown.timeout.ms": str(self.controlled_shutdown_ms),
            "cluster.id": self.cluster_id or None,
            # DescribeConfigs shows that there is one.
            "cluster.secret": HIDDEN if self.cluster_secrets else None,
            "peers": ",".join(f"{x.node_id}@{_address(x.host, x.port)}" for x in self.peers)
            or None,
            "join": ",".join(_address(x.host, x.port) for x in self.join) or None,
            "peer.listen": None if peer is None else _address(*peer),
            "peer.advertised": None
            if self.peer_advertised is None
            else _address(self.peer_advertised.host, self.peer_advertised.port),
        }
        return {
            key: text
            for key, text in (texts | self.overridden).items()
            if text is not None and (key in self.sources or text != BROKER_CONFIGS[key].default)
        }

    @property
    def own_peer(self) -> PeerConfig | None:
        """This node as the others reach it; None for a single node."""
        own = next((peer for peer in self.peers if peer.node_id == self.node_id), None)
        if self.peer_advertised is not None and self.peer_port:
            return PeerConfig(self.node_id, self.peer_advertised.host, self.peer_advertised.port)
        if own is None and self.peer_port:
            return PeerConfig(self.node_id, self.peer_host, self.peer_port)
        return own

    @property
    def settings_without_effect(self) -> list[str]:
        """Keys that are set and have no effect here: the supervisor warns of them."""
        definitions = {key: broker_config(key) for key in sorted(self.static_configs)}
        return [key for key, each in definitions.items() if each and not each.has_effect]

    def worker_port(self, index: int) -> int:
        """Where a worker listens for the workers of other nodes: the ports after the peer port."""
        return self.peer_port + 1 + index

    @property
    def is_clustered(self) -> bool:
        """Whether this node is one of several, or others may join it."""
        return bool(self.peer_port)

    @property
    def needs_cluster_id(self) -> bool:
        """Whether the cluster's id must be configured, because other nodes have it as well."""
        return len(self.peers) > 1 or bool(self.join)

    @property
    def arena_problem(self) -> str:
        """Why the arena is too small; empty if it is not."""
        # By default a request may be so large, unless the container is too small for it.
        default = min(
            int(BROKER_CONFIGS[_REQUEST_BYTES_MAX].default or 0),
            default_arena_bytes(is_dev=self.profile == "dev") // 2,
        )
        request_bytes_max = int(self.static_configs.get(_REQUEST_BYTES_MAX) or default)
        text = (
            f"arena.bytes={self.arena_bytes}: it must be at least twice {_REQUEST_BYTES_MAX},"
            f" which is {request_bytes_max}. Increase it, or reduce {_REQUEST_BYTES_MAX}."
        )
        return text if self.arena_bytes < 2 * request_bytes_max else ""

    def with_workers(self, count: int) -> "NodeConfig":
        """The same configuration with another worker count."""
        configured = self.configured_worker_count or self.worker_count
        return msgspec.structs.replace(self, worker_count=count, configured_worker_count=configured)

    def placement(self) -> ProcessorSets | None:
        """The processors of routers and workers; None if each process may use any."""
        if self.processor_placement == "shared":
            return None
        return node_processor_sets(router_count=self.router_count, worker_count=self.worker_count)

    @property
    def data_folder(self) -> Path:
        """All durable state."""
        return Path(self.data)

    @property
    def log_dirs(self) -> tuple[LogDirectory, ...]:
        """The directories with stores. The first one is the data folder."""
        return (LogDirectory(self.data, self.directory_id), *self.further_log_dirs)

    @property
    def stores_folder(self) -> Path:
        """The stores in the data folder."""
        return self.log_dirs[0].stores_folder

    @property
    def stores_folders(self) -> tuple[Path, ...]:
        """The stores of each log directory."""
        return tuple(each.stores_folder for each in self.log_dirs)

    @property
    def metadata_folder(self) -> Path:
        """The metadata log."""
        return Path(self.data) / "metadata"

    @property
    def run_folder(self) -> Path:
        """Sockets and other files that are useless while the node is down."""
        return Path(self.run)

    def save_json(self, path: Path) -> None:
        """Write the configuration for the child processes; only this user can read the file. A
        process that reads it meanwhile finds the old one or the new one."""
        written = path.with_suffix(".new")
        file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(msgspec.json.encode(self))
        written.replace(path)

    @classmethod
    def load_json(cls, path: Path) -> Self:
        """What `save_json` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, str] | None = None,
) -> NodeConfig:
    """The configuration from defaults < file < environment < options (of the command line).

    Raises ConfigurationError with all errors.
    """
    sources = (
        from_file(file) if file is not None else {},
        from_environment(environment, is_secret),
        {key: Setting(text, "the command line") for key, text in (options or {}).items()},
    )
    config = _ConfigReader(resolve(merge(*sources), environment)).read()
    shown = {
        key: tuple((HIDDEN if is_secret(key) else each.text, each.origin) for each in chain)
        for key, chain in chains(*sources).items()
    }
    return msgspec.structs.replace(config, sources=shown)


def is_secret(key: str) -> bool:
    """Whether the value of a key must not be shown."""
    definition = broker_config(key)
    return key == _SECRET or (definition is not None and definition.is_sensitive)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _ConfigReader:
    """Parses the merged settings one by one and collects the errors."""

    def __init__(self, settings: dict[str, Setting]) -> None:
        self._settings = settings
        self._faults: list[str] = []
        self._known_keys: set[str] = set()

    def read(self) -> NodeConfig:
        profile = self._parse_setting("profile", parse_choice("dev", "standard"), "standard")
        is_dev = profile == "dev"
        data, further_log_dirs = self._log_dirs()
        protocol_map = (
            self._parse_setting("listener.security.protocol.map", parse_protocol_map, None) or {}
        )
        listeners = self._listeners(protocol_map)
        http = self._parse_setting("http.listen", parse_host_and_port, None)
        node_id = self._parse_setting("node.id", parse_node_id, 0)
        peers, peer_listen = self._peers(node_id)
        secret_file, secrets = self._secrets()
        join = self._parse_setting("join", parse_join, None) or ()
        advertised = self._parse_setting("peer.advertised", parse_join, None) or ()
        config = NodeConfig(
            node_id=node_id,
            data=str(data),
            cluster_id=self._parse_setting("cluster.id", parse_cluster_id, ""),
            run=self._parse_setting("run", parse_run_folder, str(default_run_folder(data))),
            listeners=listeners,
            protocol_map=protocol_map,
            worker_count=self._parse_setting(
                "workers", parse_count(1, 64), 1 if is_dev else default_worker_count()
            ),
            router_count=self._parse_setting("routers", parse_router_count, 1),
            store_count=self._parse_setting("stores", parse_count(1, STORE_COUNT_MAX), 0),
            profile=profile,
            durability=Durability(
                self._parse_setting("durability", parse_choice(*Durability), "interval")
            ),
            processor_placement=self._parse_setting(
                "processor.placement", parse_choice("split", "shared"), "split"
            ),
            arena_bytes=self._parse_setting(
                "arena.bytes", parse_arena_bytes, default_arena_bytes(is_dev=is_dev)
            ),
            log_level=self._parse_setting(
                "log.level", parse_choice("DEBUG", "INFO", "WARNING", "ERROR"), "INFO"
            ),
            log_format=self._parse_setting(
                "log.format", parse_choice("auto", "text", "json"), "auto"
            ),
            http_host=http[0] if http else "",
            http_port=http[1] if http else None,
            peers=peers,
            peer_host=peer_listen[0],
            peer_port=peer_listen[1],
            join=join,
            peer_advertised=advertised[0] if advertised else None,
            cluster_secrets=secrets,
            secret_file=secret_file,
            controlled_shutdown_ms=self._parse_setting(
                "controlled.shutdown.timeout.ms", parse_count(0, 3_600_000), 10_000
            ),
            further_log_dirs=further_log_dirs,
            static_configs=self._static_configs(),
        )
        self._check_combinations(config)
        if self._faults:
            raise ConfigurationError(*self._faults)
        return config

    def _parse_setting(self, key: str, parse: Callable[[str], T], default: T) -> T:
        self._known_keys.add(key)
        setting = self._settings.pop(key, None)
        if setting is None:
            return default
        try:
            return parse(setting.text)
        except ValueError as error:
            self._add_error(key, setting, str(error))
            return default

    def _add_error(self, key: str, setting: Setting, reason: str) -> None:
        # Kafka's text. An error must not show the secret.
        text = HIDDEN if key == _SECRET else setting.text
        self._faults.append(f"{invalid_value(key, text, reason)} ({setting.origin})")

    def _log_dirs(self) -> tuple[Path, tuple[LogDirectory, ...]]:
        """The data folder, and the other log directories. Without `data` the first of `log.dirs` is
        the data folder, as in Kafka."""
        folders = self._parse_setting("log.dirs", parse_folders, None) or ()
        first = folders[0] if folders else default_data_folder()
        data = Path(self._parse_setting("data", parse_folder, first))
        return data, tuple(LogDirectory(str(each)) for each in folders if each != data)

    def _listeners(self, protocols: Mapping[str, str]) -> tuple[ListenerConfig, ...]:
        written = self._settings.get("listeners")
        default = {"PLAINTEXT": ("127.0.0.1", DEFAULT_PORT)}
        bound = self._parse_setting("listeners", parse_addresses, default)
        advertised_written = self._settings.get("advertised.listeners")
        advertised = self._parse_setting("advertised.listeners", parse_addresses, None) or {}
        if advertised_written is not None:
            for name in advertised.keys() - bound.keys():
                self._add_error(
                    "advertised.listeners",
                    advertised_written,
                    f"{name} is no listener. `listeners` has {', '.join(bound)}",
                )
        listeners = []
        for name, (host, port) in bound.items():
            protocol = protocols.get(name, name if name in SECURITY_PROTOCOLS else "PLAINTEXT")
            if written is not None and protocols and name not in protocols:
                # A name that is misspelt must not mean that everybody may come in.
                self._add_error(
                    "listeners",
                    written,
                    f"listener {name} is not in listener.security.protocol.map",
                )
            advertised_host, advertised_port = advertised.get(name, (None, None))
            listeners.append(
                ListenerConfig(
                    name=name,
                    host=host,
                    port=port,
                    security_protocol=protocol,
                    advertised_host=advertised_host,
                    advertised_port=advertised_port,
                )
            )
        return tuple(listeners)

    def _peers(self, node_id: int) -> tuple[tuple[PeerConfig, ...], tuple[str, int]]:
        peers = self._parse_setting("peers", parse_peers, None) or ()
        own = next((peer for peer in peers if peer.node_id == node_id), None)
        listen = self._parse_setting(
            "peer.listen", parse_peer_listen, ("", 0) if own is None else (own.host, own.port)
        )
        return peers, listen

    def _secrets(self) -> tuple[str, tuple[str, ...]]:
        """The file of the cluster's secrets, if there is one, and the secrets."""
        secrets: tuple[str, ...] = ()
        secrets = self._parse_setting(_SECRET, parse_secrets, secrets)
        file = self._settings.get(SECRET_FILE)
        secrets = self._parse_setting(SECRET_FILE, read_secrets, secrets)
        return "" if file is None else str(Path(file.text).expanduser()), secrets

    def _static_configs(self) -> dict[str, str]:
        """The settings that are not the node's own: keys of a broker, or errors."""
        static = {}
        for key, setting in self._settings.items():
            error = static_config_error(key, setting.text)
            if error is None:
                static[key] = setting.text
            else:
                hint = self._hint(key) if broker_config(key) is None else ""
                self._faults.append(f"{error} ({setting.origin}){hint}")
        return static

    def _hint(self, key: str) -> str:
        """The key that an unknown one may stand for."""
        definition = TOPIC_CONFIGS.get(key)
        if definition is not None and definition.synonyms:
            default = definition.synonyms[0].name
            return f": it is a key of topics; {default} is the default of all topics"
        known = [*self._known_keys, *BROKER_CONFIGS]
        close = difflib.get_close_matches(key, known, n=1)
        return f": is {close[0]} meant?" if close else ". Remove it."

    def _check_combinations(self, config: NodeConfig) -> None:
        if config.worker_count > (config.store_count or DEFAULT_STORE_COUNT):
            self._faults.append(
                f"workers={config.worker_count}: a worker owns whole stores, and there are"
                f" {config.store_count or DEFAULT_STORE_COUNT}. Set at most that many workers, or"
                " format the node with more stores."
            )
        if config.arena_problem:
            self._faults.append(config.arena_problem)
        self._faults.extend(
            cluster_errors(
                config.peers,
                config.join,
                own=config.own_peer,
                node_id=config.node_id,
                listen_host=config.peer_host,
                has_secret=bool(config.cluster_secrets),
                client_ports=[listener.port for listener in config.listeners],
            )
        )
        self._faults.extend(sasl_errors(config.listeners, config.static_configs))
        layer = ConfigLayer(ConfigSource.STATIC_BROKER, config.static_configs)
        self._faults.extend(violated_constraints((layer,), config.static_configs))
        cordoned = config.static_configs.get(CORDONED_LOG_DIRS, "")
        fault = cordoned_fault(cordoned, [each.path for each in config.log_dirs])
        self._faults.extend([fault] if fault is not None else [])
        ports = [listener.port for listener in config.listeners if listener.port]
        for port in {port for port in ports if ports.count(port) > 1}:
            self._faults.append(
                f"listeners: several listeners have port {port}. Give each its own port."
            )
