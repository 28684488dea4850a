"""The worker and the router of a simulated node.

The worker runs the real code below its loop: `Replication` with the real server and fetchers,
`HostedPartitions`, `TurnExecutor` and `AlterPartitionSender`, over a store in memory and simulated
sockets. The router hosts the real shards (`ShardHost`, `ShardRuntime`, `GroupShard`,
`TransactionShard`) on a loop with the simulation's clock. It carries produce requests to the worker
and reads logs for consumers, as its handlers do.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import zmq

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.cluster.replication.leader import IsrProposal
from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.coordinator.group.requests import ConsumerHeartbeat, UpdateTopics
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.group.topics import TopicCatalog, changed_topic_names
from odradek.coordinator.outcome import Command, ErrorReply
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.bus.messages import (
    UNSENT,
    AppendBytes,
    Appended,
    CommandSubmitted,
    ProducersDescribed,
    RequestFailed,
    SubmitCommand,
    WorkerRequest,
)
from odradek.node.bus.reply import Reply
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.transactions.partition_verification import TransactionalProducer
from odradek.node.worker.alter_partition_sender import AlterPartitionSender
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.node.worker.replica_fetchers import ReplicaNetwork
from odradek.node.worker.replication import Replication
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.node.worker.turns import TurnExecutor
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from odradek.protocol.records import TRANSACTIONAL, read_header
from odradek.storage.reader import StoreReader
from odradek.storage.settings import StoreOptions
from odradek.storage.store import Store
from tests.simulation.node_parts import Channel, NodeSettings
from tests.simulation.shards import PRODUCE_TIMEOUT_MS, Loop, SimulatedShards
from tests.simulation.share_host import ShareHost, ShareWatcher
from tests.simulation.simulation import Simulation
from tests.simulation.store import Identity, SimulatedBatch, SimulatedStore, StoreDisk, StoreWatcher
from tests.simulation.transaction_ends import TransactionEnds
from tests.simulation.wires import Wires

R = TypeVar("R")

GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
_NEVER = 2**62
_FOLDER = Path("simulated")


class Watcher(StoreWatcher, ShareWatcher, Protocol):
    """Observes everything that happens on a node. It must not change anything."""


class BrokerNode(Protocol):
    """The node as its worker and router see it."""

    own_id: int
    incarnation: int
    clock_rate: float
    simulation: Simulation
    settings: NodeSettings
    wires: Wires
    watcher: Watcher
    store_disk: StoreDisk
    worker: "SimulatedWorker"
    router: "SimulatedRouter"
    to_worker: Channel
    to_router: Channel
    to_controller: Channel

    def clock_ms(self) -> int: ...

    def submit_of_worker(self, identity: bytes, message: SubmitCommand) -> None: ...

    def applied(self, process: str, offset: int) -> None: ...


class SimulatedWorker:
    """See the module's docstring. Created at every start of the process."""

    def __init__(self, node: "BrokerNode") -> None:
        self.node = node
        self.is_ended = False
        self.identity = f"{node.own_id}-{node.incarnation}-{node.simulation.now_ms}".encode()
        """The identity of its connections: answers do not go to a later incarnation."""
        self.image = MetadataImage.empty()
        self.store = SimulatedStore(node.own_id, node.store_disk, node.watcher)
        self._context = node.wires.context(node.own_id, self.serve)
        self._routers = RouterState()
        self._requests: list[tuple[RouterState, Request]] = []
        now_ms = node.clock_ms()
        store = self.store
        self.partitions = HostedPartitions(
            folders=(_FOLDER,),
            worker=0,
            worker_count=1,
            store_count=1,
            node_id=node.own_id,
            static_configs=node.settings.static,
            options=StoreOptions(),
            now_ms=now_ms,
            # It does what workers need of a store.
            open_store=lambda _folder, _options, _now_ms: cast("Store", store),
        )
        self.turns = TurnExecutor(self.partitions, lambda _message: None)
        self.proposals = AlterPartitionSender(node.own_id, self._tell_controller)
        self.replication = Replication(
            cast("zmq.Context[zmq.Socket[bytes]]", self._context),
            self.partitions,
            self.turns,
            ReplicaNetwork(
                "simulated",
                node.own_id,
                self.identity,
                _address(node.own_id),
                self._address_of,
                lag_max_ms=node.settings.lag_max_ms,
            ),
            stores_folders=(_FOLDER,),
            watch=lambda _socket: None,
            propose=self._propose,
            now_ms=now_ms,
            open_reader=lambda _folder: cast("StoreReader", store),
        )
        self._next_look_ms = now_ms

    def end(self, *, is_silent: bool) -> None:
        """The process has ended."""
        if not self.is_ended:
            self.is_ended = True
            self._context.end(is_silent=is_silent)

    def _address_of(self, node_id: int, _store: int) -> str | None:
        return _address(node_id) if node_id in self.image.brokers else None

    def ask(self, request: Request) -> None:
        """A request of the router has arrived."""
        self._requests.append((self._routers, request))
        self.serve()

    def serve(self) -> None:
        """Run one turn, as the worker's loop does."""
        now_ms = self.node.clock_ms()
        requests, self._requests = self._requests, []
        requests += self.replication.receive(now_ms)
        if requests:
            self.turns.run(requests, now_ms)
        self.replication.after_turn(now_ms)
        self._send_replies()

    def tick(self) -> None:
        """Run what is due."""
        now_ms = self.node.clock_ms()
        if now_ms < self.next_ms():
            return
        self.replication.tick(now_ms)
        for proposal, code in self.proposals.expired(now_ms):
            self.replication.on_proposal_result(proposal, code, now_ms)
        self._next_look_ms = now_ms + 1_000
        self.serve()

    def next_ms(self) -> int:
        """When `tick` is due next."""
        if not self.replication.is_active:
            return self._next_look_ms
        return min(self._next_look_ms, self.replication.next_ms(self.node.clock_ms()))

    def follow(self, image: MetadataImage) -> None:
        """The controller has published an image."""
        if image.offset <= self.image.offset:
            return
        now_ms = self.node.clock_ms()
        self.image = image
        self.partitions.apply_image(image)
        while self.partitions.is_outdated:
            self.partitions.update_outdated()
        self.replication.apply_image(image, now_ms)
        self._send_replies()
        offset, node = image.offset, self.node
        node.to_controller.put(lambda: None if self.is_ended else node.applied("worker", offset))

    def on_response(self, message: CommandSubmitted) -> None:
        """The controller has answered a proposal."""
        now_ms = self.node.clock_ms()
        for proposal, code in self.proposals.on_response(message):
            self.replication.on_proposal_result(proposal, code, now_ms)

    def _propose(self, proposals: Sequence[IsrProposal]) -> None:
        self.proposals.send(proposals, self.image, self.node.clock_ms())

    def _tell_controller(self, message: SubmitCommand) -> None:
        self.node.to_controller.put(lambda: self.node.submit_of_worker(self.identity, message))

    def _send_replies(self) -> None:
        replies = self._routers.replies
        if replies:
            self._routers.replies = []
            router = self.node.router
            self.node.to_router.put(lambda: router.on_response(self, replies))


def _address(node_id: int) -> str:
    return f"simulated:{node_id}"


class Produce(NamedTuple):
    """A producer's request."""

    identity: Identity
    batch: bytes
    acks: int
    transactional_id: str = ""
    version: int = 13


class Produced(NamedTuple):
    """The response to it."""

    error_code: int
    base_offset: int = -1


class Fetch(NamedTuple):
    """A consumer's request."""

    identity: Identity
    offset: int
    leader_epoch: int = -1
    is_committed_only: bool = False


class Fetched(NamedTuple):
    """The response: records below the high watermark or below the last stable offset."""

    error_code: int
    high_watermark: int = -1
    batches: tuple[SimulatedBatch, ...] = ()


class SimulatedRouter:
    """See the module's docstring."""

    def __init__(self, node: "BrokerNode") -> None:
        self.node = node
        self.metadata = MetadataCache(node.own_id, {})
        self._of_worker: dict[int, Reply[Any]] = {}
        self._loop = Loop(node)
        self._next_id = 0
        settings = node.settings.group
        self._topics = TopicCatalog(self.image)
        self._groups = SimulatedShards(
            self, GROUP_TOPIC, lambda: GroupShard(settings, self._topics), self._loop
        )
        transaction = node.settings.transaction
        self._transactions = SimulatedShards(
            self,
            TRANSACTION_TOPIC,
            lambda: TransactionShard(transaction),
            self._loop,
            lambda shard, instruction: self.ends.run_effect(shard, instruction),
        )
        self.ends = TransactionEnds(self, self._loop, self._groups, self._transactions)
        self.shares = ShareHost(self, self._loop, node.watcher)

    @property
    def image(self) -> MetadataImage:
        """The newest image that the controller has published."""
        return self.metadata.image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        self.metadata.image = image

    def end(self) -> None:
        """The process has ended."""
        self._loop.is_closed = True

    # -- the worker --------------------------------------------------------------------------------

    def locate(self, identity: Identity) -> int | None:
        """The partition's number in the store."""
        log = self.node.store_disk.logs.get(identity)
        return None if log is None else log.number

    def high_watermark(self, identity: Identity) -> int:
        """The high watermark in the status table."""
        log = self.node.store_disk.logs.get(identity)
        state = None if log is None else self.node.worker.store.partitions().get(log.number)
        return 0 if state is None else state.high_watermark

    def send_to_worker(self, request: WorkerRequest[R]) -> Reply[R]:
        """Send through the ring, in order."""
        self._next_id = key = request.request_id = self._next_id + 1
        reply: Reply[Any] = Reply()
        self._of_worker[key] = reply
        node = self.node
        worker = node.worker
        if worker.is_ended:
            # Held until the next incarnation runs; its outcome is undecided then.
            del self._of_worker[key]
            reply.resolve(RequestFailed(key, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return reply
        node.to_worker.put(lambda: node.worker.ask(request))
        return reply

    def on_response(self, worker: SimulatedWorker, replies: Sequence[object]) -> None:
        """Answers of the worker."""
        if worker is not self.node.worker:
            return
        for answer in replies:
            assert isinstance(answer, Appended | RequestFailed | ProducersDescribed)
            reply = self._of_worker.pop(answer.request_id, None)
            if reply is not None:
                reply.resolve(answer)

    def worker_lost(self) -> None:
        """The outcome of its pending requests is unknown."""
        waiting, self._of_worker = self._of_worker, {}
        for key, reply in waiting.items():
            reply.resolve(RequestFailed(key, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- clients -----------------------------------------------------------------------------------

    def produce(self, request: Produce, answer: Callable[[Produced], None]) -> None:
        """As the handler of Produce does."""
        state = self.image.partition(*request.identity)
        number = self.locate(request.identity)
        if state is None or state.leader != self.node.own_id or number is None:
            answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return

        def append(leader_epoch: int) -> Reply[Any]:
            return self.send_to_worker(
                AppendBytes(
                    UNSENT,
                    0,
                    number,
                    request.batch,
                    is_client=True,
                    leader_epoch=leader_epoch,
                    acks=request.acks,
                    timeout_ms=PRODUCE_TIMEOUT_MS,
                )
            )

        header = read_header(memoryview(request.batch))
        if header.attributes & TRANSACTIONAL:
            topic_id, index = request.identity
            producer = TransactionalProducer(
                request.transactional_id, header.producer_id, header.producer_epoch
            )
            partition = self.image.topics_by_id[topic_id].name, index
            partition_verification = self.ends.partition_verification
            reply = partition_verification.append(
                producer,
                partition,
                append,
                version=request.version,
                sequence=header.base_sequence,
            )
        else:
            reply = append(ANY_EPOCH)

        def done() -> None:
            found = reply.result()
            offset = found.base_offset if isinstance(found, Appended) else -1
            answer(Produced(found.error_code, offset))

        reply.on_done(done)

    def fetch(self, request: Fetch) -> Fetched:
        """As the handler of Fetch does, without waiting."""
        state = self.image.partition(*request.identity)
        log = self.node.store_disk.logs.get(request.identity)
        if state is None or log is None or state.leader != self.node.own_id:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.leader_epoch not in (-1, state.leader_epoch):
            return Fetched(ErrorCode.FENCED_LEADER_EPOCH)
        end = self.high_watermark(request.identity)
        if request.is_committed_only:
            end = self.node.worker.store.partitions()[log.number].last_stable_offset
        batches = []
        for batch in log.batches[log.index_of(request.offset) :][:20]:
            if batch.end_offset > end:
                break
            batches.append(batch)
        return Fetched(ErrorCode.NONE, end, tuple(batches))

    def coordinate(self, group_id: str, request: object, api_version: int) -> Reply[object]:
        """As `CoordinatorService.call`; a shard that cannot answer does so with a Refusal."""
        reply: Reply[object] = Reply()
        called = self._groups.call(group_id, request, api_version)

        def done() -> None:
            try:
                reply.resolve(called.result())
            except ApiError as error:
                reply.resolve(ErrorReply(0, error.code))

        called.on_done(done)
        if isinstance(request, ConsumerHeartbeat | StreamsGroupHeartbeatRequest):
            self._tell_what_was_missed(group_id)
        return reply

    def _tell_what_was_missed(self, group_id: str) -> None:
        """As `CoordinatorService.call_for_heartbeat`."""
        host = self._groups.hosts.get(self._groups.shard_of(group_id))
        if host is not None and host.is_active:
            shard = host.runtime.shard
            assert isinstance(shard, GroupShard)
            if shard.consumers.needs_topics:
                host.execute(Command(request=UpdateTopics(None, {})))

    # -- metadata ----------------------------------------------------------------------------------

    def follow(self, image: MetadataImage) -> None:
        """The controller has published an image; as `CoordinatorService.on_image`."""
        if self._loop.is_closed or image.offset <= self.image.offset:
            return
        changed = changed_topic_names(self.image, image)
        self.image = image
        if changed:
            self._tell_of_topics(changed)
        self._groups.follow()
        self._transactions.follow()
        self.shares.follow()
        node, offset = self.node, image.offset
        node.to_controller.put(lambda: node.applied("router", offset))

    def _tell_of_topics(self, changed: frozenset[str]) -> None:
        self._topics = TopicCatalog(self.image)
        for host in self._groups.hosts.values():
            shard = host.runtime.shard
            assert isinstance(shard, GroupShard)
            shard.topics = self._topics
            if host.is_active:
                host.execute(Command(request=UpdateTopics(changed, {})))

    def leader_of(self, identity: Identity) -> tuple[int, int]:
        """The leader and its epoch in this router's image."""
        state = self.image.partition(*identity)
        return (NO_LEADER, -1) if state is None else (state.leader, state.leader_epoch)
