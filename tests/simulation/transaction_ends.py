"""Transactions on the router of a simulated node: the real partition verification, markers and
handlers, and requests between nodes over the simulated network.

A request to another node may be lost, duplicated or delayed; its sender gives up after a second.
Markers use a connection: they arrive in order, late, or not at all, and with `late_copy_share` once
more. Markers that are in flight when their coordinator is deposed arrive nevertheless, possibly
after the producer's next transaction has begun.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from odradek.cluster.metadata.image import MetadataImage
from odradek.coordinator.runtime import ShardState
from odradek.coordinator.transaction.requests import WriteMarkers
from odradek.node.bus.messages import AppendReply, WorkerRequest, WriteMarker
from odradek.node.bus.reply import Reply, start_coroutine
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.context import RequestContext, Services, inter_broker_context
from odradek.node.router.dispatch import error_response
from odradek.node.router.handlers.transactions import (
    handle_add_partitions_to_txn,
    handle_write_txn_markers,
)
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import INTERNAL_CALLER, ShardCaller
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.node.router.transactions.partition_verification import PartitionVerification
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from tests.simulation.shards import Loop, SimulatedShards
from tests.simulation.simulation import Simulation
from tests.simulation.store import Identity

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

ASK_TIMEOUT_S = 1.0
_IDS_OF_A_NODE = 1_000_000
_MARKER_TIMEOUT_MS = 1_500
_LATE_COPY_MS_MAX = 1_000
Handler = Callable[[Any, RequestContext, Services], Coroutine[Any, Any, object]]


class Asked(NamedTuple):
    """A request to the router of another node."""

    sender: int
    incarnation: int
    number: int
    request: object


class TransactionResponse(NamedTuple):
    """The response to it."""

    incarnation: int
    number: int
    response: object


class TransactionNode(Protocol):
    """The node of the router."""

    own_id: int
    incarnation: int
    simulation: Simulation


class TransactionRouter(Protocol):
    """The router as this module needs it."""

    image: MetadataImage
    metadata: MetadataCache

    @property
    def node(self) -> TransactionNode: ...

    def locate(self, identity: Identity) -> int | None: ...

    def send_to_worker(self, request: WorkerRequest[R]) -> Reply[R]: ...


class _Coordinators:
    """The shards of one coordinator, as handlers call them."""

    def __init__(self, shards: SimulatedShards) -> None:
        self._shards = shards
        self.shard_of = shards.shard_of
        self.coordinator_of = shards.coordinator_of

    def call(
        self, key: str, request: object, caller: ShardCaller = INTERNAL_CALLER
    ) -> Reply[object]:
        return self._shards.call(key, request, caller.api_version)

    def call_shard(
        self, shard: int, request: object, caller: ShardCaller = INTERNAL_CALLER
    ) -> Reply[object]:
        return self._shards.call_shard(shard, request, caller.api_version)

    async def ensure_topic(self) -> None:
        """It was created at the start."""


class _Fanout:
    def __init__(self, router: TransactionRouter) -> None:
        self._router = router

    def send(self, request: WriteMarker) -> Reply[AppendReply]:
        request.timeout_ms = _MARKER_TIMEOUT_MS
        return self._router.send_to_worker(request)


class _Logs:
    def __init__(self, router: TransactionRouter) -> None:
        self._router = router

    def locate(self, topic_id: bytes, partition: int) -> tuple[int, int] | None:
        number = self._router.locate((topic_id, partition))
        return None if number is None else (0, number)


class _ProducerIds:
    """Blocks that no other start of a node uses."""

    def __init__(self, node: TransactionNode) -> None:
        self._next = (node.incarnation * 100 + node.own_id) * _IDS_OF_A_NODE

    async def next_id(self) -> int:
        self._next += 1
        return self._next


class _Services:
    """The services that the handlers of transactions use."""

    def __init__(
        self, router: TransactionRouter, groups: SimulatedShards, transactions: SimulatedShards
    ) -> None:
        self._router = router
        self.node_id = router.node.own_id
        self.metadata = router.metadata
        self.worker_client = _Fanout(router)
        self.logs = _Logs(router)
        self.authorizer = Authorizer()
        self.producer_ids = _ProducerIds(router.node)
        self.group_coordinator = _Coordinators(groups)
        self.transaction_coordinator = _Coordinators(transactions)
        self.markers: MarkerWriter
        self.partition_verification: PartitionVerification

    @property
    def image(self) -> MetadataImage:
        return self._router.image


class TransactionEnds:
    """See the module's docstring. Created at every start of the router."""

    def __init__(
        self,
        router: TransactionRouter,
        loop: Loop,
        groups: SimulatedShards,
        transactions: SimulatedShards,
    ) -> None:
        self._router = router
        self._loop = loop
        self._transactions = transactions
        self._pending: dict[int, Reply[object]] = {}
        self._next_number = 0
        self._markers_due_ms: dict[int, int] = {}
        self._held_up_until_ms = 0
        services = _Services(router, groups, transactions)
        self.services = known = cast("Services", services)
        self.partition_verification = services.partition_verification = PartitionVerification(
            router.metadata,
            known.transaction_coordinator,
            self,
            cast("asyncio.AbstractEventLoop", loop),
        )
        self._markers = services.markers = MarkerWriter(
            router.metadata,
            known.logs,
            known.worker_client,
            self,
            known.group_coordinator,
            self.partition_verification,
            self._pause,
        )

    def run_effect(self, shard: int, instruction: object) -> None:
        """Run an effect of a transaction shard."""
        assert isinstance(instruction, WriteMarkers)
        host = self._transactions.hosts[shard]
        runtime = host.runtime

        def is_current() -> bool:
            return (
                not self._loop.is_closed
                and host.runtime is runtime
                and runtime.state not in (ShardState.FAILED, ShardState.CLOSED)
            )

        def tell(request: object) -> Reply[object]:
            return self._transactions.call_shard(shard, request)

        self._markers.write(instruction, EffectContext(host.leader_epoch, is_current, tell, shard))

    def handle(self, handler: Handler, request: object, key: ApiKey, version: int) -> Reply[object]:
        """The response to a client's request, as the dispatcher makes it."""

        async def respond() -> object:
            try:
                return await handler(request, inter_broker_context(key, version), self.services)
            except ApiError as error:
                return error_response(APIS[key], version, error)

        return start_coroutine(respond())

    # -- other nodes -------------------------------------------------------------------------------

    def send(self, node_id: int, request: object) -> Reply[Any]:
        """As `InterBrokerClient.ask`."""
        node = self._router.node
        reply: Reply[object] = Reply()
        self._next_number = number = self._next_number + 1
        self._pending[number] = reply
        asked = Asked(node.own_id, node.incarnation, number, request)
        if isinstance(request, WriteTxnMarkersRequest):
            self._send_markers(node_id, asked)
        else:
            node.simulation.send(node.own_id, node_id, asked)
        self._loop.call_later(ASK_TIMEOUT_S, self._give_up, number)
        return reply

    def receive(self, message: Asked | TransactionResponse) -> None:
        """A request or a response of another node's router."""
        node = self._router.node
        if isinstance(message, TransactionResponse):
            reply = self._pending.pop(message.number, None)
            if reply is not None and message.incarnation == node.incarnation:
                reply.resolve(message.response)
            return
        if isinstance(message.request, WriteTxnMarkersRequest):
            handled = self.handle(
                handle_write_txn_markers, message.request, ApiKey.WRITE_TXN_MARKERS, 2
            )
        else:
            assert isinstance(message.request, AddPartitionsToTxnRequest)
            handled = self.handle(
                handle_add_partitions_to_txn, message.request, ApiKey.ADD_PARTITIONS_TO_TXN, 5
            )

        def tell() -> None:
            told = TransactionResponse(message.incarnation, message.number, handled.result())
            node.simulation.send(node.own_id, message.sender, told)

        handled.on_done(tell)

    def hold_up_markers(self, for_ms: int) -> None:
        """Markers that are sent from now on arrive late."""
        self._held_up_until_ms = self._router.node.simulation.now_ms + for_ms

    def _send_markers(self, node_id: int, asked: Asked) -> None:
        node = self._router.node
        simulation, network = node.simulation, node.simulation.network
        if network.is_cut(node.own_id, node_id) or simulation.random.random() < network.drop_share:
            return
        due_ms = max(
            simulation.now_ms + network.delay_of_a_stream_ms(),
            self._markers_due_ms.get(node_id, 0),
            self._held_up_until_ms,
        )
        self._markers_due_ms[node_id] = due_ms
        simulation.deliver(node_id, due_ms - simulation.now_ms, asked)
        if simulation.random.random() < network.late_copy_share:
            late_ms = simulation.random.randrange(_LATE_COPY_MS_MAX)
            simulation.deliver(node_id, due_ms + late_ms - simulation.now_ms, asked)

    def _give_up(self, number: int) -> None:
        reply = self._pending.pop(number, None)
        if reply is not None:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def _pause(self, seconds: float) -> None:
        reply: Reply[None] = Reply()
        self._loop.call_later(seconds, reply.resolve, None)
        await reply
