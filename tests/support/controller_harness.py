"""A controller with brokers, driven as by its process, but in memory.

Every command, record and reply is encoded and decoded, so that every test also tests the formats.
After every decision the invariants of the partitions are checked.
"""

from collections.abc import Mapping, Sequence

import msgspec

from odradek.cluster.controller.commands import (
    BrokerHeartbeat,
    Command,
    CommandReply,
    ConfigOperation,
    ConfigsReply,
    CreateTopics,
    HeartbeatReply,
    IncrementalAlterConfigs,
    NewTopic,
    RegisterBroker,
    ResourceOperations,
    TopicResult,
    TopicsReply,
    VoterChangeCommand,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from odradek.cluster.controller.controller import Controller
from odradek.cluster.metadata.features import SECURITY_VERSION
from odradek.cluster.metadata.image import (
    NO_LEADER,
    BrokerListener,
    ConfigResourceType,
    FeatureRange,
    MetadataImage,
    PartitionImage,
)
from odradek.cluster.metadata.records import (
    BrokerChanged,
    ClusterCreated,
    FeatureLevelChanged,
    PartitionChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.snapshot import image_records
from tests.support.metadata_history import have_same_content

FEATURES = (
    FeatureRange("metadata.version", 1, 3),
    FeatureRange("test.version", 0, 1),
    FeatureRange(SECURITY_VERSION, 0, 1),
)


def topic_id(number: int) -> bytes:
    """A topic id for tests; the number also determines the first broker of the placement."""
    return number.to_bytes(8) + (number + 1).to_bytes(8)


def check_partitions(before: MetadataImage, after: MetadataImage) -> None:
    """Invariants between any two states of the metadata."""
    for topic_id, topic in after.topics_by_id.items():
        for number, partition in enumerate(topic.partitions):
            said = f"{topic.name}-{number}: {partition}"
            replicas = partition.replicas
            assert replicas, said
            assert len(set(replicas)) == len(replicas), said
            assert set(partition.in_sync_replicas) <= set(replicas), said
            assert set(partition.elr) <= set(replicas), said
            assert not set(partition.elr) & set(partition.in_sync_replicas), said
            assert partition.leader in (NO_LEADER, *partition.in_sync_replicas), said
            assert set(partition.adding_replicas) <= set(replicas), said
            assert set(partition.removing_replicas) <= set(replicas), said
            assert len(partition.last_known_elr) <= 1, said
            old = before.partition(topic_id, number)
            if old is None or old == partition:
                continue
            assert partition.partition_epoch > old.partition_epoch, (old, said)
            assert partition.leader_epoch >= old.leader_epoch, (old, said)
            if partition.leader != old.leader:
                assert partition.leader_epoch > old.leader_epoch, (old, said)


class ControllerHarness:
    """A quorum of one: a decision is committed at once. `records` has all written records."""

    def __init__(
        self, *, brokers: int = 1, static: Mapping[str, str] | None = None, node_id: int = 0
    ) -> None:
        self.controller = Controller(
            MetadataImage.empty(), node_id=node_id, static=static if static is not None else {}
        )
        self.records: list[Record] = []
        self.now_ms = 1_000_000
        self.write(ClusterCreated("cluster"))
        for broker in range(brokers):
            self.do(
                RegisterBroker(
                    broker_id=broker,
                    incarnation_id=topic_id(1000 + broker),
                    listeners=(BrokerListener("PLAINTEXT", f"host-{broker}", 9092 + broker),),
                    rack=f"rack-{broker}",
                    features=FEATURES,
                )
            )

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def write(self, *records: Record) -> None:
        """One entry of the log that no command caused."""
        entry = decode_records(encode_records(records))
        self.records.extend(entry)
        self.controller.replay(entry, self.image.offset + 1)

    def do(self, command: Command) -> CommandReply:
        before = self.image
        sent = decode_command(encode_command(command))
        assert not isinstance(sent, VoterChangeCommand)
        result = self.controller.handle(sent, self.now_ms)
        assert self.image is before, "a command must not change the state"
        self._take(result.records)
        return decode_reply(encode_reply(result.reply))

    def _take(self, records: Sequence[Record]) -> None:
        before = self.image
        if records:
            self.write(*records)
            check_partitions(before, self.image)

    # -- brokers that are alive ------------------------------------------------------------------

    def activate(self) -> None:
        """Make this controller the active one."""
        self.controller.activate(self.now_ms)

    def start(
        self, broker: int, *, incarnation: int = 0, rack: str | None = None, **more: object
    ) -> int:
        """Register a broker, which its heartbeats will unfence; returns its epoch."""
        command = RegisterBroker(
            broker_id=broker,
            incarnation_id=topic_id(incarnation or 2000 + broker),
            cluster_id="cluster",
            rack=rack,
            starts_fenced=True,
        )
        self.do(msgspec.structs.replace(command, **more))
        return self.image.brokers[broker].broker_epoch

    def join(self, *brokers: int) -> None:
        """Start brokers that catch up and serve."""
        for broker in brokers:
            self.start(broker)
            assert not self.send_heartbeat(broker).is_fenced

    def send_heartbeat(
        self,
        broker: int,
        *,
        at: int | None = None,
        wants_fence: bool = False,
        wants_shut_down: bool = False,
    ) -> HeartbeatReply:
        """A heartbeat of a broker that has applied the log up to `at`, or all of it."""
        reply = self.do(
            BrokerHeartbeat(
                broker,
                self.image.brokers[broker].broker_epoch,
                self.image.offset if at is None else at,
                wants_fence,
                wants_shut_down,
            )
        )
        assert isinstance(reply, HeartbeatReply)
        return reply

    def pass_time(self, ms: int, *alive: int, step_ms: int = 100) -> None:
        """Let time pass; running brokers send heartbeats, and the controller ticks after each
        step."""
        for _ in range(ms // step_ms):
            self.now_ms += step_ms
            for broker in alive:
                self.send_heartbeat(broker)
            self.tick()

    def tick(self) -> int:
        """Let the controller run what is due; returns the number of records."""
        before = self.image
        records = decode_records(encode_records(self.controller.tick(self.now_ms, self.now_ms)))
        assert self.image is before, "a decision must not change the state"
        self._take(records)
        return len(records)

    def with_elr(self) -> None:
        """Eligible leader replicas are switched on (KIP-966)."""
        self.write(FeatureLevelChanged("eligible.leader.replicas.version", 1))

    def fenced(self) -> set[int]:
        """The brokers that are registered and fenced."""
        return {broker.broker_id for broker in self.image.brokers.values() if broker.is_fenced}

    # -- topics and partitions -------------------------------------------------------------------

    def place(self, name: str, number: int, *partitions: PartitionImage) -> None:
        """Create a topic whose partitions have these states."""
        self.write(TopicCreated(name, topic_id(number)))
        self.write(PartitionsAdded(topic_id(number), 0, partitions))

    def put(self, name: str, state: PartitionImage, *, partition: int = 0) -> None:
        """Put one partition into this state."""
        self.write(PartitionChanged(self.image.topics_by_name[name].topic_id, partition, state))

    def partition(self, name: str, number: int = 0) -> PartitionImage:
        return self.partitions(name)[number]

    def fence(self, *brokers: int) -> None:
        self.write(*(BrokerChanged(broker, True, False) for broker in brokers))

    def topics(self, command: Command) -> dict[str | None, TopicResult]:
        reply = self.do(command)
        assert isinstance(reply, TopicsReply)
        return {result.name: result for result in reply.results}

    def configs(self, command: Command) -> list[tuple[int, str | None]]:
        reply = self.do(command)
        assert isinstance(reply, ConfigsReply)
        return [(result.error_code, result.error_message) for result in reply.results]

    def create(
        self, *topics: NewTopic, validate_only: bool = False
    ) -> dict[str | None, TopicResult]:
        return self.topics(CreateTopics(topics, validate_only))

    def has(self, name: str, number: int, partitions: int = 1, factor: int = 1) -> None:
        """Create a topic."""
        result = self.create(NewTopic(name, topic_id(number), partitions, factor))[name]
        assert not result.error_code, result.error_message

    def set_config(self, resource_type: ConfigResourceType, name: str, **configs: str) -> None:
        """Set keys, written with `_` for `.`; this must succeed."""
        operations = tuple(
            ConfigOperation(key.replace("_", "."), 0, value) for key, value in configs.items()
        )
        command = IncrementalAlterConfigs((ResourceOperations(resource_type, name, operations),))
        ((code, message),) = self.configs(command)
        assert not code, message

    def partitions(self, name: str) -> tuple[PartitionImage, ...]:
        return self.image.topics_by_name[name].partitions

    def restarted(self) -> "MetadataImage":
        """The state of a controller that reads the log from its beginning, or a snapshot."""
        from_log = Controller(MetadataImage.empty())
        from_log.replay(self.records, self.image.offset)
        from_snapshot = Controller(MetadataImage.empty())
        from_snapshot.replay(image_records(self.image), self.image.offset)
        assert have_same_content(from_log.image, from_snapshot.image)
        return from_log.image
