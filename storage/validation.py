"""Validation of record batches before they are appended (Kafka's LogValidator).

Here are the checks of headers and of sequences; client_batches.py checks the records. The order and
the error codes are Kafka's: one batch of format 2, codec, base offset, size, CRC, counts, records,
then the producer's sequence (KIP-98). Everything here is pure.
"""

from enum import IntEnum

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import Codec
from odradek.protocol.control_records import EndTransactionMarker, read_control_batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    unpack_header,
)
from odradek.protocol.types import NO_TIMESTAMP
from odradek.storage.partition_log import PartitionLog
from odradek.storage.producer_state import BatchMetadata, check_sequence, find_duplicate
from odradek.storage.settings import LogSettings, TimestampType

CRC_MISMATCH = "The record batch is corrupt: its CRC does not match its content."
LATEST_VERSION = 13
SINGLE_BATCH_VERSION_MIN = 3
_ZSTD_VERSION_MIN = 7  # KIP-110
_EPOCH_BUMPS_SINCE = 12  # KIP-890
_LZ4_LEVEL_DEFAULT = 9  # KIP-390: at its default Kafka compresses fast instead of hard
_BROKERS_ATTRIBUTES = CONTROL | LOG_APPEND_TIME

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class AppendOrigin(IntEnum):
    """Who appends. It decides which checks apply."""

    CLIENT = 0
    """All checks."""
    COORDINATOR = 1
    """A coordinator of ours: its batches are well-formed, may be markers and have no sequences."""
    REPLICATION = 2
    """The leader's batches: they keep their offsets and epochs, may leave gaps, and only their CRC
    is checked."""


class BatchRejectedError(Exception):
    """The append fails with `code` and changes nothing. `record_errors` are pairs of a record's
    index in the batch and its error message."""

    def __init__(
        self,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_RECORD,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors


def check_header(
    batch: memoryview,
    header: BatchHeader,
    settings: LogSettings,
    request_version: int,
) -> None:
    """Check the header and the CRC of a client's batch, independently of the log's state. Raises
    BatchRejectedError."""
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec >= Codec.ZSTD:
        _check_codec(codec, request_version)
    if header.base_offset != 0 and request_version >= SINGLE_BATCH_VERSION_MIN:
        raise BatchRejectedError(
            f"The base offset of a produced batch must be 0, not {header.base_offset}."
        )
    if len(batch) > settings.max_message_bytes:
        raise size_error(len(batch), settings)
    if crc32c(batch[ATTRIBUTES_AT:]) != header.crc:
        raise BatchRejectedError(CRC_MISMATCH, ErrorCode.CORRUPT_MESSAGE)
    if attributes & _BROKERS_ATTRIBUTES:
        if attributes & CONTROL:
            raise BatchRejectedError("Clients are not allowed to write control records.")
        _check_log_append_time(header, settings)
    record_count = header.record_count
    if record_count <= 0 or header.last_offset_delta != record_count - 1:
        raise BatchRejectedError(
            f"The batch has {record_count} records and spans {header.last_offset_delta + 1} "
            "offsets."
        )
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            raise BatchRejectedError(f"Invalid base sequence {header.base_sequence}.")
    elif attributes & TRANSACTIONAL:
        raise BatchRejectedError("A transactional batch must have a producer id.")


def _check_log_append_time(header: BatchHeader, settings: LogSettings) -> None:
    """A client's flag LogAppendTime: a topic with the timestamps of producers clears it, unless the
    records have none; any other topic refuses it."""
    is_create_time = settings.message_timestamp_type is TimestampType.CREATE_TIME
    if not is_create_time or header.max_timestamp == NO_TIMESTAMP:
        text = "A producer must not set the timestamp type LogAppendTime."
        raise BatchRejectedError(text, ErrorCode.INVALID_TIMESTAMP, record_errors=((0, text),))


def _check_codec(codec: int, request_version: int) -> None:
    if codec > Codec.ZSTD:
        raise BatchRejectedError(
            f"Unknown compression type {codec}.", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        )
    if request_version < _ZSTD_VERSION_MIN:
        raise BatchRejectedError(
            f"zstd needs Produce version {_ZSTD_VERSION_MIN} or newer, not {request_version}.",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


def check_producer(
    log: PartitionLog, header: BatchHeader, request_version: int = 0
) -> BatchMetadata | None:
    """Check that the producer's batch is in sequence. Returns the batch that it repeats, if it is a
    retry. Raises BatchRejectedError.

    An unknown producer may start at any sequence (KIP-360). With an epoch for each transaction
    (KIP-890, Produce v12) it must start at 0: else its first batch is still on its way, and would
    be refused after this one.
    """
    entry = log.producers.get(header.producer_id)
    if entry is None:
        must_start_at_0 = request_version >= _EPOCH_BUMPS_SINCE and header.is_transactional
        if must_start_at_0 and header.base_sequence != 0:
            raise BatchRejectedError(
                f"Out of order sequence number for producer {header.producer_id} in epoch "
                f"{header.producer_epoch}: {header.base_sequence} instead of 0.",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )
        return None
    duplicate = find_duplicate(entry, header)
    if duplicate is not None:
        return duplicate
    code = check_sequence(entry, header)
    if code is not ErrorCode.NONE:
        raise BatchRejectedError(
            f"Producer {header.producer_id} sent epoch {header.producer_epoch}, sequence "
            f"{header.base_sequence} after epoch {entry.producer_epoch}, sequence "
            f"{entry.last_sequence}.",
            code,
        )
    return None


def check_coordinator_batch(
    log: PartitionLog, batch: memoryview, header: BatchHeader
) -> EndTransactionMarker | None:
    """Fence old coordinator epochs and old producer epochs. Returns the marker if the batch is one.
    Raises BatchRejectedError."""
    marker = read_control_batch(batch, header) if header.is_control else None
    entry = log.producers.get(header.producer_id) if header.producer_id >= 0 else None
    if entry is not None:
        if header.producer_epoch < entry.producer_epoch:
            raise BatchRejectedError(
                f"Epoch {header.producer_epoch} of producer {header.producer_id} is older than the "
                f"current epoch {entry.producer_epoch}.",
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise BatchRejectedError(
                f"Coordinator epoch {marker.coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}.",
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )
    return marker


def check_replicated_batch(
    log: PartitionLog, batch: memoryview, header: BatchHeader
) -> EndTransactionMarker | None:
    """Check the offset and the CRC of a batch from the leader. Returns the marker if the batch is
    one. Raises BatchRejectedError."""
    if header.base_offset < log.log_end_offset:
        raise BatchRejectedError(
            f"Base offset {header.base_offset} is below the log end offset {log.log_end_offset}.",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    if crc32c(batch[ATTRIBUTES_AT:]) != header.crc:
        raise BatchRejectedError(CRC_MISMATCH, ErrorCode.CORRUPT_MESSAGE)
    return read_control_batch(batch, header) if header.is_control else None


def compression_level_of(codec: Codec, settings: LogSettings) -> int | None:
    """The topic's compression level for this codec. None: the codec's default."""
    if codec is Codec.GZIP:
        return settings.compression_gzip_level
    if codec is Codec.ZSTD:
        return settings.compression_zstd_level
    if codec is Codec.LZ4 and settings.compression_lz4_level != _LZ4_LEVEL_DEFAULT:
        return settings.compression_lz4_level
    return None


def split(arena: memoryview, start: int, length: int) -> list[tuple[int, int, BatchHeader]]:
    """(position, size, header) of every batch: at least one, together exactly the whole length.
    Raises BatchRejectedError."""
    batches = []
    at, end = start, start + length
    while at < end:
        if end - at < HEADER_BYTES:
            raise BatchRejectedError(
                f"{end - at} bytes are too few for a record batch.", ErrorCode.CORRUPT_MESSAGE
            )
        header = unpack_header(arena, at)
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC:
            raise BatchRejectedError(f"Unsupported message format {header.magic}.")
        if not HEADER_BYTES <= size <= end - at:
            raise BatchRejectedError(
                f"Invalid batch size {size}: {end - at} bytes are left.", ErrorCode.CORRUPT_MESSAGE
            )
        batches.append((at, size, header))
        at += size
    if not batches:
        raise BatchRejectedError("The request has no record batch.")
    return batches


def size_error(size: int, settings: LogSettings) -> BatchRejectedError:
    """MESSAGE_TOO_LARGE for a batch of `size` bytes."""
    return BatchRejectedError(
        f"The record batch size is {size} bytes, which exceeds max.message.bytes "
        f"{settings.max_message_bytes}.",
        ErrorCode.MESSAGE_TOO_LARGE,
    )
