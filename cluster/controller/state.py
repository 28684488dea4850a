"""The state of the controller, and the result of a command.

`ControllerState` is the image and what is derived from it to make commands cheap. It changes in
`replay` only, for live commands and when the log is loaded. The sessions of brokers, which no log
has, are beside it.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from odradek.cluster.controller.broker_sessions import BrokerHeartbeatTracker
from odradek.cluster.controller.commands import CommandReply
from odradek.cluster.controller.partition_changes import PartitionChangeSet
from odradek.cluster.controller.partition_index import PartitionIndex
from odradek.cluster.metadata.broker_settings import ANY_LOG_DIR, BrokerSettings
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.cluster.metadata.records import Record, TopicCreated, TopicDeleted
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import unify_collision_chars
from odradek.protocol.types import Uuid


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """The records of a command, to be written as one entry, and the reply after the commit."""

    records: tuple[Record, ...]
    reply: CommandReply


class ControllerState:
    """The image and what is derived. `node_id` and `static` are the active controller's own."""

    def __init__(self, image: MetadataImage, *, node_id: int, static: Mapping[str, str]) -> None:
        self.image = image
        self.node_id = node_id
        self.static = static
        self.sessions = BrokerHeartbeatTracker()
        self._index: PartitionIndex | None = None
        self._topic_by_collision_key = {
            unify_collision_chars(name): name for name in image.topics_by_name
        }

    def replay(self, records: Iterable[Record], offset: int) -> None:
        """Apply the entry of the log at `offset`."""
        before = self.image
        delta = MetadataDelta(before)
        records = tuple(records)
        for record in records:
            if type(record) is TopicCreated:
                self._topic_by_collision_key[unify_collision_chars(record.name)] = record.name
            elif type(record) is TopicDeleted:
                topic = before.topics_by_id.get(record.topic_id)
                if topic is not None:
                    self._topic_by_collision_key.pop(unify_collision_chars(topic.name), None)
            delta.replay(record)
        self.image = delta.apply(offset)
        if self._index is not None:
            self._index.apply_records(before, self.image, records)

    @property
    def index(self) -> PartitionIndex:
        """The partitions by broker, as the image has them."""
        if self._index is None:
            self._index = PartitionIndex.of(self.image)
        return self._index

    def decisions(
        self,
        *,
        without: Set[int] = frozenset(),
        including: Set[int] = frozenset(),
        shutting_down: Set[int] = frozenset(),
        image: MetadataImage | None = None,
    ) -> PartitionChangeSet:
        """A new set of partition changes. Other than the image says, after the command the brokers
        `without` cannot lead, those `including` can, and `shutting_down` are in controlled
        shutdown.

        `image` replaces the present one if the command itself changes what elections depend on.
        """
        image = self.image if image is None else image
        brokers = image.brokers.values()
        active = {broker.broker_id for broker in brokers if is_active(broker)}
        going = {broker.broker_id for broker in brokers if is_shutting_down(broker)}
        return PartitionChangeSet(
            image,
            active=(active | including) - without - shutting_down,
            shutting_down=(going | shutting_down) - without,
            node_id=self.node_id,
            static=self.static,
        )

    def colliding_topic(self, name: str) -> str | None:
        """The existing topic whose name collides with this one in metrics, or None."""
        return self._topic_by_collision_key.get(unify_collision_chars(name))

    def registered_brokers(self) -> Sequence[BrokerImage]:
        """All brokers, by id."""
        return sorted(self.image.brokers.values(), key=lambda broker: broker.broker_id)

    def is_cordoned(self, broker_id: int) -> bool:
        """Whether no new replicas may be placed on a broker (KIP-1066), as while it is drained."""
        cordoned = broker_settings(self.image, broker_id, self.static).cordoned_log_dirs
        if not cordoned or ANY_LOG_DIR in cordoned:
            return bool(cordoned)
        broker = self.image.brokers.get(broker_id)
        return broker is not None and set(broker.log_dir_paths) <= set(cordoned)

    def cordoned_directories(self, broker: BrokerImage) -> Set[Uuid | None]:
        """The log directories of a broker in which no new replicas may be placed. None is the
        first one."""
        cordoned = broker_settings(self.image, broker.broker_id, self.static).cordoned_log_dirs
        if not cordoned:
            return frozenset()
        directories = (None, *broker.log_dirs[1:])
        return {
            directory
            for directory, path in zip(directories, broker.log_dir_paths, strict=False)
            if path in cordoned or ANY_LOG_DIR in cordoned
        }

    @property
    def broker_settings(self) -> BrokerSettings:
        """The settings of this controller's broker: the source of cluster-wide keys."""
        return broker_settings(self.image, self.node_id, self.static)


def is_active(broker: BrokerImage | None) -> bool:
    """Whether a broker is neither fenced nor in controlled shutdown."""
    return broker is not None and not broker.is_fenced and not broker.is_in_controlled_shutdown


def is_shutting_down(broker: BrokerImage) -> bool:
    """Whether a broker serves and is in controlled shutdown."""
    return broker.is_in_controlled_shutdown and not broker.is_fenced
