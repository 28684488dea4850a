"""The records of `__share_group_state`, in Kafka's own formats.

Type 0 is a snapshot of the state of a share partition, type 1 an update since the snapshot. A
snapshot without a value is a tombstone. Called by `shard`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import NoneType
from typing import Final

import msgspec

from odradek.coordinator.record_serde import Entry, RecordFormat, RecordSerde, SchemaValue
from odradek.coordinator.share.requests import ShareKey
from odradek.coordinator.share.state import NO_COUNT, ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import batches_of, combine
from odradek.protocol.messages import share_state
from odradek.protocol.schema import array, int32, int64, string, struct, uuid
from odradek.protocol.types import Uuid


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
    create_ms: int = int64()
    write_ms: int = int64()
    batches: list[share_state.StateBatch] = array(share_state.StateBatch)


@struct
class _Update:
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=NO_COUNT, tag=0, since=0)
    batches: list[share_state.StateBatch] = array(share_state.StateBatch)


class ShareStateRecord(msgspec.Struct, frozen=True, gc=False):
    """The newest state of a key, an update of it, or (None) its deletion."""

    key: ShareKey
    value: ShareState | ShareUpdate | None


def _record(
    group_id: str, topic_id: Uuid, partition: int, value: ShareState | ShareUpdate | None
) -> ShareStateRecord:
    return ShareStateRecord(ShareKey(group_id, topic_id, partition), value)


def _state(read: _Snapshot) -> ShareState:
    return ShareState(
        snapshot_epoch=read.snapshot_epoch,
        state_epoch=read.state_epoch,
        leader_epoch=read.leader_epoch,
        start_offset=read.start_offset,
        delivery_complete_count=read.delivery_complete_count,
        create_ms=read.create_ms,
        write_ms=read.write_ms,
        batches=combine((), batches_of(read.batches)),
    )


def _update(read: _Update) -> ShareUpdate:
    return ShareUpdate(
        snapshot_epoch=read.snapshot_epoch,
        leader_epoch=read.leader_epoch,
        start_offset=read.start_offset,
        delivery_complete_count=read.delivery_complete_count,
        batches=batches_of(read.batches),
    )


def _format(record_type: int, kinds: tuple[type, ...], value: SchemaValue) -> RecordFormat:
    return RecordFormat(
        record_type,
        ShareStateRecord,
        _Key,
        value,
        key_of=attrgetter("key"),
        make=_record,
        kinds=kinds,
    )


_SERDE: Final = RecordSerde(
    "__share_group_state",
    (
        _format(0, (ShareState, NoneType), SchemaValue("ShareSnapshotValue", _Snapshot, _state)),
        _format(1, (ShareUpdate,), SchemaValue("ShareUpdateValue", _Update, _update)),
    ),
    kind_of=lambda record: type(record.value),
)
encode: Final[Callable[[ShareStateRecord], Entry]] = _SERDE.encode
decode: Final[Callable[[bytes, bytes | None], ShareStateRecord | None]] = _SERDE.decode
