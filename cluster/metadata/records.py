"""The records of the metadata log: the only thing that changes an image, and their bytes.

A record is a new state, never an instruction. An entry of the log is a msgpack list of all records
of one command: the command takes effect as a whole or not at all. Each record is an array that
starts with its tag. An older release skips unknown tags, and unknown fields at the end of a record.
A new record that all nodes must understand therefore needs a feature level (`features`), and those
that need one are in RECORDS_OF_SECURITY. Tags are never reused.
The record of a registration, which replaces the previous one, is the `BrokerImage` (tag 3).
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, get_args

import msgspec

from odradek.cluster.metadata.acls import AclBinding
from odradek.cluster.metadata.delegation_tokens import DelegationToken
from odradek.cluster.metadata.image import BrokerImage, PartitionImage
from odradek.cluster.metadata.scram import ScramCredential
from odradek.protocol.types import Uuid


class ClusterCreated(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The cluster has its id; the first record of every log."""

    cluster_id: str


class FeatureLevelChanged(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The finalized level of a feature; level 0 removes it."""

    name: str
    level: int


class BrokerChanged(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A registered broker was fenced, unfenced or began to shut down."""

    broker_id: int
    is_fenced: bool
    is_in_controlled_shutdown: bool


class BrokerUnregistered(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A broker was unregistered."""

    broker_id: int


class TopicCreated(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A topic exists, still without partitions; `PartitionsAdded` follows in the same entry."""

    name: str
    topic_id: Uuid


class PartitionsAdded(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The topic's partitions from number `first` on. `first` is the count of those before."""

    topic_id: Uuid
    first: int
    partitions: tuple[PartitionImage, ...]


class PartitionChanged(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """One partition's whole new state."""

    topic_id: Uuid
    partition: int
    state: PartitionImage


class TopicDeleted(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The topic was deleted, with its partitions and its configs."""

    topic_id: Uuid


class ConfigChanged(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A dynamic config was set, or removed if the value is null."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None


class ClientQuotaChanged(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """A client quota was set, or removed if the value is null.

    The components of `entity` are pairs of type and name, sorted by type; a null name is the
    default.
    """

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None


class ProducerIdsAllocated(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Producer ids below `next_producer_id` are allocated."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class ScramCredentialChanged(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A user has this SCRAM credential for a mechanism."""

    user: str
    mechanism: int
    credential: ScramCredential


class ScramCredentialRemoved(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A user has no SCRAM credential for a mechanism any more."""

    user: str
    mechanism: int


class DelegationTokenChanged(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """There is this delegation token, or it has another expiry time."""

    token: DelegationToken


class DelegationTokenRemoved(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A delegation token is worth nothing any more."""

    token_id: str


class AclCreated(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """An access control list has this binding."""

    binding: AclBinding


class AclDeleted(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The binding was deleted."""

    binding: AclBinding


class DecoyKeyCreated(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The cluster has this random secret: salts of users who do not exist are derived from it."""

    key: bytes


Record: TypeAlias = (
    ClusterCreated
    | FeatureLevelChanged
    | BrokerImage
    | BrokerChanged
    | BrokerUnregistered
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsAllocated
    | ScramCredentialChanged
    | ScramCredentialRemoved
    | ClientQuotaChanged
    | AclCreated
    | AclDeleted
    | DelegationTokenChanged
    | DelegationTokenRemoved
    | DecoyKeyCreated
)

RECORDS_OF_SECURITY: Final = (
    *(AclCreated, AclDeleted, ClientQuotaChanged, ScramCredentialChanged, ScramCredentialRemoved),
    *(DelegationTokenChanged, DelegationTokenRemoved, DecoyKeyCreated),
)
"""A node that skipped one of these would let in whom others refuse."""

_KNOWN_TAGS = frozenset(kind.__struct_config__.tag for kind in get_args(Record))
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_entry_decoder: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[Record])
_raw_entry_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])

encode_records: Callable[[Sequence[Record]], bytes] = msgspec.msgpack.Encoder().encode
"""The bytes of one entry of the log: all records of one command."""


def decode_record(data: bytes | memoryview) -> Record | None:
    """One record, or None for a tag of a newer release; ValueError if it is malformed."""
    try:
        return _record_decoder.decode(data)
    except msgspec.ValidationError:
        fields = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        if fields and msgspec.msgpack.decode(fields[0], type=int) not in _KNOWN_TAGS:
            return None
        raise


def decode_records(data: bytes | memoryview) -> list[Record]:
    """The records of one entry, without those of newer releases; ValueError if one is malformed."""
    try:
        return _entry_decoder.decode(data)
    except msgspec.ValidationError:
        records = (decode_record(raw) for raw in _raw_entry_decoder.decode(data))
        return [record for record in records if record is not None]
