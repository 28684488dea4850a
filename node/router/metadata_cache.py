"""The metadata as this broker's router knows it (Kafka: MetadataCache).

Holds the newest image, and derives this broker's and its topics' settings from it and from the
static configuration. `image` is replaced by process.py whenever metadata is committed; services
keep the cache, never an image, across a wait.
"""

from collections.abc import Mapping

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_layers import ConfigLayer, broker_layers
from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.cluster.metadata.sasl_settings import SaslSettings
from odradek.cluster.metadata.settings import broker_settings, listener_settings, topic_settings
from odradek.cluster.metadata.topic_settings import TopicSettings
from odradek.protocol.types import Uuid


class MetadataCache:
    """See the module's docstring."""

    __slots__ = ("image", "node_id", "static_configs")

    def __init__(
        self, node_id: int, static_configs: dict[str, str], image: MetadataImage | None = None
    ) -> None:
        self.node_id = node_id
        self.static_configs = static_configs
        self.image = MetadataImage.empty() if image is None else image

    def broker_settings(self) -> BrokerSettings:
        """The settings of this broker."""
        return broker_settings(self.image, self.node_id, self.static_configs)

    def sasl_settings(self, listener: str, mechanism: str = "") -> SaslSettings:
        """The settings of authentication on a listener, or of one mechanism there."""
        return listener_settings(
            SaslSettings, self.image, self.node_id, self.static_configs, listener, mechanism
        )

    def broker_layers(self) -> tuple[ConfigLayer, ...]:
        """The layers of this broker's configuration, the strongest (its own dynamic one) first."""
        return broker_layers(self.image.configs, self.node_id, self.static_configs)

    def broker_layers_after(
        self, changes: Mapping[str, str | None], *, keeps_others: bool
    ) -> tuple[ConfigLayer, ...]:
        """The same with its own dynamic configs so changed (None: removed). With `keeps_others`
        those that are not named stay as they are."""
        layers = self.broker_layers()
        own = dict(layers[0].configs) if keeps_others else {}
        for key, value in changes.items():
            own.pop(key, None)
            if value is not None:
                own[key] = value
        return (layers[0]._replace(configs=own), *layers[1:])

    def topic_settings(self, topic: str) -> TopicSettings:
        """The settings of a topic, as this broker applies them."""
        return topic_settings(self.image, self.node_id, self.static_configs, topic)

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        """A partition by its topic's name; None if there is none."""
        topic_image = self.image.topics_by_name.get(topic)
        if topic_image is None or not 0 <= index < len(topic_image.partitions):
            return None
        return topic_image.partitions[index]

    def leader_of(self, topic_id: Uuid, index: int) -> int:
        """The leader of a partition; NO_LEADER if it has none or does not exist."""
        partition = self.image.partition(topic_id, index)
        return NO_LEADER if partition is None else partition.leader
