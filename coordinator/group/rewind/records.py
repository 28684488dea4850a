"""The records of live rewinds in `__consumer_offsets`, which are Odradek's own.

Kafka's tools ignore types that they do not know. A value is an int16 version and one MessagePack
array.

    type 20001   group               the pending and the last rewind
    type 20002   group, number       an undo point: the offsets before a rewind
    type 20003   group, name         a snapshot of the offsets
"""

from typing import Final, TypeAlias

import msgspec

from odradek.coordinator.record_serde import Encode, RecordFormat, read_version
from odradek.protocol.schema import int32, string, struct
from odradek.protocol.types import NO_OFFSET, Uuid


class OffsetMove(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The move of one partition to `offset` from `previous`."""

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
    """Commits of this partition are valid from that member epoch on (KIP-848)."""

    topic: str
    partition: int
    epoch: int


class Rewind(msgspec.Struct, frozen=True, array_like=True):
    """A rewind, pending or complete.

    `rewind_id` is the client's. `undoes` is the number of the undo point that it removes, 0 if
    none.
    """

    rewind_id: Uuid
    at_ms: int
    moves: tuple[OffsetMove, ...]
    undoes: int = 0


class RewindState(msgspec.Struct, frozen=True, array_like=True):
    """A group's rewinds: the pending one, the last complete one, the fences, and the largest number
    of an undo point. The ids of earlier complete rewinds and of cancelled ones are kept, the newest
    last, so that a retry does not start them again."""

    pending: Rewind | None = None
    last: Rewind | None = None
    fences: tuple[CommitFence, ...] = ()
    newest_number: int = 0
    done_ids: tuple[Uuid, ...] = ()
    given_up_ids: tuple[Uuid, ...] = ()


class UndoPoint(msgspec.Struct, frozen=True, array_like=True):
    """The moves of a rewind that can be undone."""

    at_ms: int
    moves: tuple[OffsetMove, ...]


class OffsetSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A group's offsets at a point in time."""

    at_ms: int
    moves: tuple[OffsetMove, ...]


class RewindStateRecord(msgspec.Struct, frozen=True):
    """The rewind state of a group."""

    group_id: str
    state: RewindState | None


class UndoPointRecord(msgspec.Struct, frozen=True):
    """An undo point. Numbers increase from 1."""

    group_id: str
    number: int
    point: UndoPoint | None


class OffsetSnapshotRecord(msgspec.Struct, frozen=True):
    """A named snapshot."""

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
