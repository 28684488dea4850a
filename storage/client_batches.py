"""What is done to a client's batches before they are appended: every record is checked, and batches
get the topic's compression type, the format of the log, and their true max timestamp.

This can take long, because a small batch can hold very many records. So it is done in steps:
`prepare` yields the cost of each step, and its caller decides whether to go on at once, or in
another thread. Memory is bounded: one piece of a batch is decompressed at a time. The log's state
plays no part; append.py checks sequences when the batches are put.

Kafka's LogValidator is the model. It differs in two ways: Kafka accepts offset deltas that do not
count up in uncompressed batches, and answers UNKNOWN_SERVER_ERROR for them in compressed ones.
"""

from collections.abc import Generator, Iterator
from typing import Final

import msgspec

from odradek.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    Codec,
    DecompressedSizeError,
)
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.message_converter import MESSAGES_PER_STEP
from odradek.protocol.piecewise_compression import (
    PIECE_BYTES,
    StreamCompressor,
    decompress_pieces,
    step_bytes_max,
)
from odradek.protocol.record_walker import (
    INT64_MAX,
    INT64_MIN,
    IS_COMPILED,
    NO_KEY,
    OFFSET_NOT_CONSECUTIVE,
    MalformedRecordsError,
    RecordWalker,
)
from odradek.protocol.records import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    encode_batch,
    set_create_time,
    unpack_header,
)
from odradek.protocol.types import NO_TIMESTAMP
from odradek.protocol.up_conversion import UpConversion
from odradek.storage.log_append import LogAppend
from odradek.storage.settings import LogSettings, TimestampType
from odradek.storage.validation import (
    CODECS,
    SINGLE_BATCH_VERSION_MIN,
    BatchRejectedError,
    check_header,
    compression_level_of,
    size_error,
    split,
)

UNFOLDED_BYTES_MAX: Final = DECOMPRESSED_BYTES_MAX
"""The uncompressed records of a batch may have so many bytes: the largest batch that a producer can
send uncompressed with Kafka's default of socket.request.max.bytes. Kafka has no such limit."""

# Nanoseconds, measured; they only have to be right within a factor of two.
_RECORD_COST: Final = 15 if IS_COMPILED else 1_000
_BYTE_COST: Final = 1
_UP_CONVERSION_COST: Final = MESSAGES_PER_STEP * (600 if IS_COMPILED else 5_000)
_COMPRESSION_COST: Final[dict[Codec, int]] = {
    Codec.NONE: 1,
    Codec.GZIP: 30,
    Codec.SNAPPY: 4,
    Codec.LZ4: 4,
    Codec.ZSTD: 8,
}
_WINDOW_BYTES: Final = 256 << 10 if IS_COMPILED else 16 << 10
"""Uncompressed records are read in pieces of this size, which stay in the processor's cache."""

_MESSAGES: Final = {
    NO_KEY: "Compacted topic cannot accept message without key.",
    OFFSET_NOT_CONSECUTIVE: "The offsets inside the batch are not consecutive.",
}


def prepare(append: LogAppend, settings: LogSettings, now_ms: int) -> Iterator[int]:
    """Check and convert the batches of `append`, in the steps of the result. Each is what a step
    costs, in nanoseconds, before a long one and after any other. Each step raises
    BatchRejectedError.

    Afterwards `append.is_prepared` is set. Most small batches need none of this
    (Turn.append_plain).
    """
    arena, start, length = append.arena, append.start, append.length
    if (
        length > MAGIC_AT
        and arena[start + MAGIC_AT] < MAGIC
        and append.request_version < SINGLE_BATCH_VERSION_MIN
    ):
        yield from _up_convert(append, settings)
        arena, start, length = append.arena, append.start, append.length
    header = unpack_header(arena, start) if length >= HEADER_BYTES else None
    if (
        header is not None
        and header.batch_length + LENGTH_OVERHEAD == length
        and header.magic == MAGIC
    ):
        # The common case: a single batch.
        yield from _prepare_batch(append, header, settings, now_ms)
    else:
        yield from _prepare_several(append, settings, now_ms)
    append.is_prepared = True


def _prepare_several(append: LogAppend, settings: LogSettings, now_ms: int) -> Iterator[int]:
    """Any number of batches but one, or bytes that are no whole batch."""
    batches = split(append.arena, append.start, append.length)
    if append.request_version >= SINGLE_BATCH_VERSION_MIN and len(batches) != 1:
        raise BatchRejectedError(
            f"Produce requests with version {append.request_version} are only allowed to "
            "contain exactly one record batch per partition."
        )
    parts = []
    for at, size, header in batches:
        part = msgspec.structs.replace(append, start=at, length=size, has_headroom=False)
        yield from _prepare_batch(part, header, settings, now_ms)
        if header.producer_id >= 0:
            raise BatchRejectedError(
                "An idempotent producer must send one batch per partition and request."
            )
        parts.append(part)
    append.parts = parts


def _prepare_batch(
    append: LogAppend, header: BatchHeader, settings: LogSettings, now_ms: int
) -> Iterator[int]:
    batch = append.arena[append.start : append.start + append.length]
    check_header(batch, header, settings, append.request_version)
    output = None
    if settings.compression_type != "producer":
        codec = CODECS[settings.compression_type]
        if header.attributes & CODEC_MASK != codec:
            output = _Output(codec, settings)
    is_create_time = settings.message_timestamp_type is TimestampType.CREATE_TIME
    walker = _walker_of(header, settings, now_ms, is_create_time)
    yield from _walk(batch, header, walker, output)
    latest = header.base_timestamp + walker.largest_delta
    max_timestamp = max(latest, NO_TIMESTAMP) if is_create_time else header.max_timestamp
    if output is not None:
        attributes = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME) | output.codec
        header = header._replace(attributes=attributes, max_timestamp=max_timestamp)
        recompressed = encode_batch(header, output.finish(HEADER_BYTES))
        append.replace(memoryview(recompressed))
    else:
        _set_create_time(append, header, max_timestamp)


def _set_create_time(append: LogAppend, header: BatchHeader, max_timestamp: int) -> None:
    """Retention and lookups by time go by the header, and readers by its timestamp type."""
    max_timestamp = max(max_timestamp, NO_TIMESTAMP)
    if max_timestamp != header.max_timestamp or header.attributes & LOG_APPEND_TIME:
        set_create_time(append.arena, append.start, max_timestamp)


def _walker_of(
    header: BatchHeader, settings: LogSettings, now_ms: int, is_create_time: bool
) -> RecordWalker:
    earliest, latest, exempt = _bounds_of(header, settings, now_ms, is_create_time)
    return RecordWalker(
        header.record_count,
        requires_keys=settings.cleanup_compact,
        earliest_delta=earliest,
        latest_delta=latest,
        exempt_delta=exempt,
    )


def _bounds_of(
    header: BatchHeader, settings: LogSettings, now_ms: int, is_create_time: bool
) -> tuple[int, int, int]:
    """The smallest and the largest timestamp delta that the topic accepts, and the delta of no
    timestamp. All are accepted where the log's own times count."""
    if not is_create_time:
        return INT64_MIN, INT64_MAX, INT64_MIN
    base = header.base_timestamp
    earliest = now_ms - settings.message_timestamp_before_max_ms - base
    latest = now_ms + settings.message_timestamp_after_max_ms - base
    # A delta has 64 bits, and so has the timestamp that it stands for. Nearly always both fit.
    if earliest < INT64_MIN:
        earliest = INT64_MIN
    elif earliest > INT64_MAX:
        earliest = INT64_MAX
    if latest > INT64_MAX - base:
        latest = INT64_MAX - base
    if latest > INT64_MAX:
        latest = INT64_MAX
    elif latest < INT64_MIN:
        latest = INT64_MIN
    return earliest, latest, NO_TIMESTAMP - base


def _walk(
    batch: memoryview, header: BatchHeader, walker: RecordWalker, output: "_Output | None"
) -> Iterator[int]:
    """Walk over the records of the batch, and compress them anew if there is an output."""
    codec = Codec(header.attributes & CODEC_MASK)
    body = batch[HEADER_BYTES:]
    try:
        if codec is Codec.NONE and output is None:
            yield from _walk_windows(body, walker)
        else:
            step_bytes = step_bytes_max(codec, body)
            if step_bytes > PIECE_BYTES:
                yield step_bytes * _BYTE_COST
            for piece in decompress_pieces(codec, body, limit=UNFOLDED_BYTES_MAX):
                index = walker.index
                walker.feed(piece)
                cost = (walker.index - index) * _RECORD_COST + len(piece) * _BYTE_COST
                if output is not None:
                    output.write(piece)
                    cost += len(piece) * _COMPRESSION_COST[output.codec]
                yield cost
    except MalformedRecordsError as error:
        raise _rejection_of_malformed(walker, error) from None
    except DecompressedSizeError as error:
        # A producer that gets this code splits the batch.
        raise BatchRejectedError(str(error), ErrorCode.MESSAGE_TOO_LARGE) from None
    except ProtocolError as error:
        raise BatchRejectedError(str(error)) from None
    _end_walk(walker)


def _rejection_of_malformed(
    walker: RecordWalker, error: MalformedRecordsError
) -> BatchRejectedError:
    # The CRC was right. A retry, which CORRUPT_MESSAGE asks for, would not help.
    return BatchRejectedError(str(error), record_errors=((walker.index, str(error)),))


def _end_walk(walker: RecordWalker) -> None:
    """Raise BatchRejectedError unless all records are there and right."""
    try:
        walker.finish()
    except MalformedRecordsError as error:
        raise BatchRejectedError(str(error)) from None
    if walker.errors:
        raise _rejection_of(walker)


def _walk_windows(body: memoryview, walker: RecordWalker) -> Iterator[int]:
    at = 0
    end = len(body)
    while True:
        index = walker.index
        walker.feed(bytes(body[at : at + _WINDOW_BYTES]))
        at += _WINDOW_BYTES
        if walker.skip and at < end:
            at += walker.skip
            walker.skip = max(0, at - end)
        if at >= end:
            return
        yield (walker.index - index) * _RECORD_COST


def _rejection_of(walker: RecordWalker) -> BatchRejectedError:
    code = ErrorCode.INVALID_TIMESTAMP if walker.has_timestamp_error else ErrorCode.INVALID_RECORD
    out_of_range = "The timestamp is out of the range that the topic accepts."
    return BatchRejectedError(
        "One or more records have been rejected.",
        code,
        record_errors=tuple(
            (index, _MESSAGES.get(fault, out_of_range)) for index, fault in walker.errors
        ),
    )


class _Output:
    """The body of the batch under the topic's compression type."""

    def __init__(self, codec: Codec, settings: LogSettings) -> None:
        self.codec = codec
        self._settings = settings
        self._compressor = StreamCompressor(codec, compression_level_of(codec, settings))
        self._body = bytearray()

    def write(self, piece: bytes) -> None:
        """Compress the next records. Raises BatchRejectedError MESSAGE_TOO_LARGE."""
        self._add(self._compressor.compress(piece), HEADER_BYTES)

    def finish(self, header_bytes: int) -> bytearray:
        """The whole body, behind which a header of so many bytes has room."""
        self._add(self._compressor.finish(), header_bytes)
        return self._body

    def _add(self, compressed: bytes, header_bytes: int) -> None:
        self._body += compressed
        if len(self._body) + header_bytes > self._settings.max_message_bytes:
            raise size_error(len(self._body) + header_bytes, self._settings)


def _up_convert(append: LogAppend, settings: LogSettings) -> Generator[int, None, None]:
    """Replace a message set of format 0 or 1 by a batch of format 2."""
    messages = append.arena[append.start : append.start + append.length]
    conversion = UpConversion(messages, limit=UNFOLDED_BYTES_MAX)
    try:
        for _ in conversion.find_codec():
            yield _UP_CONVERSION_COST
        if conversion.largest_message_bytes > settings.max_message_bytes:
            raise size_error(conversion.largest_message_bytes, settings)
        output = _Output(conversion.codec, settings)
        for records in conversion.records():
            if records:
                output.write(records)
                yield _UP_CONVERSION_COST + len(records) * _COMPRESSION_COST[output.codec]
            else:
                yield UNFOLDED_BYTES_MAX * _BYTE_COST
        if not conversion.record_count:
            raise BatchRejectedError("The request has no record batch.")
        body = output.finish(HEADER_BYTES)
    except DecompressedSizeError as error:
        raise BatchRejectedError(str(error), ErrorCode.MESSAGE_TOO_LARGE) from None
    except ProtocolError as error:
        raise BatchRejectedError(str(error), ErrorCode.CORRUPT_MESSAGE) from None
    append.replace(memoryview(encode_batch(conversion.header(), body)))
