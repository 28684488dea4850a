"""Hosts the shards of one coordinator on this broker, and carries requests to them.

A group belongs to a shard of `__consumer_offsets`, a transactional id to one of
`__transaction_state`, the share state of a partition to one of `__share_group_state`. The leader of
the shard's partition hosts it. Shards and their runtimes know request ids; only this module has
futures. Handlers `call` and await the reply. Effects of a shard go to its type
(coordinator_type.py).

Invariant: the hosted shards are those whose partitions this broker leads in the newest image. The
shards' clock is the wall clock at start plus the monotonic time since, so that setting the wall
clock expires no session.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, TopicImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.outcome import Answer, Command, ErrorReply
from odradek.coordinator.ownership import hosting_changes, shard_of, shards_to_host
from odradek.coordinator.runtime import ShardRuntime, ShardState
from odradek.node.bus.reply import Reply, TracedReply
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_type import (
    CoordinatorType,
    EffectContext,
    S,
    ShardMembers,
)
from odradek.node.router.shards.shard_host import ShardHost
from odradek.node.router.shards.shard_log import StoreShardLog
from odradek.node.router.topic_log import log_created_topics
from odradek.node.router.worker_client import WorkerClient
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import ZERO_UUID, Request

log = get_logger(__name__)

R = TypeVar("R")

CREATE_TIMEOUT_MS: Final = 1_000
"""How long a client waits for the topic's creation. It retries, and its later requests on the same
connection, such as fetches, are served meanwhile."""


class ShardCaller(Protocol):
    """What a shard gets to know about the caller. RequestContext has these attributes."""

    api_version: int
    client_id: str | None
    client_host: str
    connection_id: int


@dataclass(slots=True)
class _InternalCaller:
    api_version: int = 0
    client_id: str | None = None
    client_host: str = ""
    connection_id: int = 0


INTERNAL_CALLER: Final = _InternalCaller()
"""The caller of requests that no client has sent."""


class CoordinatorService(Generic[S]):
    """See the module's docstring. `on_image` must be called with every new image."""

    def __init__(
        self,
        coordinator_type: CoordinatorType[S, Any],
        metadata: MetadataCache,
        controller: ControllerLink,
        logs: Logs,
        worker_client: WorkerClient,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._logs = logs
        self._worker_client = worker_client
        self._loop = loop
        self._type: CoordinatorType[Any, Any] = coordinator_type
        self._members: ShardMembers[Any] | None = coordinator_type.members
        self._clock_offset_ms = time.time_ns() // 1_000_000 - int(loop.time() * 1000)
        self._hosts: dict[int, ShardHost] = {}
        self._pending: dict[int, Reply[Any]] = {}
        self._next_id = 0
        self._topic_id = ZERO_UUID
        self._creation: asyncio.Future[None] | None = None
        self._creation_failure = ""
        """Why the topic could not be created when that was last tried."""
        self.is_closed = False
        """Whether the router stops: all shards are unloaded, and none is loaded again."""
        coordinator_type.configure(metadata.broker_settings(), metadata.image)
        self._schedule_sweep()
        # The cache may have an image already.
        self._update_hosted_shards(self._topic())

    # -- for handlers -----------------------------------------------------------------------------

    def call(
        self, key: str, request: Request[R], caller: ShardCaller = INTERNAL_CALLER
    ) -> Reply[R]:
        """The response of the shard of a group, transactional id or share partition.

        The reply fails with ApiError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE, or MESSAGE_TOO_LARGE if the records fit into no batch.
        """
        return self.call_shard(self.shard_of(key), request, caller)

    def call_for_heartbeat(
        self, key: str, request: Request[R], caller: ShardCaller
    ) -> Awaitable[R]:
        """As `call`, for heartbeats of members.

        After the first one that a shard has answered since it was loaded, the shard gets the
        metadata updates that it may have missed.
        """
        members = self._members
        assert members is not None, "only shards of groups have members"
        if members.is_membership_change(request):
            members.update_member_counts(self.shards())
        shard = self.shard_of(key)
        reply = self.call_shard(shard, request, caller)
        host = self._hosts.get(shard)
        if host is None or (host.is_active and not members.has_missed_updates(host.runtime.shard)):
            return reply
        return self._answer_then_update(reply, shard, members)

    async def _answer_then_update(
        self, reply: Reply[R], shard: int, members: ShardMembers[Any]
    ) -> R:
        response = await reply
        host = self._hosts.get(shard)
        if host is not None and host.is_active and members.has_missed_updates(host.runtime.shard):
            host.execute(Command(request=members.full_metadata_update(host.runtime.shard)))
        return response

    def call_shard(
        self, shard: int, request: Request[R], caller: ShardCaller = INTERNAL_CALLER
    ) -> Reply[R]:
        """The response of one shard; see `call`."""
        trace = RequestTrace.current
        reply: Reply[R] = Reply()
        if trace is not None:
            name = f"{self._type.topic_name}-{shard}"
            reply = TracedReply(trace, "coordinator", {"shard": name})
        host = self._hosts.get(shard)
        if host is None:
            reply.fail(ApiError(ErrorCode.NOT_COORDINATOR))
            return reply
        self._next_id = request_id = self._next_id + 1
        self._pending[request_id] = reply
        members = self._members
        is_new_id_needed = members is not None and members.is_new_id_needed(request)
        host.execute(
            Command(
                request=request,
                request_id=request_id,
                api_version=caller.api_version,
                client_id=caller.client_id or "",
                client_host="/" + caller.client_host,
                connection_id=caller.connection_id,
                fresh_id=str(uuid.uuid4()) if is_new_id_needed else "",
            )
        )
        return reply

    def hosted_shards(self) -> list[int]:
        """The numbers of the shards that are active or loading here."""
        return sorted(self._hosts)

    def shards(self) -> list[S]:
        """The active shards, to be read only."""
        active = [host.runtime.shard for host in self._hosts.values() if host.is_active]
        return cast("list[S]", active)

    def shard_of(self, key: str) -> int:
        """The shard (the partition of the topic) of a key; -1 while the topic does not exist."""
        topic = self._topic()
        return -1 if topic is None else shard_of(key, len(topic.partitions))

    def coordinator_of(self, key: str) -> int:
        """The broker that coordinates a key; NO_LEADER if there is none."""
        topic = self._topic()
        if topic is None:
            return NO_LEADER
        return topic.partitions[shard_of(key, len(topic.partitions))].leader

    async def ensure_topic(self) -> None:
        """Create the topic if it does not exist. ApiError(COORDINATOR_NOT_AVAILABLE)."""
        if self._topic() is not None:
            return
        if self._creation is not None:
            await self._creation
        else:
            self._creation = self._loop.create_future()
            try:
                await self._create_topic()
            finally:
                self._creation.set_result(None)
                self._creation = None
        if self._topic() is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- for the router ---------------------------------------------------------------------------

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Load and unload shards, and update the others."""
        if self.is_closed:
            return
        coordinator_type = self._type
        if old.configs is not new.configs or old.features is not new.features:
            coordinator_type.configure(self._metadata.broker_settings(), new)
            for host in self._hosts.values():
                coordinator_type.update(host.runtime.shard)
        is_update_due = coordinator_type.apply_image(old, new)
        for host in self._hosts.values() if is_update_due else ():
            coordinator_type.update(host.runtime.shard)
            if host.is_active and self._members is not None:
                update = self._members.metadata_update(host.runtime.shard)
                host.execute(Command(request=update))
        if old.topics_by_id is not new.topics_by_id:
            topic = new.topics_by_name.get(coordinator_type.topic_name)
            if topic is not old.topics_by_name.get(coordinator_type.topic_name):
                self._update_hosted_shards(topic)
            deleted = tuple(
                (old.topics_by_id[topic_id].name, topic_id)
                for topic_id in old.topics_by_id.keys() - new.topics_by_id.keys()
            )
            request = coordinator_type.topics_deleted(deleted) if deleted else None
            for host in self._hosts.values() if request is not None else ():
                host.execute(Command(request=request))

    def close(self) -> None:
        """Unload all shards; pending requests fail with NOT_COORDINATOR, and so do later ones."""
        self.is_closed = True
        self._sweep.cancel()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # -- inside -----------------------------------------------------------------------------------

    def _topic(self) -> TopicImage | None:
        return self._metadata.image.topics_by_name.get(self._type.topic_name)

    def now_ms(self) -> int:
        """The clock of the shards: see the module's docstring."""
        return self._clock_offset_ms + int(self._loop.time() * 1000)

    def _update_hosted_shards(self, topic: TopicImage | None) -> None:
        topic_id = topic.topic_id if topic is not None else ZERO_UUID
        if topic_id != self._topic_id:
            # The topic was deleted, or deleted and created again.
            self._topic_id = topic_id
            self._unload(list(self._hosts))
        hosted = {shard: host.leader_epoch for shard, host in self._hosts.items()}
        changes = hosting_changes(hosted, shards_to_host(topic, node_id=self._metadata.node_id))
        self._unload(changes.unload)
        for shard, leader_epoch in changes.load:
            host = ShardHost(
                name=f"{self._type.topic_name}-{shard}",
                leader_epoch=leader_epoch,
                shard_log=StoreShardLog(self._logs, self._worker_client, topic_id, shard),
                new_runtime=lambda: ShardRuntime(self._type.new_shard()),
                loop=self._loop,
                now_ms=self.now_ms,
                deliver=self._deliver,
                run_effect=partial(self._run_effect, shard),
            )
            self._hosts[shard] = host
            host.start()

    def _unload(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._hosts.pop(shard).close()

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            reply = self._pending.pop(answer.request_id, None)
            if reply is None:
                continue
            if isinstance(answer, ErrorReply):
                reply.fail(ApiError(answer.error_code))
            else:
                reply.resolve(answer.response)

    def _run_effect(self, shard: int, instruction: object) -> None:
        host = self._hosts[shard]
        runtime = host.runtime

        def is_current() -> bool:
            return host.runtime is runtime and runtime.state not in (
                ShardState.FAILED,
                ShardState.CLOSED,
            )

        call_shard = partial(self.call_shard, shard)
        context = EffectContext(host.leader_epoch, is_current, call_shard, shard)
        self._type.run_effect(instruction, context)

    async def _create_topic(self) -> None:
        settings = self._metadata.broker_settings()
        name = self._type.topic_name
        plan = self._type.topic_config(settings)
        replication_factor = plan.replication_factor
        if settings.internal_topics_replication_adaptive:
            replication_factor = min(replication_factor, max(self._available_broker_count(), 1))
        topic = NewTopic(
            name,
            uuid.uuid4().bytes,
            partition_count=plan.partition_count,
            replication_factor=replication_factor,
            configs=plan.configs,
        )
        try:
            reply = await self._controller.submit(CreateTopics((topic,)), CREATE_TIMEOUT_MS)
        except ApiError as error:
            self._log_failure(error.message)
            return
        result = reply.results[0]
        log_created_topics(reply.results, {"cause": "this coordinator"})
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log_failure(result.error_message or ErrorCode(result.error_code).name)
        else:
            self._creation_failure = ""

    def _available_broker_count(self) -> int:
        """The brokers that may get replicas."""
        image, static = self._metadata.image, self._metadata.static_configs
        return sum(
            not broker.is_fenced
            and not broker_settings(image, broker.broker_id, static).cordoned_log_dirs
            for broker in image.brokers.values()
        )

    def _log_failure(self, reason: str) -> None:
        """Log why the topic could not be created, once: clients try it again and again."""
        if reason != self._creation_failure:
            self._creation_failure = reason
            log.warning(
                "an internal topic could not be created; clients get COORDINATOR_NOT_AVAILABLE",
                topic=self._type.topic_name,
                reason=str(reason),
            )

    def _schedule_sweep(self) -> None:
        interval_s = self._type.sweep_interval_ms / 1000
        self._sweep = self._loop.call_later(interval_s, self._sweep_deleted_topics)

    def _sweep_deleted_topics(self) -> None:
        """Report the deletions of topics that shards have missed while they moved or loaded.

        Not right after loading: an image that is behind lacks topics that do exist.
        """
        self._schedule_sweep()
        for host in self._hosts.values():
            if host.is_active:
                request = self._type.missed_topic_deletions(
                    host.runtime.shard, self._metadata.image
                )
                if request is not None:
                    host.execute(Command(request=request))
