"""The records by which a group's rewinds stand in `__consumer_offsets`: Odradek's own.

Their types are far from Kafka's, whose tools pass over types that they do not know. A key begins
with the type, as all keys there; a value is an int16 version and one MessagePack array.

    key 20001    group               what of a rewind is under way, and what came of the last one
    key 20002    group, number       where the group was before one of its last rewinds
    key 20003    group, name         where the group was when somebody took a snapshot

A null value removes the key. Called by `records`.
"""

from typing import Final, TypeAlias

import msgspec

from odradek.coordinator.record_serde import Encode, RecordFormat, read_version
from odradek.protocol.schema import int32, string, struct
from odradek.protocol.types import NO_OFFSET, Uuid


class OffsetMove(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition that is rewound: to which offset and, as `previous`, from which."""

    topic: str
    topic_id: Uuid
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    previous: int = NO_OFFSET
    previous_leader_epoch: int = -1
    previous_metadata: str = ""


class CommitFence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Commits of this partition count from that member epoch on (KIP-848)."""

    topic: str
    partition: int
    epoch: int


class Rewind(msgspec.Struct, frozen=True, array_like=True):
    """A rewind that members stand in the way of, or that is done.

    `rewind_id` is the asker's. `undoes` is the number of the undo point that it uses up, 0 if none.
    """

    rewind_id: Uuid
    at_ms: int
    moves: tuple[OffsetMove, ...]
    undoes: int = 0


class RewindState(msgspec.Struct, frozen=True, array_like=True):
    """A group's rewinds: what is under way, the last that was done, who is still fenced, and the
    largest number that an undo point ever had. Of those before the last, and of those that were
    given up, the ids are known for a while, the newest last: nobody who asks again starts them."""

    pending: Rewind | None = None
    last: Rewind | None = None
    fences: tuple[CommitFence, ...] = ()
    newest_number: int = 0
    done_ids: tuple[Uuid, ...] = ()
    given_up_ids: tuple[Uuid, ...] = ()


class UndoPoint(msgspec.Struct, frozen=True, array_like=True):
    """A rewind that can be undone: its moves, backwards."""

    at_ms: int
    moves: tuple[OffsetMove, ...]


class OffsetSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A group's offsets as they were once."""

    at_ms: int
    moves: tuple[OffsetMove, ...]


class RewindStateRecord(msgspec.Struct, frozen=True):
    """What is to be known of a group's rewinds; without it, that there is nothing."""

    group_id: str
    state: RewindState | None


class UndoPointRecord(msgspec.Struct, frozen=True):
    """A rewind can be undone, or (without a point) not any more. Numbers grow, from 1."""

    group_id: str
    number: int
    point: UndoPoint | None


class OffsetSnapshotRecord(msgspec.Struct, frozen=True):
    """A named snapshot, or that it is gone."""

    group_id: str
    name: str
    snapshot: OffsetSnapshot | None


RewindRecord: TypeAlias = RewindStateRecord | UndoPointRecord | OffsetSnapshotRecord


@struct
class _StateKey:
    group_id: str = string()


@struct
class _UndoPointKey:
    group_id: str = string()
    number: int = int32()


@struct
class _SnapshotKey:
    group_id: str = string()
    name: str = string()


class _MessagePack:
    """Values of one msgspec class: version 0 and a MessagePack array."""

    def __init__(self, value_class: type[msgspec.Struct]) -> None:
        self._name = value_class.__name__
        self._decoder = msgspec.msgpack.Decoder(value_class)

    def encoder(self, version: int | None) -> Encode:
        return lambda value: _VERSION + _pack(value)

    def decode(self, octets: bytes) -> object:
        read_version(octets, 0, self._name)
        return self._decoder.decode(octets[len(_VERSION) :])


_VERSION: Final = b"\x00\x00"
_pack: Final = msgspec.msgpack.Encoder().encode

REWIND_FORMATS: Final = (
    RecordFormat(20_001, RewindStateRecord, _StateKey, _MessagePack(RewindState)),
    RecordFormat(20_002, UndoPointRecord, _UndoPointKey, _MessagePack(UndoPoint)),
    RecordFormat(20_003, OffsetSnapshotRecord, _SnapshotKey, _MessagePack(OffsetSnapshot)),
)


def key_of(move: OffsetMove) -> tuple[str, int]:
    """The partition of a move, as tables of offsets have it."""
    return move.topic, move.partition
