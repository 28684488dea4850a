"""What the controller decides upon, and the shape of a decision.

`ControllerState` is the image plus what is derived from it to make decisions cheap. It changes in
`replay` only, which is the one place: live commands and the log's replay come the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.controller.commands import CommandReply
from cluster.metadata.delta import MetadataDelta
from cluster.metadata.image import BrokerImage, MetadataImage
from cluster.metadata.records import Record, TopicCreated, TopicDeleted
from cluster.metadata.settings import BrokerSettings, TopicSettings, broker_settings, topic_settings
from cluster.metadata.topic_names import collision_key


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """The records that make it so, to be written as one entry, and the reply for afterwards."""

    records: tuple[Record, ...]
    reply: CommandReply


class ControllerState:
    """The image and its derivations. `node_id` and `static` are the active controller's own."""

    __slots__ = ("_name_of_key", "image", "node_id", "static")

    def __init__(self, image: MetadataImage, *, node_id: int, static: Mapping[str, str]) -> None:
        self.image = image
        self.node_id = node_id
        self.static = static
        self._name_of_key = {collision_key(name): name for name in image.topics_by_name}

    def replay(self, records: Iterable[Record], offset: int) -> None:
        """Take in one entry of the log, the one at `offset`."""
        before = self.image
        delta = MetadataDelta(before)
        for record in records:
            if type(record) is TopicCreated:
                self._name_of_key[collision_key(record.name)] = record.name
            elif type(record) is TopicDeleted:
                topic = before.topics_by_id.get(record.topic_id)
                if topic is not None:
                    self._name_of_key.pop(collision_key(topic.name), None)
            delta.replay(record)
        self.image = delta.apply(offset)

    def colliding_topic(self, name: str) -> str | None:
        """The existing topic whose name cannot be told from this one in metrics, or None."""
        return self._name_of_key.get(collision_key(name))

    def active_brokers(self) -> Sequence[BrokerImage]:
        """The brokers that may lead and hold new partitions, by id."""
        return sorted(
            (broker for broker in self.image.brokers.values() if is_active(broker)),
            key=lambda broker: broker.broker_id,
        )

    @property
    def broker_settings(self) -> BrokerSettings:
        """The configs of this controller's broker, which cluster-wide keys are read from."""
        return broker_settings(self.image, self.node_id, self.static)

    @property
    def topic_defaults(self) -> TopicSettings:
        """What holds for a topic without configs of its own."""
        return topic_settings(self.image, self.node_id, self.static, "")


def is_active(broker: BrokerImage | None) -> bool:
    """Whether a broker is there and stays."""
    return broker is not None and not broker.is_fenced and not broker.is_in_controlled_shutdown
