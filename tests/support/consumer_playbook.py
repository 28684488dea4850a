"""Consumer groups (KIP-848) with the playbook: topics, heartbeats, well-behaved members.

`Consumer` behaves as a client library does: it revokes partitions that it has to revoke, adds those
that it is assigned, and reports what it owns. A test may lose its responses or send its requests
twice.
"""

from collections.abc import Mapping, Sequence

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.cluster.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.requests import (
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    UpdateTopics,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.topics import TopicCatalog, changed_topic_names
from odradek.coordinator.loader import LogEntry
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.types import Uuid
from tests.support.group_playbook import NO_DELAY, START_MS, GroupCall, Playbook

NO_INTERVAL = GroupSettings(
    initial_rebalance_delay_ms=0, consumer=ConsumerGroupSettings(assignment_interval_ms=0)
)
REBALANCE_TIMEOUT_MS = 30_000

Owned = dict[str, set[int]]


def id_of(name: str) -> Uuid:
    """The topic id of this name in these tests."""
    return name.encode().rjust(16, b"\0")[:16]


def image_of(
    topics: Mapping[str, int], *, racks: Sequence[str] = (), offset: int = 1
) -> MetadataImage:
    """An image with these topics; replica r of partition p is on broker (p + r), racks in turn."""
    brokers = {at: BrokerImage(at, 1, rack=rack) for at, rack in enumerate(racks)}
    made = [
        TopicImage(
            name,
            id_of(name),
            tuple(
                PartitionImage(
                    replicas=(index % max(len(racks), 1),), in_sync_replicas=(0,), leader=0
                )
                for index in range(count)
            ),
        )
        for name, count in topics.items()
    ]
    empty = MetadataImage.empty()
    return MetadataImage(
        offset=offset,
        cluster_id="",
        brokers=brokers,
        topics_by_name={topic.name: topic for topic in made},
        topics_by_id={topic.topic_id: topic for topic in made},
        configs=empty.configs,
        features={},
        next_producer_id=0,
    )


class Stage(Playbook):
    """A playbook with topics."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: GroupSettings = NO_INTERVAL,
        *,
        racks: Sequence[str] = (),
        log: Sequence[LogEntry] = (),
        now_ms: int = START_MS,
    ) -> None:
        self.image = image_of({"a": 4} if topics is None else topics, racks=racks)
        super().__init__(settings, log=log, now_ms=now_ms)

    def _load(self) -> None:
        super()._load()
        self.shard.topics = TopicCatalog(self.image)

    def topics(
        self, topics: Mapping[str, int], *, regexes: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Replace the topics of the cluster."""
        old, self.image = self.image, image_of(topics, offset=self.image.offset + 1)
        self.shard.topics = TopicCatalog(self.image)
        self.ask(UpdateTopics(changed_topic_names(old, self.image), regexes or {}))

    def beat_call(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "g",
        topics: Sequence[str] | None = None,
        owned: Mapping[str, Sequence[int]] | None = None,
        instance: str | None = None,
        rack: str | None = None,
        regex: str | None = None,
        names: Sequence[str] | None = None,
        assignor: str | None = None,
        timeout_ms: int = -1,
        version: int = 1,
        connection: int = 1,
    ) -> GroupCall:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                TopicIdPartitions(topic_id=id_of(name), partitions=sorted(indexes))
                for name, indexes in owned.items()
            ],
        )
        heartbeat = ConsumerHeartbeat(request, None if names is None else tuple(names))
        return self.ask(heartbeat, version=version, connection=connection)

    def send_heartbeat(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "g",
        topics: Sequence[str] | None = None,
        owned: Mapping[str, Sequence[int]] | None = None,
        instance: str | None = None,
        version: int = 1,
        regex: str | None = None,
        names: Sequence[str] | None = None,
        assignor: str | None = None,
        rack: str | None = None,
        connection: int = 1,
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat and its response; one that joins has all required fields."""
        is_join = epoch == 0
        call = self.beat_call(
            member_id,
            epoch,
            group=group,
            topics=["a"] if is_join and topics is None and regex is None else topics,
            owned={} if is_join and owned is None else owned,
            instance=instance,
            timeout_ms=REBALANCE_TIMEOUT_MS if is_join else -1,
            version=version,
            regex=regex,
            names=names,
            assignor=assignor,
            rack=rack,
            connection=connection,
        )
        return call.response(ConsumerGroupHeartbeatResponse)

    def consumers(self, group: str = "g") -> ConsumerGroup:
        found = self.shard.consumers.get(group)
        assert found is not None
        return found

    def describe_consumers(self, group: str = "g") -> ConsumerGroupDescribedGroup:
        return self.ask(DescribeConsumerGroup(group), version=1).response(
            ConsumerGroupDescribedGroup
        )

    def name_of(self, topic_id: Uuid) -> str:
        return topic_id.lstrip(b"\0").decode()


class Consumer:
    """A well-behaved member.

    `owned` are the partitions that it reads, `to_revoke` those that it has to revoke and still
    reads. A terse one reports its partitions only if they differ from its last report. It repeats a
    heartbeat without response unchanged, as librdkafka does after a heartbeat interval.
    """

    def __init__(
        self, stage: Stage, member_id: str, *, topics: Sequence[str] = ("a",), **options: str
    ) -> None:
        self.stage = stage
        self.member_id = member_id
        self.topics = list(topics)
        self.options = options
        self.epoch = 0
        self.owned: Owned = {}
        self.interval_ms = 0
        self.errors: list[ErrorCode] = []
        self.is_terse = False
        self.connection = 1
        self._last_report: Owned | None = None

    def call(self) -> GroupCall:
        """Send what a client sends: all fields to join, and the owned partitions always."""
        is_join = self.epoch == 0
        return self.stage.beat_call(
            self.member_id,
            self.epoch,
            topics=self.topics if is_join else None,
            owned=None
            if self.is_terse and not is_join and self.owned == self._last_report
            else {name: sorted(indexes) for name, indexes in self.owned.items() if indexes},
            timeout_ms=REBALANCE_TIMEOUT_MS if is_join else -1,
            instance=self.options.get("instance"),
            rack=self.options.get("rack"),
            assignor=self.options.get("assignor"),
            connection=self.connection,
        )

    def lose(self) -> None:
        """The response is lost, and the connection is closed."""
        self.connection += 1

    def hear(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Follow the response: revoke first, then add."""
        if response.error_code:
            self.errors.append(ErrorCode(response.error_code))
            assert response.error_code in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
            ), response
            self.owned, self.epoch = {}, 0
            self._last_report = None
            return
        self.epoch = response.member_epoch
        self._last_report = self.owned
        self.interval_ms = response.heartbeat_interval_ms
        if response.assignment is not None:
            self.owned = {
                self.stage.name_of(topic.topic_id): set(topic.partitions)
                for topic in response.assignment.topic_partitions
            }

    def send_heartbeat(self) -> None:
        self.hear(self.call().response(ConsumerGroupHeartbeatResponse))

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(name, index) for name, indexes in self.owned.items() for index in indexes}


def settle(*members: Consumer, rounds: int = 12) -> None:
    """Heartbeats of all members in turn until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.partitions) for member in members]
        for member in members:
            member.send_heartbeat()
        if before == [(member.epoch, member.partitions) for member in members]:
            return
    raise AssertionError("the group does not come to rest")


__all__ = ["NO_DELAY", "Consumer", "Stage", "id_of", "image_of", "settle"]
