"""The idempotent and transactional producers of a partition (Kafka's ProducerStateManager).

An entry is immutable. Every append replaces it, so that a failed turn can restore the old one. The
rules are those of KIP-98 and KIP-360: a batch that repeats one of the last five is answered with
the offset of the original; the next batch must continue the last sequence; a new epoch starts at
sequence 0; an unknown producer may start at any sequence.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from odradek.protocol.control_records import EndTransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import BatchHeader
from odradek.protocol.types import NO_EPOCH, NO_OFFSET, NO_SEQUENCE

BATCHES_REMEMBERED = 5
"""As in Kafka: a producer may have five batches in flight (KIP-98, KAFKA-5494)."""

SEQUENCE_MAX = 2**31 - 1

_ENTRY = Struct(">hiqqB")
_BATCH = Struct(">iqiq")


class BatchMetadata(NamedTuple):
    """A batch that a producer appended: what is needed to recognise a retry."""

    last_sequence: int
    base_offset: int
    offset_delta: int
    timestamp: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.offset_delta


class ProducerStateEntry(NamedTuple):
    """A producer's state in a partition. `batches` are the last ones of the current epoch, oldest
    first. There are none after a marker that raised the epoch."""

    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    transaction_first_offset: int
    batches: tuple[BatchMetadata, ...]

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 if the current epoch has none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def encode(self) -> bytes:
        """The row in a catalog or a checkpoint: at most 143 bytes."""
        head = _ENTRY.pack(
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.transaction_first_offset,
            len(self.batches),
        )
        return head + b"".join([_BATCH.pack(*batch) for batch in self.batches])

    @classmethod
    def decode(cls, row: bytes | memoryview) -> "ProducerStateEntry":
        epoch, coordinator_epoch, timestamp, first_offset, count = _ENTRY.unpack_from(row)
        batches = tuple(
            BatchMetadata(*_BATCH.unpack_from(row, _ENTRY.size + i * _BATCH.size))
            for i in range(count)
        )
        return cls(epoch, coordinator_epoch, timestamp, first_offset, batches)


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers returns it. -1 where there is no value."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


def describe_producers(producers: Mapping[int, ProducerStateEntry]) -> list[ActiveProducer]:
    """The answer of DescribeProducers for a partition."""
    return [
        ActiveProducer(
            producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for producer_id, entry in producers.items()
    ]


def find_duplicate(entry: ProducerStateEntry, header: BatchHeader) -> BatchMetadata | None:
    """The remembered batch that this one repeats, if it is a retry."""
    if header.producer_epoch != entry.producer_epoch:
        return None
    offset_delta = header.last_offset_delta
    last_sequence = (header.base_sequence + offset_delta) & SEQUENCE_MAX
    for batch in entry.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == offset_delta:
            return batch
    return None


def check_sequence(entry: ProducerStateEntry, header: BatchHeader) -> ErrorCode:
    """Whether a client's batch that is no duplicate may follow the producer's last one."""
    if header.producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if header.producer_epoch > entry.producer_epoch:
        expected = 0
    else:
        expected = (entry.last_sequence + 1) & SEQUENCE_MAX
    if header.base_sequence != expected:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry.transaction_first_offset != NO_OFFSET and not header.is_transactional:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def entry_after_batch(
    entry: ProducerStateEntry | None, header: BatchHeader, base_offset: int
) -> ProducerStateEntry:
    """The entry after a data batch was appended at `base_offset`. A coordinator's own batches in a
    transaction have no sequence (-1) and are not remembered."""
    batches: tuple[BatchMetadata, ...] = ()
    coordinator_epoch = NO_EPOCH
    first_offset = NO_OFFSET
    if entry is not None:
        coordinator_epoch, first_offset = entry.coordinator_epoch, entry.transaction_first_offset
        if header.producer_epoch == entry.producer_epoch:
            batches = entry.batches
    if first_offset == NO_OFFSET and header.is_transactional:
        first_offset = base_offset
    timestamp = header.max_timestamp
    if header.base_sequence >= 0:
        offset_delta = header.last_offset_delta
        last_sequence = (header.base_sequence + offset_delta) & SEQUENCE_MAX
        appended = BatchMetadata(last_sequence, base_offset, offset_delta, timestamp)
        batches = (*batches[1 - BATCHES_REMEMBERED :], appended)
    return ProducerStateEntry(
        header.producer_epoch, coordinator_epoch, timestamp, first_offset, batches
    )


def entry_after_marker(
    entry: ProducerStateEntry | None, header: BatchHeader, marker: EndTransactionMarker
) -> ProducerStateEntry:
    """The entry after the marker that ended the producer's transaction."""
    is_same_epoch = entry is not None and header.producer_epoch == entry.producer_epoch
    return ProducerStateEntry(
        header.producer_epoch,
        marker.coordinator_epoch,
        header.max_timestamp,
        NO_OFFSET,
        entry.batches if entry is not None and is_same_epoch else (),
    )


def is_expired(entry: ProducerStateEntry, *, now_ms: int, expiration_ms: int) -> bool:
    """Whether the producer may be removed: idle for `expiration_ms` and without a transaction."""
    return (
        entry.transaction_first_offset == NO_OFFSET
        and now_ms - entry.last_timestamp >= expiration_ms
    )
