"""The group coordinator of this router: which shards it hosts, who waits for which answer.

A group lives in one shard of `__consumer_offsets`, and the shard is hosted where the leader of its
partition is. This is the only place where requests to shards have futures: shards and their
runtimes know request ids. Handlers `call` and await; an answer to a client that has gone is
dropped by its connection.

Invariant: the hosted shards are those that the newest image says this node leads. Time in shards
is the wall clock at start plus what the steady clock has counted since, so that a clock that is
set ends nobody's session.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from cluster.controller.commands import CreateTopics, NewTopic, TopicsReply
from cluster.metadata.group_configs import ASSIGNORS
from cluster.metadata.image import NO_LEADER, ConfigResourceType, MetadataImage, TopicImage
from cluster.metadata.settings import BrokerSettings, broker_settings
from coordinator.group.requests import FollowTopics, ForgetTopics, Heartbeat
from coordinator.group.settings import ConsumerGroupOverrides, GroupSettings, MigrationPolicy
from coordinator.group.shard import GroupShard
from coordinator.group.topics import TopicCatalog, changed_names
from coordinator.outcome import Answer, Command, Refusal
from coordinator.ownership import claims, compare, shard_of
from coordinator.runtime import ShardRuntime
from node.bus.reply import Reply
from node.router.controller_link import ControllerLink
from node.router.fanout import Fanout
from node.router.logs import Logs
from node.router.patterns import Patterns
from node.router.shard_host import Runtime, ShardHost
from node.router.shard_log import StoreLog
from protocol.errors import ApiError, ErrorCode
from protocol.messages.groups import JoinGroupRequest
from protocol.types import ZERO_UUID

log = logging.getLogger(__name__)

GROUP_TOPIC: Final = "__consumer_offsets"
CREATE_TIMEOUT_MS: Final = 1_000
"""How long clients wait for the topic's creation; they ask again, and what they have asked for
behind it on the same connection, such as fetches, goes on."""


class Asker(Protocol):
    """What a shard may know of a request's circumstances: RequestContext has it."""

    api_version: int
    client_id: str | None
    client_host: str


class Surroundings(Protocol):
    """What the coordinators need of their router: Services has it."""

    node_id: int
    image: MetadataImage
    static_configs: dict[str, str]
    controller: ControllerLink
    fanout: Fanout
    logs: Logs


class Coordinators:
    """See the module's docstring. `on_image` must be called with every new image."""

    def __init__(self, services: Surroundings, loop: asyncio.AbstractEventLoop) -> None:
        self._services = services
        self._loop = loop
        self._clock_offset_ms = time.time_ns() // 1_000_000 - int(loop.time() * 1000)
        self._hosts: dict[int, ShardHost] = {}
        self._waiting: dict[int, Reply[object]] = {}
        self._next_id = 0
        self._topic_id = ZERO_UUID
        self._creation: asyncio.Future[None] | None = None
        self._settings = group_settings(self._broker_settings(), services.image)
        self._topics = TopicCatalog(services.image)
        self.patterns = Patterns()
        self._sweep = loop.call_later(self._sweep_s(), self._forget_vanished_topics)
        # Metadata may have come before there was anybody to hear of it.
        self._follow_topic(self._topic())

    # -- what handlers ask ------------------------------------------------------------------------

    def call(self, group_id: str, request: object, asker: Asker) -> Reply[object]:
        """Have the group's shard answer. Raises (when awaited) ApiError: NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE, or MESSAGE_TOO_LARGE if what the
        request says fits into no batch."""
        topic = self._topic()
        shard = shard_of(group_id, len(topic.partitions)) if topic is not None else -1
        return self.call_shard(shard, request, asker)

    async def heartbeat(self, heartbeat: Heartbeat, asker: Asker) -> object:
        """Have the shard of a consumer group answer its member; raises as `call` does.

        The first one that a shard has answered since it was loaded makes it look at its groups'
        topics, which may have changed meanwhile.
        """
        group_id = heartbeat.request.group_id
        if heartbeat.request.member_epoch <= 0:
            self._count_members()
        response = await self.call(group_id, heartbeat, asker)
        topic = self._topic()
        if topic is not None:
            host = self._hosts.get(shard_of(group_id, len(topic.partitions)))
            if host is not None and host.is_active:
                shard = host.runtime.shard
                assert isinstance(shard, GroupShard)
                if shard.consumers.needs_topics:
                    self._tell_topics(host, shard, None)
        return response

    def _count_members(self) -> None:
        """All shards ask their members to come as often as all of them together may."""
        shards = [
            shard
            for host in self._hosts.values()
            if host.is_active and isinstance(shard := host.runtime.shard, GroupShard)
        ]
        count = 1 + sum(shard.consumers.member_count for shard in shards)
        for shard in shards:
            shard.crowd_count = count

    def _tell_topics(
        self, host: ShardHost, shard: GroupShard, changed: frozenset[str] | None
    ) -> None:
        """Tell a shard of topics that have changed, and what its groups' expressions stand for."""
        topics = self._services.image.topics_by_name
        regexes = {}
        for regex in shard.consumers.regexes():
            try:
                regexes[regex] = self.patterns.topics_of(regex, topics)
            except ApiError as error:
                # Written by another release: what it stood for stays.
                log.warning("%s: %s", host.name, error.message)
        host.execute(Command(request=FollowTopics(changed, regexes)))

    def call_shard(self, shard: int, request: object, asker: Asker) -> Reply[object]:
        """Have one shard answer."""
        reply: Reply[object] = Reply()
        host = self._hosts.get(shard)
        if host is None:
            reply.fail(ApiError(ErrorCode.NOT_COORDINATOR))
            return reply
        self._next_id = request_id = self._next_id + 1
        self._waiting[request_id] = reply
        host.execute(
            Command(
                request=request,
                request_id=request_id,
                api_version=asker.api_version,
                client_id=asker.client_id or "",
                client_host="/" + asker.client_host,
                fresh_id=str(uuid.uuid4()) if _needs_id(request) else "",
            )
        )
        return reply

    def hosted_shards(self) -> list[int]:
        """The shards that this router hosts or is loading."""
        return sorted(self._hosts)

    def coordinator_of(self, group_id: str) -> int:
        """The id of the node that coordinates the group; NO_LEADER if there is none just now."""
        topic = self._topic()
        if topic is None:
            return NO_LEADER
        return topic.partitions[shard_of(group_id, len(topic.partitions))].leader

    async def ensure_topic(self) -> None:
        """Create `__consumer_offsets` if there is none. ApiError(COORDINATOR_NOT_AVAILABLE)."""
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

    # -- what the router tells --------------------------------------------------------------------

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Host what the image says, and nothing else."""
        if old.configs is not new.configs:
            self._settings = group_settings(self._broker_settings(), new)
            for host in self._hosts.values():
                shard = host.runtime.shard
                assert isinstance(shard, GroupShard)
                shard.settings = self._settings
        self._follow_topics(changed_names(old, new))
        if old.topics_by_id is not new.topics_by_id:
            topic = new.topics_by_name.get(GROUP_TOPIC)
            if topic is not old.topics_by_name.get(GROUP_TOPIC):
                self._follow_topic(topic)
            gone = tuple(
                (old.topics_by_id[topic_id].name, topic_id)
                for topic_id in old.topics_by_id.keys() - new.topics_by_id.keys()
            )
            for host in self._hosts.values() if gone else ():
                host.execute(Command(request=ForgetTopics(gone)))

    def close(self) -> None:
        """Refuse everything that waits."""
        self._sweep.cancel()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # -- inside -----------------------------------------------------------------------------------

    def _topic(self) -> TopicImage | None:
        return self._services.image.topics_by_name.get(GROUP_TOPIC)

    def _broker_settings(self) -> BrokerSettings:
        services = self._services
        return broker_settings(services.image, services.node_id, services.static_configs)

    def _now_ms(self) -> int:
        return self._clock_offset_ms + int(self._loop.time() * 1000)

    def _follow_topic(self, topic: TopicImage | None) -> None:
        topic_id = topic.topic_id if topic is not None else ZERO_UUID
        if topic_id != self._topic_id:
            # Deleted, or deleted and made again: nothing of the old one is true any more.
            self._topic_id = topic_id
            self._unload(list(self._hosts))
        hosted = {shard: host.leader_epoch for shard, host in self._hosts.items()}
        changes = compare(hosted, claims(topic, node_id=self._services.node_id))
        self._unload(changes.unload)
        for shard, leader_epoch in changes.load:
            services = self._services
            host = ShardHost(
                name=f"{GROUP_TOPIC}-{shard}",
                leader_epoch=leader_epoch,
                shard_log=StoreLog(services.logs, services.fanout, topic_id, shard),
                new_runtime=self._new_runtime,
                loop=self._loop,
                now_ms=self._now_ms,
                deliver=self._deliver,
            )
            self._hosts[shard] = host
            host.start()

    def _follow_topics(self, changed: frozenset[str]) -> None:
        """Consumer groups read other topics, or other partitions of them."""
        if not changed:
            return
        self._topics = TopicCatalog(self._services.image)
        for host in self._hosts.values():
            shard = host.runtime.shard
            assert isinstance(shard, GroupShard)
            shard.topics = self._topics
            if host.is_active:
                self._tell_topics(host, shard, changed)

    def _unload(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._hosts.pop(shard).close()

    def _new_runtime(self) -> Runtime:
        return ShardRuntime(GroupShard(self._settings, self._topics))

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            reply = self._waiting.pop(answer.request_id, None)
            if reply is None:
                continue
            if isinstance(answer, Refusal):
                reply.fail(ApiError(answer.error_code))
            else:
                reply.resolve(answer.response)

    async def _create_topic(self) -> None:
        settings = self._broker_settings()
        services = self._services
        image, static = services.image, services.static_configs
        broker_count = sum(
            not broker.is_fenced
            and not broker_settings(image, broker.broker_id, static).cordoned_log_dirs
            for broker in image.brokers.values()
        )
        replicas = min(settings.offsets_topic_replication_factor, max(broker_count, 1))
        topic = NewTopic(
            GROUP_TOPIC,
            uuid.uuid4().bytes,
            partition_count=settings.offsets_topic_num_partitions,
            replication_factor=replicas,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(settings.offsets_topic_segment_bytes)),
            ),
        )
        try:
            reply = await services.controller.submit(CreateTopics((topic,)), CREATE_TIMEOUT_MS)
        except ApiError as error:
            log.warning("%s could not be created: %s", GROUP_TOPIC, error)
            return
        assert isinstance(reply, TopicsReply)
        result = reply.results[0]
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = ErrorCode(result.error_code)
            log.warning(
                "%s could not be created: %s", GROUP_TOPIC, result.error_message or code.name
            )

    def _sweep_s(self) -> float:
        return self._settings.retention_check_interval_ms / 1000

    def _forget_vanished_topics(self) -> None:
        """Drop offsets of topics whose deletion was missed: while a shard moved, or was loading.

        Only long after loading: an image that is still catching up lacks topics that do exist.
        """
        self._sweep = self._loop.call_later(self._sweep_s(), self._forget_vanished_topics)
        image = self._services.image
        for host in self._hosts.values():
            shard = host.runtime.shard
            if not host.is_active or not isinstance(shard, GroupShard):
                continue
            gone = tuple(
                (name, topic_id)
                for name, topic_id in shard.offsets.topics()
                if (
                    name not in image.topics_by_name
                    if topic_id == ZERO_UUID
                    else topic_id not in image.topics_by_id
                )
            )
            if gone:
                host.execute(Command(request=ForgetTopics(gone)))


def _needs_id(request: object) -> bool:
    """Whether the shard may have to make up a member id."""
    if type(request) is Heartbeat:
        return not request.request.member_id
    return type(request) is JoinGroupRequest


def group_settings(settings: BrokerSettings, image: MetadataImage) -> GroupSettings:
    """What shards need of the broker's configuration, and of that of groups."""
    return GroupSettings(
        session_timeout_min_ms=settings.group_min_session_timeout_ms,
        session_timeout_max_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        size_max=settings.group_max_size,
        offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_size_max=settings.group_consumer_max_size,
        consumer_assignors=settings.group_consumer_assignors or ASSIGNORS,
        consumer_assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
        migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        consumer_overrides={
            resource.name: _overrides(configs)
            for resource, configs in image.configs.items()
            if resource.type == ConfigResourceType.GROUP and configs
        },
    )


def _overrides(configs: Mapping[str, str]) -> ConsumerGroupOverrides:
    """Values have been checked when they were set."""
    session = configs.get("consumer.session.timeout.ms")
    interval = configs.get("consumer.heartbeat.interval.ms")
    return ConsumerGroupOverrides(
        session_timeout_ms=None if session is None else int(session),
        heartbeat_interval_ms=None if interval is None else int(interval),
    )
