"""A router: the process that clients connect to, and the composition root of the request path.

It builds the arena, the clients of workers, controller and other brokers, the stores' readers and
the coordinators, waits for the first metadata image, and listens. dispatch.py and the handlers
serve the requests. Started as
`python -m odradek.node.router.process CONFIG INDEX`.
"""

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec
import uvloop
import zmq

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.connection_settings import ConnectionSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import listener_settings
from odradek.node.bus.arena import Arena
from odradek.node.bus.curve import cluster_keys
from odradek.node.bus.endpoint import ipc_address
from odradek.node.bus.replica_link import worker_address
from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.cpu_affinity import set_affinity
from odradek.node.machine_defaults import usable_processors
from odradek.node.observability import ProcessReady, SupervisorLink
from odradek.node.router.audit_log import AuditLog
from odradek.node.router.client_listeners import ClientListeners
from odradek.node.router.connection_handover import ConnectionHandover
from odradek.node.router.connection_limits import ConnectionLimits
from odradek.node.router.context import Services, inter_broker_context
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.dispatch import HANDLERS, Dispatcher
from odradek.node.router.graceful_stop import stop_gracefully
from odradek.node.router.group_lag_metrics import GroupLagMetrics
from odradek.node.router.idle_connections import IdleConnections
from odradek.node.router.inter_broker_client import ZmqInterBrokerClient
from odradek.node.router.listener_health import ListenerHealth
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.node_control import NodeControl
from odradek.node.router.router_metrics import (
    register_coordinator_metrics,
    register_quota_metrics,
    register_request_metrics,
    register_telemetry_metrics,
    register_time_metrics,
    register_wire_metrics,
)
from odradek.node.router.sasl_authentication import SaslAuthenticator, is_identified
from odradek.node.router.shards.loop_delay import LoopDelayMonitor
from odradek.node.router.token_verification import TokenVerifiers
from odradek.node.router.transactions.watchdog import Watchdog
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import configure_logging, finish_logging
from odradek.node.wire.acceptor import ConnectionReaper
from odradek.node.wire.limits import ListenerLimits
from odradek.node.wire.proxy_protocol import Network, trusted_proxies
from odradek.node.wire.socket_server import SocketServer

GC_THRESHOLDS = (8_000, 2, 5_000)
"""Allocations minus deallocations before a collection of the youngest generation, collections of
that before one of the next, and of that before one of all. A long request has half a million
objects: a collection of them would take 80 ms, of those of three young collections a few."""


class RouterProcess:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        index: int,
        supervisor: SupervisorLink,
        loop: asyncio.AbstractEventLoop,
        processors: int,
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._loop = loop
        self._stopped = asyncio.Event()
        self._is_ready = False
        name = f"router-{index}"
        incarnation = time.time_ns()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._arena = Arena.create(config.run_folder / f"{name}.arena", config.arena_bytes)
        logs = Logs(config.stores_folders, config.store_count)
        worker_client = WorkerClient(
            loop=loop,
            context=context,
            address=ipc_address(config.run_folder, name),
            wakeup_path=config.run_folder / f"{name}.wakeup",
            worker_count=config.worker_count,
            arena=self._arena,
            incarnation=incarnation,
            processors=processors,
        )
        self._link = ControllerLink(
            loop=loop,
            context=context,
            address=ipc_address(config.run_folder, "controller"),
            process=name,
            incarnation=incarnation,
            now_ms=monotonic_ms,
            on_image=self._on_image,
        )
        self._metadata = MetadataCache(config.node_id, config.broker_configs, self._link.image)
        identity = f"router-{config.node_id}-{index}-{incarnation}".encode()
        self._inter_broker_client = self._build_inter_broker_client(context, identity)
        self._services = services = Services(
            cluster_id=config.cluster_id,
            served_apis=tuple(HANDLERS),
            metadata=self._metadata,
            controller=self._link,
            worker_client=worker_client,
            inter_broker_client=self._inter_broker_client,
            logs=logs,
            node_control=NodeControl(supervisor, config),
            now_ms=now_ms,
            loop=loop,
        )
        supervisor.on_storage_state = services.on_storage_state
        services.on_log_dirs(config.log_dirs)
        supervisor.on_configuration = self._on_configuration
        worker_client.on_advanced = services.fetch_purgatory.on_advanced
        worker_client.on_relayed_request = self._inter_broker_client.answer
        self._build_background_tasks(services)
        self._build_socket_server(services)

    def _build_socket_server(self, services: Services) -> None:
        path = self._metadata.broker_settings().authorizer.audit_log_path
        self._audit_log = AuditLog(Path(path)) if path else None
        dispatcher = Dispatcher(services, self._arena.view, self._audit_log)
        metadata = self._metadata
        verifiers = TokenVerifiers(self._loop, time.time)
        self._listener_health = services.listener_health = ListenerHealth(
            metadata, services.tls_listeners, verifiers, self._supervisor.send
        )
        own_decoy_key = decoy_key(self._config)
        self._authenticator = SaslAuthenticator(
            self._loop,
            settings_of=metadata.sasl_settings,
            credentials=lambda: metadata.image.scram_credentials,
            tokens=lambda: metadata.image.delegation_tokens,
            token_secret_key=lambda: (
                metadata.broker_settings().delegation_tokens.delegation_token_secret_key
            ),
            verifiers=verifiers,
            decoy_key=lambda: metadata.image.decoy_key or own_decoy_key,
            random_text=lambda: secrets.token_urlsafe(24),
            now_ms=now_ms,
        )
        self._socket_server = SocketServer(
            loop=self._loop,
            arena=self._arena,
            on_request=dispatcher.on_request,
            on_connected=self._authenticator.on_connected,
            on_disconnected=lambda connection: services.on_disconnected(connection.id),
        )
        self._handover = ConnectionHandover(
            services,
            self._socket_server,
            self._config.run_folder,
            dispatcher,
        )
        self._idle_connections = IdleConnections(
            services, self._socket_server, dispatcher.idle_fetches
        )
        services.is_identified = self._is_identified
        self._listeners = services.listeners = ClientListeners(
            self._config,
            metadata,
            self._socket_server,
            services.tls_listeners,
            proxies=self._trusted_proxies,
            on_changed=self._on_listeners,
        )
        self._connection_limits = ConnectionLimits(self._socket_server.connection_rates, self._loop)
        services.worker_client.before_replies = self._socket_server.flush_queue.expect_flush
        services.worker_client.on_replies_delivered = self._socket_server.flush_queue.flush
        self._register_metrics(dispatcher)

    def _is_identified(self, connection_id: int) -> bool:
        connection = self._socket_server.connections.get(connection_id)
        return connection is not None and is_identified(connection)

    def _build_inter_broker_client(
        self, context: "zmq.Context[zmq.Socket[bytes]]", identity: bytes
    ) -> ZmqInterBrokerClient:
        config, metadata = self._config, self._metadata
        return ZmqInterBrokerClient(
            self._loop,
            context,
            identity=identity,
            keys=cluster_keys(config.cluster_secrets),
            node_id=config.node_id,
            address_of=lambda node_id: worker_address(metadata.image, node_id),
            handler=self._handle_inter_broker,
        )

    def _build_background_tasks(self, services: Services) -> None:
        loop, client, metadata = self._loop, self._inter_broker_client, self._metadata
        shards = services.group_coordinator.shards
        groups = services.group_coordinator_type
        self._loop_delay = LoopDelayMonitor(
            loop, lambda delay_ms: groups.set_loop_delay(shards(), delay_ms)
        )
        self._watchdog = Watchdog(
            metadata,
            services.logs,
            services.worker_client,
            client,
            services.markers,
            now_ms,
            loop,
        )
        self._group_lag = GroupLagMetrics(
            metadata,
            client,
            loop,
            lambda: [shard.directory for shard in shards()],
            services.share_lag_positions.find,
        )

    async def run(self) -> None:
        """Serve until the supervisor stops the process; then finish the requests in progress."""
        self._link.start()
        await self._link.has_image.wait()
        listeners = self._listeners
        await listeners.start()
        sweeper = ConnectionReaper(self._socket_server)
        self._watchdog.start()
        self._supervisor.watch(self._loop, self._stopped.set)
        self._is_ready = True
        self._listener_health.start([each.listener for each in listeners.acceptors], self._loop)
        self._report_listeners()
        await self._stopped.wait()
        self._handover.stop()
        self._idle_connections.stop()
        await stop_gracefully(
            self._services,
            self._socket_server,
            listeners,
            self._fail_unanswered_requests,
            is_replaced=self._supervisor.is_replaced,
        )
        self._handover.close()
        self._idle_connections.close()
        sweeper.stop()
        self._listener_health.close()
        self._watchdog.close()
        self._loop_delay.close()
        self._services.close()
        if self._audit_log is not None:
            self._audit_log.close()
        self._inter_broker_client.close()

    def _on_listeners(self) -> None:
        self._apply_settings(self._metadata.broker_settings())
        if self._is_ready:
            self._listener_health.follow(each.listener for each in self._listeners.acceptors)
            self._report_listeners()

    def _report_listeners(self) -> None:
        """Tell the supervisor where clients of this machine find the node."""
        listeners = self._listeners
        self._supervisor.send(
            ProcessReady({"ports": listeners.ports(), "bootstrap": listeners.bootstrap()})
        )

    def _fail_unanswered_requests(self) -> None:
        self._services.fail_unanswered_requests()
        self._inter_broker_client.close()

    def _register_metrics(self, dispatcher: Dispatcher) -> None:
        metrics = self._supervisor.metrics
        self._supervisor.before_report = self._group_lag.collect
        self._listener_health.register_metrics(metrics)
        register_wire_metrics(
            metrics,
            self._socket_server,
            self._listeners,
            self._services.tls_listeners,
            self._arena,
            self._handover,
        )
        register_request_metrics(
            metrics, self._services, dispatcher, self._authenticator, self._audit_log
        )
        register_time_metrics(
            metrics,
            self._socket_server.request_times,
            self._services.worker_client,
            self._loop_delay,
        )
        register_quota_metrics(metrics, self._services.client_quotas)
        register_coordinator_metrics(metrics, self._services, self._group_lag, self._watchdog)
        register_telemetry_metrics(metrics, self._services.telemetry)

    def _on_configuration(self, config: NodeConfig) -> None:
        self._services.node_control.config = config
        self._inter_broker_client.change_keys(cluster_keys(config.cluster_secrets))
        self._services.on_log_dirs(config.log_dirs)
        if config.broker_configs != self._metadata.static_configs:
            self._metadata.static_configs = config.broker_configs
            self._listeners.follow(config)
            # To those that follow the image it is as if the cluster's configs had changed.
            old = self._metadata.image
            self._on_image(old, msgspec.structs.replace(old, configs=old.configs.copy()))

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        self._metadata.image = new
        if old.configs is not new.configs or old.offset == 0:
            # First: what was read for a listener with TLS that is added is forgotten after that.
            self._listeners.follow()
            self._apply_settings(self._metadata.broker_settings())
        if old.client_quotas is not new.client_quotas or old.configs is not new.configs:
            self._connection_limits.follow(new.client_quotas, self._metadata.broker_settings())
        self._listeners.on_image()
        self._services.on_image(old, new)
        self._inter_broker_client.on_image(new)

    async def _handle_inter_broker(self, api_key: int, version: int, request: object) -> object:
        context = inter_broker_context(api_key, version)
        return await HANDLERS[api_key](request, context, self._services)

    def _connection_settings(self, listener: str) -> ConnectionSettings:
        """Of one listener; of the broker for the empty name."""
        cache = self._metadata
        return listener_settings(
            ConnectionSettings, cache.image, cache.node_id, cache.static_configs, listener
        )

    def _trusted_proxies(self, listener: str) -> tuple[Network, ...] | None:
        return trusted_proxies(self._connection_settings(listener))

    def _apply_settings(self, settings: BrokerSettings) -> None:
        self._supervisor.metrics.follow(settings)
        limits = self._socket_server.settings
        # A request that is larger than the arena would wait for room for ever.
        limits.request_bytes_max = min(settings.socket_request_max_bytes, self._arena.size // 2)
        of_broker = self._connection_settings("")
        limits.connections_max = of_broker.max_connections
        limits.creation_rate_max = of_broker.max_connection_creation_rate
        limits.listeners = {
            name: ListenerLimits(
                connections_max=own.max_connections,
                creation_rate_max=own.max_connection_creation_rate,
            )
            for name in self._listeners.names
            if (own := self._connection_settings(name)) != of_broker
        }
        limits.quota_sample_count = settings.quota_window_num
        limits.quota_sample_ms = 1000 * settings.quota_window_size_seconds
        self._socket_server.connection_quotas.wake()
        limits.connections_per_ip_max = settings.max_connections_per_ip
        limits.connections_per_ip_max_overrides = dict(settings.max_connections_per_ip_overrides)
        limits.connections_idle_ms_max = settings.connections_max_idle_ms
        self._watchdog.follow()
        self._services.tls_listeners.follow()


def decoy_key(config: NodeConfig) -> bytes:
    """The secret from which the salts of unknown users are made as long as the metadata has none:
    in a cluster with a feature level of before that."""
    secret = config.cluster_secrets[0] if config.cluster_secrets else ""
    return (secret or config.directory_id or config.cluster_id).encode()


def check_candidate(config: NodeConfig) -> None:
    """Raise ConfigurationError if a router could not start with this configuration."""
    try:
        Arena.create(config.run_folder / "candidate.arena", config.arena_bytes).close()
    except OSError as error:
        raise ConfigurationError(f"arena.bytes={config.arena_bytes}: {error.strerror}") from error


def monotonic_ms() -> int:
    """The monotonic clock in milliseconds; the same in all processes of the machine."""
    return time.monotonic_ns() // 1_000_000


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    path, index = Path(sys.argv[1]), int(sys.argv[2])
    configure_logging(NodeConfig.load_json(path), f"router-{index}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = SupervisorLink.connect(f"router-{index}", path)
    link.wait_for_turn(check_candidate)
    config = NodeConfig.load_json(path)
    processors = usable_processors()
    placement = config.placement()
    if placement is not None:
        set_affinity(placement.routers)

    async def serve() -> None:
        with link as supervisor:
            loop = asyncio.get_running_loop()
            await RouterProcess(config, index, supervisor, loop, processors).run()

    # Imported objects stay, and requests leave no reference cycles: the collector need not scan
    # thousands of waiting requests again and again (a third of all CPU with 2,000 long polls).
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(serve())
    finish_logging()
    os._exit(0)


if __name__ == "__main__":
    main()
