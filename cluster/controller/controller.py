"""The controller: from a command and the metadata to the records that carry the command out.

    command ──handle──> records + reply        records ──replay──> next state
                        (decides, changes nothing)           (changes, decides nothing)

The driver writes the records as one entry of the metadata log, replays them here, and sends the
reply when the entry is committed. It replays before it hands in the next command, so that every
command is decided upon the state the one before it left. Pure: fresh ids come with the command, the
time is an argument. Called by the controller's process and by nothing else.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, assert_never

from cluster.controller.brokers import allocate_producer_ids, register_broker
from cluster.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    RegisterBroker,
)
from cluster.controller.configs import alter_configs, incremental_alter_configs
from cluster.controller.state import ControllerResult, ControllerState
from cluster.controller.topics import create_partitions, create_topics, delete_topics
from cluster.metadata.image import MetadataImage
from cluster.metadata.records import Record

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Controller:
    """The decisions on one image. `node_id` and `static` are those of the node it runs on."""

    def __init__(
        self, image: MetadataImage, *, node_id: int = 0, static: Mapping[str, str] = _NOTHING
    ) -> None:
        self._state = ControllerState(image, node_id=node_id, static=static)

    @property
    def image(self) -> MetadataImage:
        """The state that the next command will be decided upon."""
        return self._state.image

    def handle(self, command: Command, now_ms: int) -> ControllerResult:
        """Decide a command. Raises ApiError if it fails as a whole; the state stays as it is."""
        state = self._state
        match command:
            case CreateTopics():
                return create_topics(state, command)
            case DeleteTopics():
                return delete_topics(state, command)
            case CreatePartitions():
                return create_partitions(state, command)
            case AlterConfigs():
                return alter_configs(state, command)
            case IncrementalAlterConfigs():
                return incremental_alter_configs(state, command)
            case AllocateProducerIds():
                return allocate_producer_ids(state, command)
            case RegisterBroker():
                return register_broker(state, command)
            case _:
                assert_never(command)

    def replay(self, records: Iterable[Record], offset: int) -> None:
        """Take in the entry of the log at `offset`."""
        self._state.replay(records, offset)
