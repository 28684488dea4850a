"""A router: the process that clients talk to. The composition root of the request path.

It builds the arena, the bus to the workers, the link to the controller, the stores' readers and the
coordinators, waits for its first metadata, then listens. Everything here is wiring; what happens to
a request is in dispatch.py and the handlers. Started as
`python -m odradek.node.router.process CONFIG INDEX`.
"""

import asyncio
import dataclasses
import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop
import zmq

from odradek.cluster.controller.commands import AllocateProducerIds
from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.shard import GroupShard
from odradek.node.bus.arena import Arena
from odradek.node.bus.endpoint import ipc_address
from odradek.node.bus.peers import cluster_keys
from odradek.node.bus.replica_link import CurveKeys
from odradek.node.config import NodeConfig
from odradek.node.cpu_affinity import set_affinity
from odradek.node.observability import SupervisorLink, configure_logging
from odradek.node.router.addresses import inter_broker_address
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.context import Services, inter_broker_context
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.dispatch import HANDLERS, Dispatcher
from odradek.node.router.fetch_purgatory import FetchPurgatory
from odradek.node.router.fetch_sessions import FetchSessionCache
from odradek.node.router.group_lag_metrics import GroupLagMetrics
from odradek.node.router.handlers.lag import describe_local_lag
from odradek.node.router.handlers.offsets import list_local_offsets
from odradek.node.router.inter_broker_client import ZmqInterBrokerClient, answer_peer_request
from odradek.node.router.logs import Logs
from odradek.node.router.offset_lookup import OffsetLookup
from odradek.node.router.producer_ids import ProducerIds
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.shards.group_coordinator_type import GroupCoordinatorType
from odradek.node.router.shards.loop_delay import LoopDelayMonitor
from odradek.node.router.shards.share_coordinator_type import ShareCoordinatorType
from odradek.node.router.shards.transaction_coordinator_type import TransactionCoordinatorType
from odradek.node.router.share.dead_letter_queue import DeadLetters
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import ShareSessions
from odradek.node.router.share.state_effects import ShareStateEffects
from odradek.node.router.share.state_reload import ShareStateReloader
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.node.router.transactions.watchdog import Watchdog
from odradek.node.router.worker_client import WorkerClient
from odradek.node.wire.acceptor import Acceptor, ConnectionReaper, drain
from odradek.node.wire.connection import Connection, SocketServer
from odradek.protocol.apis import ApiKey

log = logging.getLogger(__name__)

GC_ALLOCATIONS = 50_000
"""Objects made and not yet freed between two looks of the garbage collector at the youngest."""

DRAIN_TIMEOUT_S = 5.0
"""How long clients may take to fetch their last responses when the node stops."""
PRODUCER_IDS_TIMEOUT_MS = 5_000


class RouterProcess:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        index: int,
        supervisor: SupervisorLink,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._loop = loop
        self._stopped = asyncio.Event()
        name = f"router-{index}"
        incarnation = time.time_ns()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        arena_path = config.run_folder / f"{name}.arena"
        self._arena = Arena.create(arena_path, config.arena_bytes)
        logs = Logs(config.stores_folder, config.store_count)
        fetch_purgatory = FetchPurgatory(loop, logs.set_watch)
        worker_client = WorkerClient(
            loop=loop,
            context=context,
            address=ipc_address(config.run_folder, name),
            wakeup_path=config.run_folder / f"{name}.bell",
            worker_count=config.worker_count,
            arena=self._arena,
            arena_path=str(arena_path),
            incarnation=incarnation,
            on_advanced=fetch_purgatory.on_advanced,
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
        self._services = Services(
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            image=self._link.image,
            static_configs=config.broker_configs,
            now_ms=now_ms,
            controller=self._link,
            worker_client=worker_client,
            logs=logs,
            authorizer=Authorizer(),
            fetch_sessions=FetchSessionCache(
                new_id=lambda: random.randint(1, 2**31 - 1),
                slots_max=lambda: self._settings().max_incremental_fetch_session_cache_slots,
            ),
            fetch_purgatory=fetch_purgatory,
            producer_ids=ProducerIds(self._allocate_producer_ids),
            served_apis=tuple(HANDLERS),
            profile=config.profile,
        )
        services = self._services
        self._inter_broker_client = ZmqInterBrokerClient(
            loop,
            context,
            identity=f"router-{config.node_id}-{index}-{incarnation}".encode(),
            keys=CurveKeys(*cluster_keys(config.cluster_secret)) if config.cluster_secret else None,
            address_of=lambda node_id: inter_broker_address(services.image, node_id),
        )
        services.offset_lookup = OffsetLookup(
            services, self._inter_broker_client, partial(list_local_offsets, services=services)
        )
        services.markers = MarkerWriter(services, self._inter_broker_client)
        services.partition_verification = PartitionVerification(
            services, self._inter_broker_client, loop
        )
        self._groups = GroupCoordinatorType(services.patterns, ShareStateEffects(services))
        services.group_coordinator = coordinators = CoordinatorService(services, loop, self._groups)
        self._loop_delay = LoopDelayMonitor(
            loop,
            lambda loop_delay_ms: self._groups.set_loop_delay(coordinators.shards(), loop_delay_ms),
        )
        services.transaction_coordinator = CoordinatorService(
            services, loop, TransactionCoordinatorType(services.markers)
        )
        services.share_coordinator = CoordinatorService(
            services, loop, ShareCoordinatorType(services)
        )
        services.share_persister = SharePersister(services, self._inter_broker_client, loop)
        services.share_sessions = ShareSessions(
            lambda: self._settings().group_share_max_share_sessions
        )
        services.share_partitions = SharePartitions(services, loop)
        services.share_state_reloader = ShareStateReloader(services, self._inter_broker_client)
        services.dead_letter_queue = DeadLetters(services, self._inter_broker_client, loop)
        self._watchdog = Watchdog(services, self._inter_broker_client, loop, self._settings)
        self._group_lag = GroupLagMetrics(
            services,
            self._inter_broker_client,
            partial(describe_local_lag, services=services),
            loop=loop,
            offsets=lambda: [
                shard.offsets
                for shard in services.group_coordinator.shards()
                if isinstance(shard, GroupShard)
            ],
            settings=self._settings,
        )
        worker_client.on_relayed_request = self._answer_peer_request
        dispatcher = Dispatcher(self._services, self._arena.view)
        self._wire = SocketServer(
            loop=loop,
            arena=self._arena,
            on_request=dispatcher.on_request,
            on_disconnected=self._on_disconnected,
        )
        worker_client.on_replies_delivered = self._wire.flush_queue.flush
        self._register_metrics(dispatcher)

    def _on_disconnected(self, connection: Connection) -> None:
        # Before its fetches end: what they would still acquire is nobody's.
        self._services.share_partitions.on_disconnected(connection.id)
        self._services.fetch_purgatory.abandon(connection.id)
        self._services.fetch_activity.remove_connection(connection.id)

    async def run(self) -> None:
        """Serve until the supervisor says stop; then finish what has begun."""
        self._link.start()
        await self._link.has_image.wait()
        listeners = [
            Acceptor(self._wire, name=listener.name, host=listener.host, port=listener.port)
            for listener in self._config.listeners
        ]
        for listener in listeners:
            await listener.start(reuse_port=self._config.router_count > 1)
        sweeper = ConnectionReaper(self._wire)
        self._watchdog.start()
        self._supervisor.watch(self._loop, self._stopped.set)
        self._supervisor.ready({"ports": {listener.name: listener.port for listener in listeners}})
        await self._stopped.wait()
        for listener in listeners:
            listener.stop()
        self._services.fetch_purgatory.end_all()
        cut_off = await drain(self._wire, timeout_s=DRAIN_TIMEOUT_S)
        if cut_off:
            log.warning("%d connections did not finish in time", cut_off)
        sweeper.stop()
        self._watchdog.close()
        self._loop_delay.close()
        self._services.group_coordinator.close()
        self._services.transaction_coordinator.close()
        self._services.share_partitions.close()
        self._services.share_persister.close()
        self._services.share_coordinator.close()
        self._inter_broker_client.close()

    def _register_metrics(self, dispatcher: Dispatcher) -> None:
        metrics, services = self._supervisor.metrics, self._services
        lag = self._group_lag
        self._supervisor.before_report = lag.collect
        metrics.gauge(
            "odradek_group_lag_records",
            "Records that a group coordinated here has not read yet, up to the high watermark",
            lambda: lag.records,
            label=lambda: lag.labels,
        )
        metrics.gauge(
            "odradek_group_lag_seconds",
            "Age of the oldest record that a group coordinated here has not read yet",
            lambda: lag.seconds,
            label=lambda: lag.labels,
        )
        metrics.gauge(
            "odradek_group_lag_untold",
            "Lines that the lag of groups would have besides those there are",
            lambda: lag.omitted_count,
        )
        metrics.counter(
            "odradek_requests",
            "Requests begun, by API",
            lambda: {ApiKey(key).name: n for key, n in dispatcher.request_counts.items() if n},
            label="api",
        )
        metrics.counter(
            "odradek_wire",
            "What happened on client connections",
            lambda: dataclasses.asdict(self._wire.counters),
            label="event",
        )
        metrics.counter(
            "odradek_ephemeral_groups_deleted",
            "Ephemeral groups that were deleted because their last member had gone",
            lambda: self._groups.deleted_ephemeral_count,
        )
        metrics.counter(
            "odradek_dead_letters",
            "Records of share groups that were given up, told to a dead-letter topic or not",
            lambda: {
                "told": services.dead_letter_queue.written_count,
                "lost": services.dead_letter_queue.dropped_count,
            },
            label="fate",
        )
        for name, text, reading in (
            ("odradek_connections", "Clients now", lambda: len(self._wire.connections)),
            (
                "odradek_parked_fetches",
                "Long polls now",
                lambda: services.fetch_purgatory.parked_count,
            ),
            ("odradek_fetch_sessions", "Fetch sessions now", lambda: len(services.fetch_sessions)),
            (
                "odradek_worker_requests",
                "Unanswered by workers",
                lambda: services.worker_client.queued_count,
            ),
            ("odradek_arena_bytes", "Client bytes in memory", lambda: self._arena.used_bytes),
            ("odradek_share_sessions", "Share sessions now", lambda: len(services.share_sessions)),
            (
                "odradek_share_partitions",
                "Partitions of share groups led here now",
                lambda: services.share_partitions.count,
            ),
            (
                "odradek_hanging_transactions",
                "Open in partitions led here, and known to no coordinator",
                lambda: self._watchdog.hanging_count,
            ),
        ):
            metrics.gauge(name, text, reading)
        metrics.counter(
            "odradek_hanging_transactions_aborted",
            "Ended by the watchdog",
            lambda: self._watchdog.ended_count,
        )

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        node_id = self._config.node_id
        broker_epoch = self._services.image.brokers[node_id].broker_epoch
        reply = await self._link.submit(
            AllocateProducerIds(node_id, broker_epoch), PRODUCER_IDS_TIMEOUT_MS
        )
        return reply.first, reply.count

    def _settings(self) -> BrokerSettings:
        return broker_settings(
            self._services.image, self._config.node_id, self._config.broker_configs
        )

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        services = self._services
        services.image = new
        if old.configs is not new.configs or old.offset == 0:
            self._apply_settings(self._settings())
        services.group_coordinator.on_image(old, new)
        services.transaction_coordinator.on_image(old, new)
        services.share_coordinator.on_image(old, new)
        services.share_partitions.on_image(old, new)
        self._inter_broker_client.on_image(new)
        if old.topics_by_id is not new.topics_by_id:
            services.fetch_purgatory.wake_all()

    def _answer_peer_request(self, payload: bytes, send: Callable[[bytes], None]) -> None:
        async def carry_out(api_key: int, version: int, request: object) -> object:
            context = inter_broker_context(api_key, version)
            return await HANDLERS[api_key](request, context, self._services)

        answer_peer_request(payload, carry_out, send)

    def _apply_settings(self, settings: BrokerSettings) -> None:
        wire = self._wire.settings
        # What the arena could never hold would be waited for without end.
        wire.request_bytes_max = min(settings.socket_request_max_bytes, self._arena.size // 2)
        wire.connections_max = settings.max_connections
        wire.connections_per_ip_max = settings.max_connections_per_ip
        wire.connections_per_ip_max_overrides = dict(settings.max_connections_per_ip_overrides)
        wire.connections_idle_ms_max = settings.connections_max_idle_ms
        self._watchdog.follow()


def monotonic_ms() -> int:
    """A clock that nobody sets, the same in all processes of the machine, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    config = NodeConfig.load_json(Path(sys.argv[1]))
    index = int(sys.argv[2])
    configure_logging(config, f"router-{index}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    placement = config.placement()
    if placement is not None:
        set_affinity(placement.routers)

    async def serve() -> None:
        with SupervisorLink.connect(config, f"router-{index}") as supervisor:
            await RouterProcess(config, index, supervisor, asyncio.get_running_loop()).run()

    # What was imported stays, and requests leave no circles behind: the collector need not look
    # at thousands of waiting requests again and again (a third of all CPU with 2,000 long polls).
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 50)
    uvloop.run(serve())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
