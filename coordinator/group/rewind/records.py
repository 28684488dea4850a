"""The records by which a group's rewinds stand in `__consumer_offsets`: Odradek's own.

Their types are far from Kafka's, whose tools pass over types that they do not know. A key begins
with the type, as all keys there; a value is an int16 version and one MessagePack array.

    key 20001    group               what of a rewind is under way, and what came of the last one
    key 20002    group, number       where the group was before one of its last rewinds
    key 20003    group, name         where the group was when somebody took a snapshot

A null value removes the key. Called by `records`.
"""

from typing import Final, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.record_fields import INT16, INT32, FieldReader, string
from odradek.protocol.errors import ProtocolError
from odradek.protocol.types import Uuid

T = TypeVar("T", "RewindState", "UndoPoint", "OffsetSnapshot")

NO_OFFSET: Final = -1
"""Stands for a partition without a committed offset."""

_STATE_KEY: Final = 20_001
_UNDO_KEY: Final = 20_002
_SNAPSHOT_KEY: Final = 20_003
_VERSION: Final = 0


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
REWIND_RECORD_KINDS: Final = (_STATE_KEY, _UNDO_KEY, _SNAPSHOT_KEY)

_pack: Final = msgspec.msgpack.Encoder().encode


def encode_rewind_record(record: RewindRecord) -> tuple[bytes, bytes | None]:
    """Key and value. ProtocolError if a text is too long for its place."""
    group = string(record.group_id)
    match record:
        case RewindStateRecord():
            return INT16.pack(_STATE_KEY) + group, _value(record.state)
        case UndoPointRecord():
            key = INT16.pack(_UNDO_KEY) + group + INT32.pack(record.number)
            return key, _value(record.point)
        case OffsetSnapshotRecord():
            key = INT16.pack(_SNAPSHOT_KEY) + group + string(record.name)
            return key, _value(record.snapshot)


def decode_rewind_record(kind: int, reader: FieldReader, value: bytes | None) -> RewindRecord:
    """The inverse; the key's type has been read. ProtocolError on a newer version."""
    group_id = reader.string()
    if kind == _STATE_KEY:
        return RewindStateRecord(group_id, None if value is None else _read(value, RewindState))
    if kind == _UNDO_KEY:
        number = reader.int32()
        return UndoPointRecord(group_id, number, None if value is None else _read(value, UndoPoint))
    name = reader.string()
    return OffsetSnapshotRecord(
        group_id, name, None if value is None else _read(value, OffsetSnapshot)
    )


def _value(of: RewindState | UndoPoint | OffsetSnapshot | None) -> bytes | None:
    return None if of is None else INT16.pack(_VERSION) + _pack(of)


def _read(value: bytes, kind: type[T]) -> T:
    version = FieldReader(value).version(_VERSION, kind.__name__)
    assert version == _VERSION
    try:
        return msgspec.msgpack.decode(value[INT16.size :], type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a rewind's record is malformed: {error}") from error


def key_of(move: OffsetMove) -> tuple[str, int]:
    """The partition of a move, as tables of offsets have it."""
    return move.topic, move.partition
