"""Share groups on the router of a simulated node: durable share states and the records that members
hold.

Real code are the shards of `__share_group_state` with their hosts and runtimes, the handlers of the
APIs between nodes, `SharePersister`, and `SharePartitions` with the state machines of the
partitions that are led here. This module replaces the handlers of ShareFetch and ShareAcknowledge.
Nodes send each other requests over a network that loses, duplicates and delays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.cluster.metadata.image import MetadataImage, PartitionImage
from odradek.coordinator.share.acquisition import AcquiredRange, AcquireOptions
from odradek.coordinator.share.requests import Checkpoint, DropLog, MeasureLog
from odradek.coordinator.share.settings import ShareStateSettings
from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.context import Services, inter_broker_context
from odradek.node.router.dispatch import Handler
from odradek.node.router.fetch_purgatory import FetchPurgatory
from odradek.node.router.handlers import share_states as handlers
from odradek.node.router.logs import LocatedLog, Logs
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.share.dead_letter_queue import DeadLetterQueue
from odradek.node.router.share.partitions import HostedSharePartition, SharePartitions
from odradek.node.router.share.persister import SharePersister
from odradek.node.router.share.sessions import ShareSession, ShareSessions, TopicIdPartition
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.storage.reader import BATCHES_PER_READ_MAX, ReadResult, StoreReader
from tests.simulation.shards import Loop, ShardRouter, SimulatedShards
from tests.simulation.store import DiskLog, Identity, read_log

if TYPE_CHECKING:
    import asyncio

SHARE_TOPIC = "__share_group_state"
GROUP = "shares"
TERMS = ShareGroupSettings(lock_duration_ms=400, delivery_count_limit=4, record_locks_max=40)
SETTINGS = ShareStateSettings(updates_per_snapshot=5, log_records_max=12)
RECORDS_MAX = 6
ASK_TIMEOUT_S = 0.6
"""Instead of three seconds: simulated nodes are away for a second at most."""
LATE_SHARE = 0.4
LATE_MS_MAX = 800
"""Some requests arrive a second time, up to this much later."""

_HANDLERS: dict[type, tuple[ApiKey, Handler]] = {
    messages.InitializeShareGroupStateRequest: (
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        handlers.handle_share_group_state,
    ),
    messages.ReadShareGroupStateRequest: (
        ApiKey.READ_SHARE_GROUP_STATE,
        handlers.handle_share_group_state,
    ),
    messages.WriteShareGroupStateRequest: (
        ApiKey.WRITE_SHARE_GROUP_STATE,
        handlers.handle_share_group_state,
    ),
}


class ShareAsk(NamedTuple):
    """A request of one router to another."""

    sender: int
    incarnation: int
    number: int
    request: object


class ShareAnswer(NamedTuple):
    """The response; `incarnation` is that of the requesting router."""

    incarnation: int
    number: int
    response: object


class ShareFetched(NamedTuple):
    """The records that a member has acquired, in the leader's epoch."""

    error_code: ErrorCode
    leader_epoch: int = -1
    acquired: tuple[AcquiredRange, ...] = ()


class ShareAcknowledged(NamedTuple):
    """The results of a member's acknowledgements, in the epoch of the leader that applied them."""

    error_code: ErrorCode
    leader_epoch: int = -1


@dataclass(slots=True)
class Acknowledgement:
    """As on the wire: both offsets are inclusive."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class ShareWatcher(Protocol):
    """Observes what share partitions do. It must not change anything."""

    def share_acquired(
        self,
        machine: HostedSharePartition,
        member: str,
        taken: AcquiredRange,
        now_ms: int,
        until_ms: int,
    ) -> None: ...

    def share_answered(
        self, machine: HostedSharePartition, batches: "Sequence[Acknowledgement]"
    ) -> None: ...

    def share_left(self, machine: HostedSharePartition, member: str) -> None: ...


class _Partitions(SharePartitions):
    """With settings that cause trouble within seconds."""

    def group_settings(self, group_id: str) -> ShareGroupSettings:
        return TERMS


class _Logs:
    """The logs of the node, with the reader and the status table of its only store."""

    def __init__(self, router: ShardRouter) -> None:
        self._router = router
        self.status = self

    def open(self, topic_id: bytes, partition: int) -> LocatedLog | None:
        number = self._router.locate((topic_id, partition))
        return None if number is None else LocatedLog(cast("StoreReader", self), 0, number)

    def log_start_offset(self, number: int) -> int:
        return self._log(number).log_start_offset

    def log_end_offset(self, number: int) -> int:
        return self._log(number).log_end_offset

    def high_watermark(self, number: int) -> int:
        return self._router.high_watermark(self._log(number).identity)

    def read(
        self,
        number: int,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool = True,
        batches_max: int = BATCHES_PER_READ_MAX,
    ) -> ReadResult:
        return read_log(
            self._log(number),
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            min_one_batch=min_one_batch,
            batches_max=batches_max,
        )

    def _log(self, number: int) -> DiskLog:
        logs = self._router.node.store_disk.logs.values()
        return next(log for log in logs if log.number == number)


class _Nobody:
    """Replaces the fetch purgatory and the sessions: no fetch waits, and every member has a
    session."""

    def on_advanced(self, _store: int, _numbers: object) -> None: ...

    def on_available(self, _signal: object) -> None: ...

    def has_any(self, _group_id: str) -> bool:
        return True


class ShareHost:
    """See the module's docstring. Created at every start of the router's process."""

    def __init__(self, router: ShardRouter, loop: Loop, watcher: ShareWatcher) -> None:
        self.node_id = router.node.own_id
        self._router = router
        self._loop = loop
        self._watcher = watcher
        self._asked: dict[int, Reply[object]] = {}
        self._next_id = 0
        self.shards = SimulatedShards(
            router,
            SHARE_TOPIC,
            lambda: ShareStateShard(SETTINGS, router.image.topics_by_id),
            loop,
            self._run_effect,
        )
        self.authorizer = Authorizer()
        self.share_coordinator = self
        timers = cast("asyncio.AbstractEventLoop", loop)
        coordinator = cast("CoordinatorService[ShareStateShard]", self)
        self.states = SharePersister(router.metadata, coordinator, self, timers)
        nobody = _Nobody()
        self._partitions = _Partitions(
            router.metadata,
            cast("Logs", _Logs(router)),
            cast("FetchPurgatory", nobody),
            self.states,
            cast("ShareSessions", nobody),
            cast("DeadLetterQueue", None),
            router.node.clock_ms,
            timers,
        )
        self._followed = router.image

    # -- what share states need of their router ----------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self._router.image

    def call(self, key: str, request: object, _asker: object = None) -> Reply[Any]:
        return self.shards.call(key, request)

    def shard_of(self, key: str) -> int:
        return self.shards.shard_of(key)

    def coordinator_of(self, key: str) -> int:
        return self.shards.coordinator_of(key)

    async def ensure_topic(self) -> None:
        if self.shards.topic() is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def send(self, node_id: int, request: object) -> Reply[Any]:
        """As `InterBrokerClient.ask`."""
        self._next_id = number = self._next_id + 1
        reply = self._asked[number] = Reply()
        node = self._router.node
        message = ShareAsk(node.own_id, node.incarnation, number, request)
        node.simulation.send(node.own_id, node_id, message)
        random = node.simulation.random
        if random.random() < LATE_SHARE:
            # As when a connection breaks while bytes in its buffers still arrive.
            delay_s = random.randrange(LATE_MS_MAX) / 1_000
            self._loop.call_later(delay_s, node.simulation.send, node.own_id, node_id, message)
        self._loop.call_later(ASK_TIMEOUT_S, self._give_up, number)
        return reply

    def _give_up(self, number: int) -> None:
        reply = self._asked.pop(number, None)
        if reply is not None:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def receive(self, message: ShareAsk | ShareAnswer) -> None:
        """A request or a response of another node's router."""
        node = self._router.node
        if isinstance(message, ShareAnswer):
            reply = self._asked.pop(message.number, None)
            if reply is not None and message.incarnation == node.incarnation:
                reply.resolve(message.response)
            return
        key, handler = _HANDLERS[type(message.request)]
        context = inter_broker_context(key, 1)

        def finish(response: object, error: BaseException | None) -> None:
            assert error is None, error
            answer = ShareAnswer(message.incarnation, message.number, response)
            node.simulation.send(node.own_id, message.sender, answer)

        drive(handler(message.request, context, cast("Services", self)), finish)

    def _run_effect(self, shard: int, instruction: object) -> None:
        """As `ShareCoordinatorType.run_effect`."""
        topic = self.shards.topic()
        assert topic is not None
        disk, identity = self._router.node.store_disk, (topic.topic_id, shard)
        if isinstance(instruction, MeasureLog):
            self.shards.call_shard(shard, Checkpoint(disk.logs[identity].log_end_offset))
        else:
            assert isinstance(instruction, DropLog)
            disk.dropped[identity] = max(instruction.end_offset, disk.dropped.get(identity, 0))

    def active_shards(self) -> list[ShareStateShard]:
        """The active shards."""
        shards = [host.runtime.shard for host in self.shards.hosts.values() if host.is_active]
        return [shard for shard in shards if isinstance(shard, ShareStateShard)]

    # -- metadata ----------------------------------------------------------------------------------

    def follow(self) -> None:
        """The router has a new image."""
        self.shards.follow()
        for host in self.shards.hosts.values():
            shard = host.runtime.shard
            assert isinstance(shard, ShareStateShard)
            shard.topics = self.image.topics_by_id
        old, self._followed = self._followed, self.image
        self._partitions.on_image(old, self.image)

    # -- members -----------------------------------------------------------------------------------

    def fetch(self, identity: Identity, member: str) -> ShareFetched:
        """As the handler of ShareFetch does, without waiting."""
        state = self._led(identity)
        if state is None:
            return ShareFetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partitions = self._partitions
        hosted = partitions.get(GROUP, TopicIdPartition(*identity), state)
        reading = partitions.read(hosted, RECORDS_MAX, 1 << 20, min_one_batch=True)
        if reading is None:
            return ShareFetched(hosted.error_code, hosted.leader_epoch)
        now_ms = partitions.now_ms()
        acquired = partitions.acquire(
            hosted, reading, member, AcquireOptions(records_max=RECORDS_MAX)
        )
        for taken in acquired:
            until_ms = now_ms + TERMS.lock_duration_ms
            self._watcher.share_acquired(hosted, member, taken, now_ms, until_ms)
        return ShareFetched(ErrorCode.NONE, hosted.leader_epoch, tuple(acquired))

    def acknowledge(
        self,
        identity: Identity,
        member: str,
        batches: Sequence[Acknowledgement],
        answer: Callable[[ShareAcknowledged], None],
    ) -> None:
        """As the handler of ShareAcknowledge does."""
        place = TopicIdPartition(*identity)
        hosted = self._partitions.hosted(GROUP).get(place)
        if self._led(identity) is None or hosted is None:
            answer(ShareAcknowledged(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return

        def settle(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._watcher.share_answered(hosted, batches)
            answer(ShareAcknowledged(code, hosted.leader_epoch))

        taken = self._partitions.acknowledge(GROUP, member, place, batches)
        if isinstance(taken, Reply):
            reply: Reply[ErrorCode] = taken
            reply.on_done(lambda: settle(reply.result()))
        else:
            settle(taken)

    def release(self, identity: Identity, member: str) -> None:
        """The member has left."""
        hosted = self._partitions.hosted(GROUP).get(TopicIdPartition(*identity))
        self._partitions.release(ShareSession(GROUP, member, 0), was_delivered=True)
        if hosted is not None:
            self._watcher.share_left(hosted, member)

    def _led(self, identity: Identity) -> PartitionImage | None:
        """The partition, if this node leads it in its image."""
        state = self.image.partition(*identity)
        return state if state is not None and state.leader == self.node_id else None
