"""The four compression codecs of record batches, in the framings that Kafka clients send.

For any input `decompress` returns at most `limit` bytes, or raises ProtocolError and nothing else.
The fetch path does not decompress, and the produce path does so in pieces
(piecewise_compression.py).

gzip is zlib of the standard library, which is faster than cramjam's at all sizes and has
`max_length`. The others are cramjam's, which is imported at its first use: most processes do not
need it.
"""

import zlib
from enum import IntEnum
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from types import ModuleType
from typing import Final, TypeAlias

from odradek.protocol.errors import ProtocolError

Bytes: TypeAlias = bytes | bytearray | memoryview


class DecompressedSizeError(ProtocolError):
    """The data is larger than the limit once it is decompressed."""


class Codec(IntEnum):
    """The compression type in the attributes of a batch (bits 0 to 2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The default limit: Kafka's default of socket.request.max.bytes, which also limits the size of an
# uncompressed batch.
DECOMPRESSED_BYTES_MAX: Final = 104_857_600

# The framing of snappy-java's SnappyOutputStream ("xerial"): this magic, the version and the lowest
# compatible version (both int32), then blocks of an int32 length and raw snappy.
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES: Final = 32 * 1024  # snappy-java's default block size
# Three bytes of raw snappy decompress to at most 64. A larger claimed size is wrong.
SNAPPY_RATIO_MAX: Final = 22

# An LZ4 frame as Kafka's Java client writes it: version 1, independent blocks (Java readers refuse
# linked ones), no checksums, no content size, blocks of 64 KiB. The last byte is the second lowest
# byte of the xxHash32 of the descriptor (the two bytes before it).
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_HEADER: Final = LZ4_MAGIC + b"\x60\x40\x82"
# Clients of message format 0 compute that hash over the magic too (KAFKA-3160).
_LZ4_HEADER_OF_FORMAT_0: Final = LZ4_MAGIC + b"\x60\x40\x1a"
LZ4_BLOCK_BYTES: Final = 64 * 1024
LZ4_STORED: Final = 0x80000000
LZ4_END: Final = b"\x00\x00\x00\x00"
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08
_LZ4_DICTIONARY_FLAG: Final = 0x01

# Enough for a batch of the clients' default size at the first try.
_GUESS_BYTES_MIN: Final = 64 * 1024

ZSTD_LEVEL: Final = 3  # Kafka's default compression.zstd.level

LZ4_LEVEL_MAX: Final = 12  # the library's; Kafka counts to 17

_INT32 = Struct(">i")
_UINT32_LITTLE = Struct("<I")


def compress(
    codec: Codec, data: Bytes, *, level: int | None = None, is_format_0: bool = False
) -> bytes:
    """Compress in Kafka's framing; `Codec.NONE` only copies.

    `level` is -1 or 1 to 9 for gzip, 1 to 17 for lz4 (above 12 as 12), and any level of the library
    for zstd; snappy has none. Without it gzip and zstd have Kafka's defaults, lz4 its fast mode.
    `is_format_0` writes the LZ4 header checksum of message format 0.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, level=-1 if level is None else level, wbits=31)
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            if level is not None:
                return _compress_lz4_hard(data, level)
            return _compress_lz4(data, _LZ4_HEADER_OF_FORMAT_0 if is_format_0 else LZ4_HEADER)
        case Codec.ZSTD:
            return bytes(
                _cramjam().zstd.compress(data, level=ZSTD_LEVEL if level is None else level)
            )


def decompress(
    codec: Codec, data: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX, is_format_0: bool = False
) -> bytes:
    """Decompress `data`, which must be complete, to at most `limit` bytes.

    Snappy can be framed (Java) or raw (some clients), LZ4 blocks can be linked. `is_format_0`
    ignores the LZ4 header checksum. Raises ProtocolError on corrupt, truncated or larger data.
    Needs at most about twice `limit` of memory.
    """
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise _too_large(limit)
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(data, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        case Codec.LZ4:
            if is_format_0:
                data = with_lz4_header_checksum(data)
            # LZ4 cannot yield more than 255 bytes for one.
            return _decompress_into(_cramjam().lz4, data, min(limit, 255 * len(data)))
        case Codec.ZSTD:
            return _decompress_into(_cramjam().zstd, data, limit)


def with_lz4_header_checksum(data: Bytes) -> bytes:
    """The same LZ4 frame with the right header checksum."""
    if len(data) < 7 or bytes(data[:4]) != LZ4_MAGIC:
        raise ProtocolError("lz4 data does not start with a frame header")
    flags = data[4]
    end = (
        6
        + (8 if flags & _LZ4_CONTENT_SIZE_FLAG else 0)
        + (4 if flags & _LZ4_DICTIONARY_FLAG else 0)
    )
    if len(data) <= end:
        raise ProtocolError("truncated lz4 frame header")
    checksum = (xxhash32_short(bytes(data[4:end])) >> 8) & 0xFF
    return b"".join((data[:end], bytes((checksum,)), data[end + 1 :]))


def xxhash32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, as an LZ4 frame descriptor has."""
    assert len(data) < 16
    mask = 0xFFFFFFFF
    value = (0x165667B1 + len(data)) & mask
    words_end = len(data) & ~3
    for at in range(0, words_end, 4):
        (word,) = _UINT32_LITTLE.unpack_from(data, at)
        value = (value + word * 0xC2B2AE3D) & mask
        value = (((value << 17) | (value >> 15)) & mask) * 0x27D4EB2F & mask
    for byte in data[words_end:]:
        value = (value + byte * 0x165667B1) & mask
        value = (((value << 11) | (value >> 21)) & mask) * 0x9E3779B1 & mask
    value = (value ^ (value >> 15)) * 0x85EBCA77 & mask
    value = (value ^ (value >> 13)) * 0xC2B2AE3D & mask
    return value ^ (value >> 16)


def _cramjam() -> ModuleType:
    import cramjam

    return cramjam


def _too_large(limit: int) -> ProtocolError:
    return DecompressedSizeError(f"the decompressed data exceeds {limit} bytes")


def _decompress_gzip(data: Bytes, limit: int) -> bytes:
    """All members of a gzip stream, one after another."""
    parts: list[bytes] = []
    room = limit
    rest: Bytes = data
    while True:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            raise ProtocolError(f"corrupt gzip data: {error}") from None
        if len(part) > room:
            raise _too_large(limit)
        if not member.eof:
            raise ProtocolError("truncated gzip data")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data
        if not rest:
            return part if len(parts) == 1 else b"".join(parts)


def compress_snappy_block(plain: Bytes) -> bytes:
    """A block of snappy-java's framing, behind its length."""
    block = bytes(_cramjam().snappy.compress_raw(plain))
    return _INT32.pack(len(block)) + block


def _compress_snappy(data: Bytes) -> bytes:
    view = memoryview(data)
    blocks = (
        compress_snappy_block(view[at : at + XERIAL_BLOCK_BYTES])
        for at in range(0, len(view), XERIAL_BLOCK_BYTES)
    )
    return b"".join((XERIAL_HEADER, *blocks))


def _decompress_snappy(data: Bytes, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != XERIAL_MAGIC:
        return decompress_snappy_block(view, limit)
    parts: list[bytes] = []
    room = limit
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise ProtocolError("truncated snappy header")
    while at < len(view):
        if len(view) - at < 4:
            raise ProtocolError("truncated snappy block length")
        (size,) = _INT32.unpack_from(view, at)
        at += 4
        if not 0 < size <= len(view) - at:
            raise ProtocolError(f"snappy block size {size} exceeds the {len(view) - at} bytes left")
        part = decompress_snappy_block(view[at : at + size], room)
        parts.append(part)
        room -= len(part)
        at += size
    return b"".join(parts)


def snappy_block_size(block: memoryview, room: int) -> int:
    """What a raw snappy block claims to decompress to. ProtocolError if that is more than `room`,
    or impossible."""
    try:
        size: int = _cramjam().snappy.decompress_raw_len(block)
    except Exception as error:
        raise ProtocolError(f"corrupt snappy data: {error}") from None
    if size > room:
        raise _too_large(room)
    if size > SNAPPY_RATIO_MAX * len(block):
        raise ProtocolError(f"a snappy block of {len(block)} bytes cannot hold {size}")
    return size


def decompress_snappy_block_into(block: memoryview, output: mmap) -> None:
    """Decompress a raw snappy block that fills `output`."""
    try:
        size = _cramjam().snappy.decompress_raw_into(block, output)
    except Exception as error:
        raise ProtocolError(f"corrupt snappy data: {error}") from None
    if size != len(output):
        raise ProtocolError(f"corrupt snappy data: {size} bytes instead of {len(output)}")


def decompress_snappy_block(block: memoryview, room: int) -> bytes:
    """A raw snappy block of at most `room` uncompressed bytes."""
    snappy_block_size(block, room)
    try:
        return bytes(_cramjam().snappy.decompress_raw(block))
    except Exception as error:
        raise ProtocolError(f"corrupt snappy data: {error}") from None


def _compress_lz4_hard(data: Bytes, level: int) -> bytes:
    compressor = _cramjam().lz4.Compressor(
        level=min(level, LZ4_LEVEL_MAX), content_checksum=False, block_linked=False
    )
    compressor.compress(data)
    return bytes(compressor.finish())


def compress_lz4_block(plain: Bytes) -> bytes:
    """A block of an LZ4 frame, behind its length."""
    block = bytes(_cramjam().lz4.compress_block(plain, store_size=False))
    if len(block) < len(plain):
        return _UINT32_LITTLE.pack(len(block)) + block
    return _UINT32_LITTLE.pack(len(plain) | LZ4_STORED) + plain


def decompress_lz4_frame(frame: Bytes, output: bytearray) -> int:
    """Decompress a frame into `output`. Returns its size."""
    try:
        size: int = _cramjam().lz4.decompress_into(frame, output)
    except Exception as error:
        raise ProtocolError(f"corrupt lz4 data: {error}") from None
    return size


def _compress_lz4(data: Bytes, header: bytes) -> bytes:
    view = memoryview(data)
    blocks = (
        compress_lz4_block(view[at : at + LZ4_BLOCK_BYTES])
        for at in range(0, len(view), LZ4_BLOCK_BYTES)
    )
    return b"".join((header, *blocks, LZ4_END))


def _decompress_into(codec: ModuleType, data: Bytes, limit: int) -> bytes:
    """Decompress into a buffer of limited size.

    cramjam raises the same exception for a small buffer and for corrupt data. So there are two
    tries: first a size that is enough for nearly every batch, then `limit` bytes of anonymous
    memory, whose pages are only allocated when they are written.
    """
    if not data:
        raise ProtocolError("compressed data without a frame")
    guess = max(_GUESS_BYTES_MIN, 8 * len(data))
    if guess < limit:
        output = bytearray(guess)
        try:
            return bytes(memoryview(output)[: codec.decompress_into(data, output)])
        except Exception:
            del output
    with mmap(-1, max(limit, 1), flags=MAP_PRIVATE | MAP_ANONYMOUS) as pages:
        try:
            return pages[: codec.decompress_into(data, pages)]
        except Exception as error:
            raise ProtocolError(
                f"corrupt compressed data, or more than {limit} bytes: {error}"
            ) from None
