"""The records of `__transaction_state`, in Kafka's own formats: its tools read ours, we read its.

A key is an int16 version 0 and the transactional id, a value an int16 version and the newest state
of that id; a null value forgets it (the topic is compacted). Version 1 of the value is flexible and
remembers changes of the producer id (KIP-890). Called by `shard`.
"""

from __future__ import annotations

import struct as packing
from functools import cache
from typing import Final

import msgspec

from odradek.coordinator.transaction.transaction_metadata import (
    NO_PRODUCER_ID,
    Partition,
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.decoding import Decoder, compile_decoder
from odradek.protocol.encoding import Encoder, compile_encoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.schema import array, int8, int16, int32, int64, string, struct

_VERSION: Final = packing.Struct(">h")
_VALUE_VERSION_MAX: Final = 1


@struct
class _Key:
    transactional_id: str = string()


@struct
class _Partitions:
    topic: str = string()
    partition_ids: list[int] = array(int32)


@struct
class _Value:
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[_Partitions] | None = array(_Partitions, nullable_since=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = int64(default=-1, since=1, tag=0, ignorable=True)
    next_producer_id: int = int64(default=-1, since=1, tag=1, ignorable=True)
    client_transaction_version: int = int16(default=0, since=1, tag=2, ignorable=True)
    next_producer_epoch: int = int16(default=-1, since=1, tag=3, ignorable=True)


class TransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The newest state of a transactional id, or (without one) that it is forgotten."""

    transactional_id: str
    transaction: TransactionMetadata | None


def encode(record: TransactionRecord, *, version: int) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if the id is too long for its place."""
    key = _encode(_Key, 0, _Key(transactional_id=record.transactional_id))
    known = record.transaction
    if known is None:
        return key, None
    partitions = None
    if known.state is not TransactionState.EMPTY:
        partitions = [
            _Partitions(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic(known.partitions).items()
        ]
    value = _Value(
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
    return key, _encode(_Value, version, value)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The inverse of `encode`, for all versions; None for keys this release does not know."""
    try:
        (key_version,) = _VERSION.unpack_from(key)
        if key_version != 0:
            return None
        named = _decoder(_Key, 0)(key, _VERSION.size)
        assert isinstance(named, _Key)
        if value is None:
            return TransactionRecord(named.transactional_id, None)
        (version,) = _VERSION.unpack_from(value)
        if not 0 <= version <= _VALUE_VERSION_MAX:
            raise ProtocolError(
                f"TransactionLogValue version {version}; this release reads 0 to"
                f" {_VALUE_VERSION_MAX}"
            )
        stored = _decoder(_Value, version)(value, _VERSION.size)
        assert isinstance(stored, _Value)
        return TransactionRecord(named.transactional_id, _transaction_of(stored))
    except (packing.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"a record of __transaction_state is malformed: {error}") from error


def _transaction_of(stored: _Value) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        timeout_ms=stored.transaction_timeout_ms,
        state=TransactionState(stored.transaction_status),
        partitions=frozenset(
            (named.topic, index)
            for named in stored.transaction_partitions or ()
            for index in named.partition_ids
        ),
        last_update_ms=stored.transaction_last_update_timestamp_ms,
        start_ms=stored.transaction_start_timestamp_ms,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        client_version=stored.client_transaction_version,
    )


def by_topic(partitions: frozenset[Partition]) -> dict[str, list[int]]:
    """The same, sorted, as messages and records have it."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _encode(declared: type, version: int, message: object) -> bytes:
    try:
        return _VERSION.pack(version) + b"".join(_encoder(declared, version)(message))
    except packing.error as error:
        raise ProtocolError(f"a text is too long for a record: {error}") from error


@cache
def _encoder(declared: type, version: int) -> Encoder:
    return compile_encoder(declared, version, flexible=version >= 1)


@cache
def _decoder(declared: type, version: int) -> Decoder:
    return compile_decoder(declared, version, flexible=version >= 1)
