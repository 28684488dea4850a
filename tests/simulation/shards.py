"""Coordinator shards on the router of a simulated node: the real hosts, runtimes and shards.

Their loop has the node's clock. They read and write their logs as `node/router/shards/shard_log.py`
does, through the worker and its store.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, TopicImage
from odradek.coordinator.loader import LogEntry
from odradek.coordinator.outcome import Answer, Command, ErrorReply
from odradek.coordinator.ownership import hosting_changes, shard_of, shards_to_host
from odradek.coordinator.runtime import Shard, ShardRuntime
from odradek.node.bus.messages import (
    UNSENT,
    AppendBytes,
    DescribeProducers,
    RequestFailed,
    WorkerRequest,
)
from odradek.node.bus.reply import Reply
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.shard_host import ShardHost
from odradek.node.router.shards.shard_log import decode_entries
from odradek.protocol.errors import ApiError, ErrorCode
from tests.simulation.simulation import Simulation
from tests.simulation.store import Identity, StoreDisk

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

PRODUCE_TIMEOUT_MS = 1_500


class ShardNode(Protocol):
    """The node as shards see it."""

    own_id: int
    incarnation: int
    clock_rate: float
    simulation: Simulation
    store_disk: StoreDisk

    def clock_ms(self) -> int: ...


class ShardRouter(Protocol):
    """The router as shards see it."""

    image: MetadataImage
    metadata: MetadataCache

    @property
    def node(self) -> ShardNode: ...

    def locate(self, identity: Identity) -> int | None: ...

    def high_watermark(self, identity: Identity) -> int: ...

    def send_to_worker(self, request: WorkerRequest[R]) -> Reply[R]: ...


class Loop:
    """The part of asyncio's loop that `ShardHost` uses, with the node's clock."""

    def __init__(self, node: ShardNode) -> None:
        self._node = node
        self.is_closed = False

    def time(self) -> float:
        return self._node.clock_ms() / 1_000

    def call_soon(self, action: Callable[..., None], *arguments: object) -> "Handle":
        return self.call_later(0, action, *arguments)

    def call_at(self, when: float, action: Callable[..., None], *arguments: object) -> "Handle":
        return self.call_later(when - self.time(), action, *arguments)

    def call_later(self, delay: float, action: Callable[..., None], *arguments: object) -> "Handle":
        handle = Handle()

        def happen() -> None:
            if not handle.is_cancelled and not self.is_closed:
                action(*arguments)

        delay_ms = max(0, int(delay * 1_000 / self._node.clock_rate + 0.999))
        self._node.simulation.after_on(self._node.own_id, delay_ms, happen)
        return handle


class Handle:
    """The handle of a scheduled call."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedShardLog:
    """`ShardLog` of one partition, through the router."""

    def __init__(self, router: ShardRouter, identity: Identity) -> None:
        self._router = router
        self._identity = identity

    def barrier(self) -> Reply[Any]:
        number = self._router.locate(self._identity)
        if number is None:
            return _not_yet()
        return self._router.send_to_worker(DescribeProducers(UNSENT, 0, number))

    def bounds(self) -> tuple[int, int]:
        disk = self._router.node.store_disk
        log = disk.logs[self._identity]
        return max(log.log_start_offset, disk.dropped.get(self._identity, 0)), log.log_end_offset

    def high_watermark(self) -> int:
        return self._router.high_watermark(self._identity)

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        log = self._router.node.store_disk.logs[self._identity]
        entries: list[LogEntry] = []
        for batch in log.batches[log.index_of(offset) :]:
            if batch.base_offset >= end_offset:
                break
            entries += decode_entries(memoryview(batch.data), offset)
        return entries, end_offset

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[Any]:
        number = self._router.locate(self._identity)
        if number is None:
            return _not_yet()
        return self._router.send_to_worker(
            AppendBytes(
                UNSENT,
                0,
                number,
                batch,
                acks=-1,
                leader_epoch=leader_epoch,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                base_offset=base_offset,
            )
        )


def _not_yet() -> Reply[Any]:
    reply: Reply[Any] = Reply()
    reply.resolve(RequestFailed(0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return reply


class SimulatedShards:
    """The shards of one coordinator on this router; as `CoordinatorService`."""

    def __init__(
        self,
        router: ShardRouter,
        topic_name: str,
        new_shard: Callable[[], Shard[Any]],
        loop: Loop,
        run_effect: Callable[[int, object], None] = lambda _shard, _instruction: None,
    ) -> None:
        self.hosts: dict[int, ShardHost] = {}
        self._router = router
        self._topic_name = topic_name
        self._new_shard = new_shard
        self._loop = loop
        self._run_effect = run_effect
        self._waiting: dict[int, Reply[object]] = {}
        self._next_id = 0

    def call(self, key: str, request: object, api_version: int = 0) -> Reply[object]:
        """The response of the key's shard; ApiError if it fails."""
        return self.call_shard(self.shard_of(key), request, api_version)

    def call_shard(self, shard: int, request: object, api_version: int = 0) -> Reply[object]:
        """The response of one shard."""
        reply: Reply[object] = Reply()
        host = self.hosts.get(shard)
        if host is None:
            reply.fail(ApiError(ErrorCode.NOT_COORDINATOR))
            return reply
        self._next_id = number = self._next_id + 1
        self._waiting[number] = reply
        node = self._router.node
        host.execute(
            Command(
                request=request,
                request_id=number,
                api_version=api_version,
                client_id="member",
                client_host="/simulated",
                # Responses are lost in any order, as if each request had its own connection.
                connection_id=number,
                fresh_id=f"{node.own_id}-{node.incarnation}-{number}",
            )
        )
        return reply

    def shard_of(self, key: str) -> int:
        """The shard of a key; -1 while the topic does not exist."""
        topic = self.topic()
        return -1 if topic is None else shard_of(key, len(topic.partitions))

    def coordinator_of(self, key: str) -> int:
        """The node that hosts it."""
        topic = self.topic()
        return NO_LEADER if topic is None else topic.partitions[self.shard_of(key)].leader

    def topic(self) -> TopicImage | None:
        """The topic of the coordinator."""
        return self._router.image.topics_by_name.get(self._topic_name)

    def follow(self) -> None:
        """Host the shards of the router's image; as `CoordinatorService.on_image`."""
        hosted = {shard: host.leader_epoch for shard, host in self.hosts.items()}
        topic, node = self.topic(), self._router.node
        changes = hosting_changes(hosted, shards_to_host(topic, node_id=node.own_id))
        for shard in changes.unload:
            self.hosts.pop(shard).close()
        for shard, leader_epoch in changes.load:
            assert topic is not None
            host = ShardHost(
                name=f"{self._topic_name}-{shard}",
                leader_epoch=leader_epoch,
                shard_log=SimulatedShardLog(self._router, (topic.topic_id, shard)),
                new_runtime=lambda: ShardRuntime(self._new_shard()),
                loop=cast("asyncio.AbstractEventLoop", self._loop),
                now_ms=node.clock_ms,
                deliver=self._deliver,
                run_effect=partial(self._run_effect, shard),
            )
            self.hosts[shard] = host
            host.start()

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            reply = self._waiting.pop(answer.request_id, None)
            if reply is None:
                continue
            if isinstance(answer, ErrorReply):
                reply.fail(ApiError(answer.error_code))
            else:
                reply.resolve(answer.response)
