"""The records of `__share_group_state`, in Kafka's own formats: its tools read ours, we read its.

A key is an int16 kind (0 a snapshot, 1 an update), the group, topic and partition; a value an int16
version and what is known, or since the snapshot has changed. A snapshot without a value forgets the
key. Called by `shard`.
"""

from __future__ import annotations

import struct as packing
from functools import cache
from typing import Final

import msgspec

from odradek.coordinator.share.requests import ShareKey
from odradek.coordinator.share.state import NO_COUNT, ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import batches_of, combine, messages_of
from odradek.protocol.decoding import Decoder, compile_decoder
from odradek.protocol.encoding import Encoder, compile_encoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages import share_state
from odradek.protocol.schema import array, int32, int64, string, struct, uuid
from odradek.protocol.types import Uuid

_VERSION: Final = packing.Struct(">h")
_SNAPSHOT: Final = 0
_UPDATE: Final = 1
_VALUE_VERSION: Final = 0


@struct
class _Key:
    group_id: str = string()
    topic_id: Uuid = uuid()
    partition: int = int32()


@struct
class _Snapshot:
    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=NO_COUNT, tag=0, since=0)
    create_timestamp: int = int64()
    write_timestamp: int = int64()
    state_batches: list[share_state.StateBatch] = array(share_state.StateBatch)


@struct
class _Update:
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=NO_COUNT, tag=0, since=0)
    state_batches: list[share_state.StateBatch] = array(share_state.StateBatch)


class ShareStateRecord(msgspec.Struct, frozen=True, gc=False):
    """The newest state of a key, a change of it, or (None) that it is forgotten."""

    key: ShareKey
    value: ShareState | ShareUpdate | None


def encode(record: ShareStateRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if the group's name is too long for its
    place."""
    value = record.value
    kind = _UPDATE if isinstance(value, ShareUpdate) else _SNAPSHOT
    key = _encode(
        _Key,
        kind,
        _Key(
            group_id=record.key.group_id,
            topic_id=record.key.topic_id,
            partition=record.key.partition,
        ),
    )
    if value is None:
        return key, None
    batches = messages_of(value.batches)
    if isinstance(value, ShareUpdate):
        update = _Update(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            state_batches=batches,
        )
        return key, _encode(_Update, _VALUE_VERSION, update)
    snapshot = _Snapshot(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp=value.create_ms,
        write_timestamp=value.write_ms,
        state_batches=batches,
    )
    return key, _encode(_Snapshot, _VALUE_VERSION, snapshot)


def decode(key: bytes, value: bytes | None) -> ShareStateRecord | None:
    """The inverse of `encode`; None for keys this release does not know."""
    try:
        (kind,) = _VERSION.unpack_from(key)
        if kind not in (_SNAPSHOT, _UPDATE):
            return None
        named = _decoder(_Key)(key, _VERSION.size)
        assert isinstance(named, _Key)
        share_key = ShareKey(named.group_id, named.topic_id, named.partition)
        if value is None:
            return ShareStateRecord(share_key, None)
        (version,) = _VERSION.unpack_from(value)
        if version != _VALUE_VERSION:
            raise ProtocolError(
                f"a value of version {version}; this release reads version {_VALUE_VERSION}"
            )
        stored = _decoder(_UPDATE_OR_SNAPSHOT[kind])(value, _VERSION.size)
        return ShareStateRecord(share_key, _state_of(stored))
    except (packing.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"a record of __share_group_state is malformed: {error}") from error


_UPDATE_OR_SNAPSHOT: Final = {_SNAPSHOT: _Snapshot, _UPDATE: _Update}


def _state_of(stored: object) -> ShareState | ShareUpdate:
    if isinstance(stored, _Update):
        return ShareUpdate(
            snapshot_epoch=stored.snapshot_epoch,
            leader_epoch=stored.leader_epoch,
            start_offset=stored.start_offset,
            delivery_complete_count=stored.delivery_complete_count,
            batches=batches_of(stored.state_batches),
        )
    assert isinstance(stored, _Snapshot)
    return ShareState(
        snapshot_epoch=stored.snapshot_epoch,
        state_epoch=stored.state_epoch,
        leader_epoch=stored.leader_epoch,
        start_offset=stored.start_offset,
        delivery_complete_count=stored.delivery_complete_count,
        create_ms=stored.create_timestamp,
        write_ms=stored.write_timestamp,
        batches=combine((), batches_of(stored.state_batches)),
    )


def _encode(declared: type, version: int, message: object) -> bytes:
    try:
        return _VERSION.pack(version) + b"".join(_encoder(declared)(message))
    except packing.error as error:
        raise ProtocolError(f"a text is too long for a record: {error}") from error


@cache
def _encoder(declared: type) -> Encoder:
    return compile_encoder(declared, 0, flexible=declared is not _Key)


@cache
def _decoder(declared: type) -> Decoder:
    return compile_decoder(declared, 0, flexible=declared is not _Key)
