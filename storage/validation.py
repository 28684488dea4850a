"""What a batch must fulfil before it may enter a log.

Nothing is looked at but the batch header, unless the topic asks for more: compaction needs keys, a
timestamp is out of bounds, another compression is wanted. The order of checks and the codes are
Kafka's: one batch of format 2, codec, base offset, size, CRC, counts, records, then the producer's
sequence (KIP-98). Called by append.py; everything here is pure.
"""

from enum import IntEnum
from struct import Struct

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import Codec, compress, decompress
from odradek.protocol.control_records import EndTransactionMarker, read_control_batch
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.records import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    RecordFault,
    check_records,
)
from odradek.storage.partition_log import PartitionLog
from odradek.storage.producer_state import BatchMetadata, check_sequence, find_duplicate
from odradek.storage.settings import LogSettings, TimestampType

unpack_header = Struct(">qiibIhiqqqhii").unpack_from
_pack_int32 = Struct(">i").pack_into
_pack_int16 = Struct(">h").pack_into
_pack_uint32 = Struct(">I").pack_into

LATEST_VERSION = 13
SINGLE_BATCH_VERSION_MIN = 3
_ZSTD_VERSION_MIN = 7  # KIP-110
_EPOCH_BUMPS_SINCE = 12  # KIP-890
_RECORD_ERRORS_MAX = 100
_LZ4_LEVEL_DEFAULT = 9  # KIP-390: at its default Kafka compresses fast instead of hard
_CLIENT_ATTRIBUTES_REFUSED = CONTROL | DELETE_HORIZON | LOG_APPEND_TIME

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_FAULT_CODES = {
    RecordFault.KEY_MISSING: ErrorCode.INVALID_RECORD,
    RecordFault.OFFSET_NOT_CONSECUTIVE: ErrorCode.INVALID_RECORD,
    RecordFault.TIMESTAMP_OUT_OF_RANGE: ErrorCode.INVALID_TIMESTAMP,
}

Fields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A batch header in the order of protocol.records.BatchHeader."""


class AppendOrigin(IntEnum):
    """Who appends, which says what is believed unseen."""

    CLIENT = 0
    """Everything is checked."""
    COORDINATOR = 1
    """Our own batches: well-formed, may be markers, have no sequences."""
    REPLICATION = 2
    """The leader's batches: offsets and epochs are theirs, gaps included; only the CRC counts."""


class BatchRejectedError(Exception):
    """The append is answered with an error and changes nothing. `record_errors` are pairs of an
    index in the batch and what is wrong with that record."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors


def check_batch(
    batch: memoryview,
    fields: Fields,
    settings: LogSettings,
    request_version: int,
    now_ms: int,
) -> None:
    """What a client's batch must fulfil, whatever the log holds. Raises Refused."""
    (
        base_offset,
        _,
        _,
        _,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        base_sequence,
        record_count,
    ) = fields
    codec = attributes & CODEC_MASK
    if codec >= Codec.ZSTD:
        if codec > Codec.ZSTD:
            raise BatchRejectedError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression {codec}"
            )
        if request_version < _ZSTD_VERSION_MIN:
            raise BatchRejectedError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce version {_ZSTD_VERSION_MIN}, not {request_version}",
            )
    if base_offset != 0 and request_version >= SINGLE_BATCH_VERSION_MIN:
        raise BatchRejectedError(
            ErrorCode.INVALID_RECORD, f"the base offset must be 0, not {base_offset}"
        )
    if len(batch) > settings.max_message_bytes:
        raise size_error(len(batch), settings)
    if crc32c(batch[ATTRIBUTES_AT:]) != crc:
        raise BatchRejectedError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not fit the batch")
    if attributes & _CLIENT_ATTRIBUTES_REFUSED:
        if attributes & LOG_APPEND_TIME:
            raise BatchRejectedError(
                ErrorCode.INVALID_TIMESTAMP,
                "a producer must not set the type LogAppendTime",
            )
        raise BatchRejectedError(ErrorCode.INVALID_RECORD, "clients cannot write control batches")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise BatchRejectedError(
            ErrorCode.INVALID_RECORD,
            f"{record_count} records in a batch that spans {last_offset_delta + 1} offsets",
        )
    if producer_id >= 0:
        if base_sequence < 0:
            raise BatchRejectedError(
                ErrorCode.INVALID_RECORD, f"a producer's sequence of {base_sequence}"
            )
    elif attributes & TRANSACTIONAL:
        raise BatchRejectedError(
            ErrorCode.INVALID_RECORD, "a transactional batch without a producer id"
        )
    if settings.message_timestamp_type is TimestampType.CREATE_TIME:
        earliest = now_ms - settings.message_timestamp_before_max_ms
        latest = now_ms + settings.message_timestamp_after_max_ms
        is_in_bounds = max_timestamp <= latest and (
            base_timestamp >= earliest or base_timestamp == NO_TIMESTAMP
        )
    else:
        earliest, latest = -(2**63), 2**63 - 1
        is_in_bounds = True
    if settings.cleanup_compact or not is_in_bounds:
        _check_records(batch, fields, settings.cleanup_compact, earliest, latest)


def _check_records(
    batch: memoryview, fields: Fields, requires_keys: bool, earliest: int, latest: int
) -> None:
    """The look inside, for topics that must have keys and timestamps that seem out of bounds."""
    codes: set[ErrorCode] = set()
    errors: list[tuple[int, str]] = []
    try:
        for index, fault in check_records(
            batch,
            BatchHeader._make(fields),
            requires_keys=requires_keys,
            timestamp_min=earliest,
            timestamp_max=latest,
        ):
            codes.add(_FAULT_CODES[fault])
            if len(errors) < _RECORD_ERRORS_MAX:
                errors.append((index, fault.value))
    except ProtocolError as error:
        # The CRC was right: sending it again, as CORRUPT_MESSAGE asks for, would not help.
        raise BatchRejectedError(ErrorCode.INVALID_RECORD, str(error)) from None
    if not codes:
        return
    if ErrorCode.INVALID_TIMESTAMP in codes:
        code, message = ErrorCode.INVALID_TIMESTAMP, "records were refused for their timestamps"
    else:
        code, message = ErrorCode.INVALID_RECORD, "records were refused"
    raise BatchRejectedError(code, message, tuple(errors))


def check_producer(
    log: PartitionLog, fields: Fields, request_version: int = 0
) -> BatchMetadata | None:
    """Whether the producer's batch comes in order; the batch that it repeats if it came before.

    A producer that nothing is known of may begin anywhere (KIP-360), unless each of its
    transactions has an epoch of its own (KIP-890, Produce v12): then its first batch is still to
    come, and would be refused behind this one.
    """
    entry = log.producers.get(fields[9])
    if entry is None:
        begins_anew = request_version >= _EPOCH_BUMPS_SINCE and fields[5] & TRANSACTIONAL
        if begins_anew and fields[11] != 0:
            raise BatchRejectedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {fields[9]} sent epoch {fields[10]}, sequence {fields[11]} first",
            )
        return None
    duplicate = find_duplicate(entry, fields[10], fields[11], fields[6])
    if duplicate is not None:
        return duplicate
    code = check_sequence(entry, fields[10], fields[11], fields[5] & TRANSACTIONAL != 0)
    if code is not ErrorCode.NONE:
        raise BatchRejectedError(
            code,
            f"producer {fields[9]} sent epoch {fields[10]}, sequence {fields[11]} after "
            f"epoch {entry.producer_epoch}, sequence {entry.last_sequence}",
        )
    return None


def check_coordinator_batch(
    log: PartitionLog, batch: memoryview, fields: Fields
) -> EndTransactionMarker | None:
    """Fence old coordinators and old producer epochs; the marker if it is one."""
    marker = None
    if fields[5] & CONTROL:
        marker = read_control_batch(batch, BatchHeader._make(fields))
    entry = log.producers.get(fields[9]) if fields[9] >= 0 else None
    if entry is not None:
        if fields[10] < entry.producer_epoch:
            raise BatchRejectedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {fields[10]} of producer {fields[9]} is older than {entry.producer_epoch}",
            )
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise BatchRejectedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}",
            )
    return marker


def recompress(
    batch: memoryview, fields: Fields, codec: Codec, settings: LogSettings
) -> tuple[memoryview, Fields]:
    """The same batch under another codec, at the topic's level for it, with its new length and CRC;
    the records stay."""
    attributes = fields[5]
    try:
        payload = decompress(Codec(attributes & CODEC_MASK), batch[HEADER_BYTES:])
    except ProtocolError as error:
        raise BatchRejectedError(ErrorCode.INVALID_RECORD, str(error)) from None
    body = (
        payload
        if codec is Codec.NONE
        else compress(codec, payload, level=_level_of(codec, settings))
    )
    view = memoryview(bytearray(b"".join((batch[:HEADER_BYTES], body))))
    _pack_int32(view, BATCH_LENGTH_AT, len(view) - LENGTH_OVERHEAD)
    _pack_int16(view, ATTRIBUTES_AT, attributes & ~CODEC_MASK | codec)
    _pack_uint32(view, CRC_AT, crc32c(view[ATTRIBUTES_AT:]))
    return view, unpack_header(view, 0)


def _level_of(codec: Codec, settings: LogSettings) -> int | None:
    if codec is Codec.GZIP:
        return settings.compression_gzip_level
    if codec is Codec.ZSTD:
        return settings.compression_zstd_level
    if codec is Codec.LZ4 and settings.compression_lz4_level != _LZ4_LEVEL_DEFAULT:
        return settings.compression_lz4_level
    return None


def split(arena: memoryview, start: int, length: int) -> list[tuple[int, int, Fields]]:
    """(position, size, header) of every batch; at least one, together exactly the whole length."""
    batches = []
    at, end = start, start + length
    while at < end:
        if end - at < HEADER_BYTES:
            raise BatchRejectedError(ErrorCode.CORRUPT_MESSAGE, f"{end - at} bytes are no batch")
        fields: Fields = unpack_header(arena, at)
        size = fields[1] + LENGTH_OVERHEAD
        if fields[3] != MAGIC:
            raise BatchRejectedError(
                ErrorCode.INVALID_RECORD, f"message format {fields[3]} is not taken here"
            )
        if not HEADER_BYTES <= size <= end - at:
            raise BatchRejectedError(
                ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes in {end - at}"
            )
        batches.append((at, size, fields))
        at += size
    if not batches:
        raise BatchRejectedError(ErrorCode.INVALID_RECORD, "no batch at all")
    return batches


def size_error(size: int, settings: LogSettings) -> BatchRejectedError:
    return BatchRejectedError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes where max.message.bytes is {settings.max_message_bytes}",
    )
