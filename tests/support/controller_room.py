"""A controller with brokers around it, driven as its process drives it, but in memory.

Every command, record and reply goes through its bytes, so that whatever a test does is also a test
of what travels.
"""

from collections.abc import Mapping

from cluster.controller.commands import (
    Command,
    CommandReply,
    ConfigOperation,
    ConfigsReply,
    CreateTopics,
    IncrementalAlterConfigs,
    NewTopic,
    RegisterBroker,
    ResourceOperations,
    TopicResult,
    TopicsReply,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)
from cluster.controller.controller import Controller
from cluster.metadata.image import (
    ConfigResourceType,
    FeatureRange,
    Listener,
    MetadataImage,
    PartitionImage,
)
from cluster.metadata.records import (
    BrokerChanged,
    ClusterCreated,
    Record,
    decode_records,
    encode_records,
)
from cluster.metadata.snapshot import image_records

FEATURES = (FeatureRange("metadata.version", 1, 3), FeatureRange("test.version", 0, 1))


def topic_id(number: int) -> bytes:
    """A topic id for tests; the number also says where the placement begins."""
    return number.to_bytes(8) + (number + 1).to_bytes(8)


class ControllerRoom:
    """A quorum of one: what is decided is committed. `records` is all that was written."""

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
                    listeners=(Listener("PLAINTEXT", f"host-{broker}", 9092 + broker),),
                    rack=f"rack-{broker}",
                    features=FEATURES,
                )
            )

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def write(self, *records: Record) -> None:
        """One entry of the log that no command led to."""
        entry = decode_records(encode_records(records))
        self.records.extend(entry)
        self.controller.replay(entry, self.image.offset + 1)

    def do(self, command: Command) -> CommandReply:
        before = self.image
        result = self.controller.handle(decode_command(encode_command(command)), self.now_ms)
        assert self.image is before, "a command must not change the state"
        if result.records:
            self.write(*result.records)
        return decode_reply(encode_reply(result.reply))

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
        """Have a topic to work on."""
        result = self.create(NewTopic(name, topic_id(number), partitions, factor))[name]
        assert not result.error_code, result.error_message

    def set_config(self, resource_type: ConfigResourceType, name: str, **configs: str) -> None:
        """Set keys, written with `_` for `.`, which must succeed."""
        operations = tuple(
            ConfigOperation(key.replace("_", "."), 0, value) for key, value in configs.items()
        )
        command = IncrementalAlterConfigs((ResourceOperations(resource_type, name, operations),))
        ((code, message),) = self.configs(command)
        assert not code, message

    def partitions(self, name: str) -> tuple[PartitionImage, ...]:
        return self.image.topics_by_name[name].partitions

    def restarted(self) -> "MetadataImage":
        """What a controller that reads the log from its beginning, or a snapshot, knows."""
        from_log = Controller(MetadataImage.empty())
        from_log.replay(self.records, self.image.offset)
        from_snapshot = Controller(MetadataImage.empty())
        from_snapshot.replay(image_records(self.image), self.image.offset)
        assert from_log.image.has_same_content(from_snapshot.image)
        return from_log.image
