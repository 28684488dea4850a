"""The arguments of every handler beside the request: its context, and the router's services.

`RequestContext` is one request; `Services` is one router. Handlers depend on these two types and on
nothing else of the router. `Services` has no state of a request, `RequestContext` none of the
router. process.py builds the services; tests build them with other links to the controller, the
workers and other brokers.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence

import msgspec

from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.config import LogDirectory
from odradek.node.observability import StorageState
from odradek.node.router.archive_groups import ArchiveGroups
from odradek.node.router.authorizer import CLUSTER_PRINCIPAL, Authorizer
from odradek.node.router.client_listeners import ClientListeners
from odradek.node.router.client_quotas import ClientQuotas
from odradek.node.router.connected_clients import ConnectedClients
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.fetch_activity import FetchActivity
from odradek.node.router.fetch_purgatory import FetchPurgatory
from odradek.node.router.fetch_sessions import FetchSessionCache
from odradek.node.router.inter_broker_client import InterBrokerClient
from odradek.node.router.listener_health import ListenerHealth
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.node_control import NodeControl
from odradek.node.router.offset_lookup import OffsetLookup
from odradek.node.router.patterns import TopicPatterns
from odradek.node.router.producer_ids import ProducerIds
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.shards.group_coordinator_type import GroupCoordinatorType
from odradek.node.router.shards.share_coordinator_type import ShareCoordinatorType
from odradek.node.router.shards.transaction_coordinator_type import TransactionCoordinatorType
from odradek.node.router.share.dead_letter_queue import DeadLetterQueue
from odradek.node.router.share.lag_positions import ShareLagPositions
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import ShareSessions
from odradek.node.router.share.state_effects import ShareStateEffects
from odradek.node.router.share.state_reload import ShareStateReloader
from odradek.node.router.telemetry.receiver import TelemetryReceiver
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.router.tracing.tracer import Tracer
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.node.router.worker_client import WorkerClient
from odradek.node.storage_health import joined
from odradek.protocol.errors import ErrorCode

STOPPING_FETCH_WAIT_MS = 100
"""Consumers that fetch from a stopping broker do not spin."""


class RequestContext(msgspec.Struct, kw_only=True, eq=False):
    """One request and its connection.

    `arena_offset` is the frame's position in the router's arena. A handler that passes on bytes of
    the frame must call `retain` before its first await: it keeps them until the response is sent.
    `offset_of` is the position of a view of the frame in the arena. The objects in `holds` are
    released when the response is sent. `close` closes the connection, for errors that have no field
    in the response. The client is connected to `local_host` and `local_port`. The response to a
    request that `is_long` is encoded in slices of the loop: the request is large, or its handler
    yielded (cooperative_iteration.py). `throttle_time_ms`: for how long
    the client has to wait, as far as the handler knows (client_quotas.py). `worker_ns`: the time of
    workers for the request. `was_denied`: the authorizer has denied the request something.
    `may_have_errors`: the response has to be searched for error codes, for the metrics.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    client_port: int
    local_host: str
    local_port: int
    listener_name: str
    principal: str = "User:ANONYMOUS"
    connection_id: int = 0
    frame: memoryview = memoryview(b"")
    arena_offset: int = 0
    retain: Callable[[], None] = lambda: None
    offset_of: Callable[[memoryview], int] = lambda _view: 0
    close: Callable[[], None] = lambda: None
    is_long: bool = False
    was_denied: bool = False
    may_have_errors: bool = True
    throttle_time_ms: int = 0
    worker_ns: int = 0
    holds: list[object] = []


def inter_broker_context(api_key: int, api_version: int) -> RequestContext:
    """The context of a request from another node of the cluster, which is authenticated."""
    return RequestContext(
        api_key=api_key,
        api_version=api_version,
        correlation_id=0,
        client_id=None,
        client_host="",
        client_port=0,
        local_host="",
        local_port=0,
        listener_name="",
        principal=CLUSTER_PRINCIPAL,
    )


class Services:
    """What one router offers to its handlers. The services are built in the order in which they
    call each other."""

    def __init__(
        self,
        *,
        cluster_id: str,
        served_apis: tuple[int, ...],
        metadata: MetadataCache,
        controller: ControllerLink,
        worker_client: WorkerClient,
        inter_broker_client: InterBrokerClient,
        logs: Logs,
        node_control: NodeControl,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.cluster_id = cluster_id
        self.served_apis = served_apis
        self.metadata = metadata
        self.controller = controller
        self.worker_client = worker_client
        self.logs = logs
        self.node_control = node_control
        self.fetch_purgatory = FetchPurgatory(loop, logs.set_watch)
        self.now_ms = now_ms
        self.storage_problem = ""
        """What keeps this node from writing its data folder; empty: nothing."""
        self.listener_health: ListenerHealth | None = None
        """What keeps clients from listeners; set by process.py."""
        self.log_dir_problem = ""
        """Which log directories are offline, and why; empty: none."""
        self.is_identified: Callable[[int], bool] = lambda _connection_id: False
        """Whether the client of a connection may ask for delegation tokens; set by process.py."""
        self.listeners: ClientListeners | None = None
        """Of the router's process, which sets them; None in tests of handlers."""
        self.authorizer = Authorizer()
        self.tls_listeners = TlsListeners(metadata, loop)
        self.client_quotas = ClientQuotas(
            metadata, CLUSTER_PRINCIPAL, lambda: int(1000 * loop.time())
        )
        self.patterns = TopicPatterns()
        self.connected_clients = ConnectedClients()
        self.telemetry = TelemetryReceiver(
            metadata, lambda: int(loop.time() * 1000), lambda: uuid.uuid4().bytes
        )
        self.tracer = Tracer(loop, lambda: metadata.image)
        self.producer_ids = ProducerIds(metadata, controller)
        self.fetch_activity = FetchActivity()
        self.fetch_sessions = FetchSessionCache(
            lambda: random.randint(1, 2**31 - 1),
            lambda: metadata.broker_settings().max_incremental_fetch_session_cache_slots,
        )
        self.offset_lookup = OffsetLookup(metadata, inter_broker_client)
        self._build_share_services(inter_broker_client, loop)
        self.group_coordinator_type = GroupCoordinatorType(
            self.patterns, ShareStateEffects(self.share_persister, self.share_state_reloader).run
        )
        self.group_coordinator: CoordinatorService[GroupShard] = CoordinatorService(
            self.group_coordinator_type, metadata, controller, logs, worker_client, loop
        )
        self.archive_groups = ArchiveGroups(
            metadata,
            logs,
            worker_client,
            inter_broker_client,
            self.group_coordinator.coordinator_of,
            loop,
        )
        # A transaction ends with markers, and a marker ends what was verified: a circle.
        transaction_coordinator_type = TransactionCoordinatorType(
            lambda effect, context: self.markers.write(effect, context)
        )
        self.transaction_coordinator: CoordinatorService[TransactionShard] = CoordinatorService(
            transaction_coordinator_type, metadata, controller, logs, worker_client, loop
        )
        self.partition_verification = PartitionVerification(
            metadata, self.transaction_coordinator, inter_broker_client, loop
        )
        self.markers = MarkerWriter(
            metadata,
            logs,
            worker_client,
            inter_broker_client,
            self.group_coordinator,
            self.partition_verification,
        )

    def _build_share_services(
        self, inter_broker_client: InterBrokerClient, loop: asyncio.AbstractEventLoop
    ) -> None:
        metadata, logs, now_ms = self.metadata, self.logs, self.now_ms
        controller, worker_client = self.controller, self.worker_client
        self.share_coordinator: CoordinatorService[ShareStateShard] = CoordinatorService(
            ShareCoordinatorType(metadata, logs, worker_client),
            metadata,
            controller,
            logs,
            worker_client,
            loop,
        )
        """Of share states, as far as its shards are hosted here."""
        self.share_persister = SharePersister(
            metadata, self.share_coordinator, inter_broker_client, loop
        )
        """Share states, on whichever broker they are kept."""
        self.share_sessions = ShareSessions(
            lambda: metadata.broker_settings().group_share_max_share_sessions
        )
        self.dead_letter_queue = DeadLetterQueue(
            metadata, controller, logs, inter_broker_client, now_ms, loop
        )
        self.share_partitions = SharePartitions(
            metadata,
            logs,
            self.fetch_purgatory,
            self.share_persister,
            self.share_sessions,
            self.dead_letter_queue,
            now_ms,
            loop,
        )
        self.share_lag_positions = ShareLagPositions(
            self.share_persister, self.offset_lookup, self.share_partitions.group_settings, now_ms
        )
        self.share_state_reloader = ShareStateReloader(
            metadata, inter_broker_client, self.share_partitions
        )
        """Of the share partitions that this node leads."""

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply a new image, which the metadata cache has already."""
        self.authorizer.follow(self.metadata)
        self.group_coordinator.on_image(old, new)
        self.transaction_coordinator.on_image(old, new)
        self.share_coordinator.on_image(old, new)
        self.share_partitions.on_image(old, new)
        self.archive_groups.on_image(new)
        if old.topics_by_id is not new.topics_by_id:
            self.fetch_purgatory.wake_all()

    def on_storage_state(self, state: StorageState) -> None:
        """Processes of the node can write their files no longer, or can again."""
        self.storage_problem = joined(state.problems.values())
        self.worker_client.set_storage_state(state)
        self.controller.set_storage_state(state)

    def on_log_dirs(self, log_dirs: Sequence[LogDirectory]) -> None:
        """The log directories of the node: some of them may be offline."""
        offline = {place for place, each in enumerate(log_dirs) if each.problem}
        self.log_dir_problem = joined(
            f"log directory {each.path} is offline: {each.problem}"
            for each in log_dirs
            if each.problem
        )
        if offline != self.logs.offline:
            self.logs.take_offline(offline)
            self.fetch_purgatory.wake_all()

    def on_disconnected(self, connection_id: int) -> None:
        """A client's connection is closed."""
        # First the share sessions: a parked fetch that ends must not acquire records any more.
        self.share_partitions.on_disconnected(connection_id)
        self.fetch_purgatory.abandon(connection_id)
        self.fetch_activity.remove_connection(connection_id)
        self.telemetry.remove_connection(connection_id)
        self.connected_clients.remove(connection_id)

    def answer_waiting_requests(self) -> None:
        """The router stops: requests that wait are answered, with NOT_COORDINATOR if they wait in a
        group or a transaction. Later fetches wait for STOPPING_FETCH_WAIT_MS at most."""
        self.group_coordinator.close()
        self.transaction_coordinator.close()
        self.fetch_purgatory.end_all(later_wait_ms_max=STOPPING_FETCH_WAIT_MS)

    def fail_unanswered_requests(self) -> None:
        """The router stops: requests that wait for another process, which may not answer in time,
        fail. No more bytes of clients may be received: the arena's blocks are still in use."""
        self.worker_client.fail_all()
        self.controller.fail_all()
        self.close()

    def close(self) -> None:
        """Unload all shards and share partitions; pending requests fail."""
        self.archive_groups.close()
        self.tracer.close()
        self.tls_listeners.close()
        self.group_coordinator.close()
        self.transaction_coordinator.close()
        self.share_partitions.close()
        self.share_persister.close()
        self.share_coordinator.close()

    @property
    def missing_log_error(self) -> ErrorCode:
        """The error for a partition of this node whose log cannot be opened: its worker has not
        created it yet, or cannot."""
        if self.storage_problem or self.logs.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def node_id(self) -> int:
        """This broker."""
        return self.metadata.node_id

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image."""
        return self.metadata.image

    @property
    def static_configs(self) -> dict[str, str]:
        """The configuration that this broker was started with."""
        return self.metadata.static_configs
