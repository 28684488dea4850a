"""Control records: the markers that the broker writes to end a transaction.

A marker is a batch of one record, which has an offset like all others. Clients do not return it to
the application. The partition leader writes it at the request of the transaction coordinator, and
storage reads it when it rebuilds its indexes.
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    build_batch,
    iter_records,
)
from odradek.protocol.types import NO_EPOCH

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 0


class ControlType(IntEnum):
    """The type in a control record's key. Kafka's other types are only in its metadata log."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """The end of a transaction, and the epoch of the coordinator that decided it."""

    type: ControlType
    coordinator_epoch: int


def build_end_transaction_batch(
    marker: EndTransactionMarker,
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_EPOCH,
) -> bytes:
    """The batch that ends the producer's transaction. Its sequence is -1."""
    record = Record(
        base_offset,
        timestamp_ms,
        _KEY.pack(_VERSION, marker.type),
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    return build_batch(
        (record,),
        base_offset=base_offset,
        attributes=TRANSACTIONAL | CONTROL,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def parse_control_record(record: Record) -> EndTransactionMarker | None:
    """The marker in a record of a control batch; None for an unknown type.

    Newer versions of key and value only append fields, which are ignored.
    """
    if record.key is None or len(record.key) < _KEY.size:
        raise ProtocolError("truncated control record key")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise ProtocolError(f"invalid control record key version {version}")
    if number not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise ProtocolError("truncated end-transaction marker value")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise ProtocolError(f"invalid end-transaction marker version {version}")
    return EndTransactionMarker(ControlType(number), coordinator_epoch)


def read_control_batch(
    batch: bytes | bytearray | memoryview, header: BatchHeader
) -> EndTransactionMarker | None:
    """The marker of a control batch, which has one record; None for an unknown type."""
    if not header.is_control:
        raise ProtocolError("not a control batch")
    records = list(iter_records(batch, header, limit=1024))
    if len(records) != 1:
        raise ProtocolError(f"a control batch must have one record, not {len(records)}")
    return parse_control_record(records[0])
