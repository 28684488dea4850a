"""The records of `__transaction_state`, in Kafka's own formats.

The key is the transactional id, the value its newest state. Version 1 of the value remembers
changes of the producer id (KIP-890); it is written once transaction.version is 1 or more. Called by
`shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

from odradek.coordinator.record_serde import Entry, RecordFormat, RecordSerde, SchemaValue
from odradek.coordinator.transaction.transaction_metadata import (
    Partition,
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.schema import array, int8, int16, int32, int64, string, struct
from odradek.protocol.types import NO_PRODUCER_ID


@struct
class _Key:
    transactional_id: str = string()


@struct
class _Value:
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = int64(default=-1, since=1, tag=0, ignorable=True)
    next_producer_id: int = int64(default=-1, since=1, tag=1, ignorable=True)
    client_transaction_version: int = int16(default=0, since=1, tag=2, ignorable=True)
    next_producer_epoch: int = int16(default=-1, since=1, tag=3, ignorable=True)


class TransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The newest state of a transactional id; without one the id has expired."""

    transactional_id: str
    transaction: TransactionMetadata | None


def _value_of(known: TransactionMetadata) -> _Value:
    partitions = None
    if known.state is not TransactionState.EMPTY:
        partitions = by_topic(known.partitions)
    return _Value(
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        transaction_timeout_ms=known.timeout_ms,
        transaction_status=known.state,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=known.last_update_ms,
        transaction_start_timestamp_ms=known.start_ms,
        previous_producer_id=known.previous_producer_id,
        next_producer_id=known.next_producer_id,
        client_transaction_version=known.client_version,
        next_producer_epoch=-1 if known.next_producer_id == NO_PRODUCER_ID else 0,
    )


def _transaction_of(read: _Value) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=read.producer_id,
        producer_epoch=read.producer_epoch,
        timeout_ms=read.transaction_timeout_ms,
        state=TransactionState(read.transaction_status),
        partitions=partitions_of(read.transaction_partitions or ()),
        last_update_ms=read.transaction_last_update_timestamp_ms,
        start_ms=read.transaction_start_timestamp_ms,
        previous_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        client_version=read.client_transaction_version,
    )


def by_topic(partitions: Iterable[Partition]) -> list[TopicPartitions]:
    """Partitions by topic, both sorted."""
    return [
        TopicPartitions(name=name, partitions=[index for _, index in group])
        for name, group in groupby(sorted(partitions), key=itemgetter(0))
    ]


def partitions_of(topics: Iterable[TopicPartitions]) -> frozenset[Partition]:
    """The inverse of `by_topic`."""
    return frozenset((topic.name, index) for topic in topics for index in topic.partitions)


_SERDE: Final = RecordSerde(
    "__transaction_state",
    (
        RecordFormat(
            0,
            TransactionRecord,
            _Key,
            SchemaValue(
                "TransactionLogValue",
                _Value,
                _transaction_of,
                to_struct=_value_of,
                version=1,
                version_max=1,
                flexible_since=1,
            ),
        ),
    ),
)
decode: Final[Callable[[bytes, bytes | None], TransactionRecord | None]] = _SERDE.decode


def encode(record: TransactionRecord, *, version: int) -> Entry:
    """Key and value; `version` is the value's."""
    return _SERDE.encode(record, version)
