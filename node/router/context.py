"""The arguments of every handler beside the request: its context, and the router's services.

`RequestContext` is one request; `Services` is one router. Handlers depend on these two types and on
nothing else of the router. `Services` has no state of a request, `RequestContext` none of the
router.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.fetch_activity import FetchActivity
from odradek.node.router.fetch_purgatory import FetchPurgatory
from odradek.node.router.fetch_sessions import FetchSessionCache
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.offset_lookup import OffsetLookup
from odradek.node.router.patterns import TopicPatterns
from odradek.node.router.producer_ids import ProducerIds
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.share.dead_letter_queue import DeadLetterQueue
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import ShareSessions
from odradek.node.router.share.state_reload import ShareStateReloader
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.node.router.worker_client import WorkerClient

CLUSTER_PRINCIPAL = "User:CLUSTER"
"""The principal of other nodes of the cluster."""


class RequestContext(msgspec.Struct, kw_only=True, eq=False):
    """One request and its connection.

    `arena_offset` is the frame's position in the router's arena. A handler that passes on bytes of
    the frame must call `retain` before its first await: it keeps them until the response is sent.
    `offset_of` is the position of a view of the frame in the arena. The objects in `holds` are
    released when the response is sent. `close` closes the connection, for errors that have no field
    in the response. The client is connected to `local_host` and `local_port`.
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


@dataclass(slots=True, kw_only=True)
class Services:
    """What one router offers to its handlers."""

    cluster_id: str
    metadata: MetadataCache
    now_ms: Callable[[], int]
    controller: ControllerLink
    worker_client: WorkerClient
    logs: Logs
    authorizer: Authorizer
    producer_ids: ProducerIds
    fetch_sessions: FetchSessionCache
    fetch_purgatory: FetchPurgatory
    patterns: TopicPatterns
    fetch_activity: FetchActivity
    group_coordinator: CoordinatorService[GroupShard]
    transaction_coordinator: CoordinatorService[TransactionShard]
    partition_verification: PartitionVerification
    markers: MarkerWriter
    offset_lookup: OffsetLookup
    share_coordinator: CoordinatorService[ShareStateShard]
    """Of share states, as far as its shards are hosted here."""
    share_persister: SharePersister
    """Share states, on whichever broker they are kept."""
    share_sessions: ShareSessions
    share_partitions: SharePartitions
    share_state_reloader: ShareStateReloader
    """Of the share partitions that this node leads."""
    dead_letter_queue: DeadLetterQueue
    served_apis: tuple[int, ...] = ()
    profile: str = "standard"

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
