"""What the controller can be asked, and what it answers.

Commands come from the handlers of any node's router and travel as bytes, so that every struct
may only grow at its end, with defaults. Whatever is random or taken from a clock is in the
command already (fresh topic ids, incarnation ids): carrying a command out draws on nothing but
the image. Replies repeat the command's items in its order; an item that is named twice is
answered once.
"""

from typing import TypeAlias

import msgspec

from cluster.metadata.image import FeatureRange, Listener
from protocol.types import ZERO_UUID, Uuid


class ReplicaAssignment(msgspec.Struct, frozen=True, array_like=True):
    """Where the replicas of one partition shall be, the preferred leader first."""

    partition: int
    replicas: tuple[int, ...]


class NewTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic to be. -1 asks for the default; with `assignments` both counts must be -1."""

    name: str
    topic_id: Uuid
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(msgspec.Struct, frozen=True, array_like=True, tag="CreateTopics"):
    """Each topic succeeds or fails by itself."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


class TopicReference(msgspec.Struct, frozen=True, array_like=True):
    """A topic by its name or by its id, not by both."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


class DeleteTopics(msgspec.Struct, frozen=True, array_like=True, tag="DeleteTopics"):
    """Each topic succeeds or fails by itself."""

    topics: tuple[TopicReference, ...]


class NewPartitions(msgspec.Struct, frozen=True, array_like=True):
    """A topic shall have `count` partitions in all; `assignments` are for the new ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(msgspec.Struct, frozen=True, array_like=True, tag="CreatePartitions"):
    """Each topic succeeds or fails by itself."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


class ResourceConfigs(msgspec.Struct, frozen=True, array_like=True):
    """All that shall be configured of one resource."""

    resource_type: int
    resource_name: str
    configs: tuple[tuple[str, str | None], ...]


class AlterConfigs(msgspec.Struct, frozen=True, array_like=True, tag="AlterConfigs"):
    """Each resource gets exactly these configs, or keeps what it has."""

    resources: tuple[ResourceConfigs, ...]
    validate_only: bool = False


class ConfigOperation(msgspec.Struct, frozen=True, array_like=True):
    """One change: 0 set, 1 delete, 2 append to a list, 3 subtract from a list (KIP-339)."""

    key: str
    operation: int
    value: str | None = None


class ResourceOperations(msgspec.Struct, frozen=True, array_like=True):
    """The changes to one resource; they take effect together."""

    resource_type: int
    resource_name: str
    operations: tuple[ConfigOperation, ...]


class IncrementalAlterConfigs(
    msgspec.Struct, frozen=True, array_like=True, tag="IncrementalAlterConfigs"
):
    """Each resource is changed as a whole or not at all."""

    resources: tuple[ResourceOperations, ...]
    validate_only: bool = False


class AllocateProducerIds(msgspec.Struct, frozen=True, array_like=True, tag="AllocateProducerIds"):
    """A broker wants a block of producer ids of its own."""

    broker_id: int
    broker_epoch: int


class RegisterBroker(msgspec.Struct, frozen=True, array_like=True, tag="RegisterBroker"):
    """A broker has started. An empty `cluster_id` says that it belongs to none yet."""

    broker_id: int
    incarnation_id: Uuid
    cluster_id: str = ""
    listeners: tuple[Listener, ...] = ()
    rack: str | None = None
    features: tuple[FeatureRange, ...] = ()


Command: TypeAlias = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AllocateProducerIds
    | RegisterBroker
)


class TopicResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one topic. Counts are -1 where the command failed or changes none."""

    name: str | None
    error_code: int = 0
    error_message: str | None = None
    topic_id: Uuid = ZERO_UUID
    partition_count: int = -1
    replication_factor: int = -1


class TopicsReply(msgspec.Struct, frozen=True, array_like=True, tag="Topics"):
    """Answers CreateTopics, DeleteTopics and CreatePartitions."""

    results: tuple[TopicResult, ...]


class ResourceResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one resource's configs."""

    resource_type: int
    resource_name: str
    error_code: int = 0
    error_message: str | None = None


class ConfigsReply(msgspec.Struct, frozen=True, array_like=True, tag="Configs"):
    """Answers AlterConfigs and IncrementalAlterConfigs: one result per resource named, in order."""

    results: tuple[ResourceResult, ...]


class ProducerIdsReply(msgspec.Struct, frozen=True, array_like=True, tag="ProducerIds"):
    """The producer ids of [first, first + count) are the broker's to give out."""

    first: int
    count: int


class BrokerReply(msgspec.Struct, frozen=True, array_like=True, tag="Broker"):
    """The broker is registered; commands that it sends as itself carry this epoch."""

    broker_epoch: int


CommandReply: TypeAlias = TopicsReply | ConfigsReply | ProducerIdsReply | BrokerReply

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reply_decoder: msgspec.msgpack.Decoder[CommandReply] = msgspec.msgpack.Decoder(CommandReply)


def encode_command(command: Command) -> bytes:
    """A command's bytes."""
    return _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> Command:
    """The command; ValueError if the bytes are none."""
    return _command_decoder.decode(data)


def encode_reply(reply: CommandReply) -> bytes:
    """A reply's bytes."""
    return _encoder.encode(reply)


def decode_reply(data: bytes | memoryview) -> CommandReply:
    """The reply; ValueError if the bytes are none."""
    return _reply_decoder.decode(data)
