"""Decompression and compression piece by piece, for batches whose size nobody knows before.

What a byte of a batch becomes is up to its sender: 3 KB of zstd can be 100 MB. Here no piece is
larger than `PIECE_BYTES`, so that a caller can stop between two of them, and memory is bounded: by
a block of lz4 (4 MiB) or snappy (22 times its compressed size), or the window of zstd, which is no
larger than what was decompressed.

Malformed data raises ProtocolError and nothing else.
"""

import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final, Protocol, TypeAlias

import zstandard

from odradek.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    LZ4_BLOCK_BYTES,
    LZ4_END,
    LZ4_HEADER,
    LZ4_MAGIC,
    LZ4_STORED,
    SNAPPY_RATIO_MAX,
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    ZSTD_LEVEL,
    Bytes,
    Codec,
    DecompressedSizeError,
    compress,
    compress_lz4_block,
    compress_snappy_block,
    decompress_lz4_frame,
    decompress_snappy_block,
    decompress_snappy_block_into,
    snappy_block_size,
    with_lz4_header_checksum,
)
from odradek.protocol.errors import ProtocolError

PIECE_BYTES: Final = 64 << 10

_LZ4_RATIO_MAX: Final = 255
_LZ4_BLOCK_BYTES_MAX: Final = 4 << 20
_LZ4_HEADER_BYTES_MAX: Final = 19
_LZ4_VERSION: Final = 0x40
_LZ4_INDEPENDENT_FLAG: Final = 0x20
_LZ4_BLOCK_CHECKSUM_FLAG: Final = 0x10
_LZ4_BLOCK_FLAGS: Final = _LZ4_INDEPENDENT_FLAG | _LZ4_BLOCK_CHECKSUM_FLAG
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08
_LZ4_CONTENT_CHECKSUM_FLAG: Final = 0x04
_LZ4_DICTIONARY_FLAG: Final = 0x01

_UINT32 = Struct("<I")
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC: Final = 0x184D2A50
_ZSTD_RLE: Final = 1
_ZSTD_RESERVED: Final = 3
_zstd_decompressors: list[zstandard.ZstdDecompressor] = []
"""Those that are idle. Making one costs five times as much as decompressing a small batch."""


def decompress_pieces(
    codec: Codec, data: Bytes, *, limit: int = DECOMPRESSED_BYTES_MAX, is_format_0: bool = False
) -> Iterator[bytes]:
    """`data`, which must be complete, decompressed to at most `limit` bytes."""
    room = limit
    for piece in _pieces(codec, data, limit, is_format_0):
        room -= len(piece)
        if room < 0:
            raise DecompressedSizeError(f"the decompressed data exceeds {limit} bytes")
        if len(piece) <= PIECE_BYTES:
            yield piece
        else:
            for at in range(0, len(piece), PIECE_BYTES):
                yield piece[at : at + PIECE_BYTES]


def step_bytes_max(codec: Codec, data: Bytes) -> int:
    """As many bytes can be decompressed before the first piece is there."""
    if codec is Codec.SNAPPY:
        return max(PIECE_BYTES, SNAPPY_RATIO_MAX * len(data))
    return _LZ4_BLOCK_BYTES_MAX if codec is Codec.LZ4 and len(data) > PIECE_BYTES else PIECE_BYTES


def _pieces(codec: Codec, data: Bytes, limit: int, is_format_0: bool) -> Iterator[bytes]:
    if codec is Codec.NONE:
        view = memoryview(data)
        return (bytes(view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES))
    if codec is Codec.GZIP:
        return _gzip_pieces(data)
    if codec is Codec.ZSTD:
        return _zstd_pieces(data)
    if codec is Codec.LZ4:
        return _lz4_pieces(data, is_format_0)
    if bytes(data[:8]) == XERIAL_MAGIC:
        return _xerial_pieces(data, limit)
    return _snappy_pieces(memoryview(data), limit)


def _gzip_pieces(data: Bytes) -> Iterator[bytes]:
    """All members of a gzip stream, one after another."""
    rest: Bytes = data
    while True:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                piece = member.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                raise ProtocolError(f"corrupt gzip data: {error}") from None
            if not piece and not member.eof:
                raise ProtocolError("truncated gzip data")
            rest = member.unconsumed_tail
            yield piece
        rest = member.unused_data
        if not rest:
            return


def _zstd_pieces(data: Bytes) -> Iterator[bytes]:
    _check_zstd_frames(data)
    try:
        decompressor = _zstd_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise ProtocolError(f"corrupt zstd data: {error}") from None
    _zstd_decompressors.append(decompressor)


def _check_zstd_frames(data: Bytes) -> None:
    """Raise ProtocolError unless the frames are complete: the decompressor does not (RFC 8878)."""
    at = 0
    size = len(data)
    if not size:
        raise ProtocolError("compressed data without a frame")
    while at < size:
        if size - at < 8:
            raise ProtocolError("truncated zstd frame")
        (magic,) = _UINT32.unpack_from(data, at)
        at += 4
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC:
            at += 4 + _UINT32.unpack_from(data, at)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise ProtocolError("corrupt zstd data: unknown frame")
        descriptor = data[at]
        is_single_segment = descriptor & 0x20
        content_size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
        dictionary_id_bytes = (0, 1, 2, 4)[descriptor & 3]
        at += 1 + (0 if is_single_segment else 1) + dictionary_id_bytes + content_size_bytes
        is_last = 0
        while not is_last:
            if at + 3 > size:
                raise ProtocolError("truncated zstd frame")
            block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            is_last = block & 1
            kind = block >> 1 & 3
            if kind == _ZSTD_RESERVED:
                raise ProtocolError("corrupt zstd data: reserved block")
            at += 3 + (1 if kind == _ZSTD_RLE else block >> 3)
        if descriptor & 4:
            at += 4
    if at != size:
        raise ProtocolError("truncated zstd frame")


def _lz4_pieces(data: Bytes, is_format_0: bool) -> Iterator[bytes]:
    """The blocks of a frame. Linked ones are refused, as by Kafka, whose client cannot read them.
    Checksums of the content are not checked, as in Kafka."""
    view = memoryview(data)
    at = 0
    while True:
        at, flags, size_class = _read_lz4_header(view, at, is_format_0)
        block = bytearray(min(1 << 8 + 2 * size_class, _LZ4_RATIO_MAX * len(view)))
        whole = memoryview(block)
        checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM_FLAG else 0
        head = _lz4_block_header(flags & _LZ4_BLOCK_FLAGS, size_class)
        while True:
            if at + 4 > len(view):
                raise ProtocolError("truncated lz4 frame")
            length = _UINT32.unpack_from(view, at)[0]
            if not length:
                break
            end = at + 4 + (length & ~LZ4_STORED) + checksum_bytes
            if end > len(view):
                raise ProtocolError("truncated lz4 frame")
            size = decompress_lz4_frame(b"".join((head, view[at:end], LZ4_END)), block)
            yield bytes(whole[:size])
            at = end
        at += 8 if flags & _LZ4_CONTENT_CHECKSUM_FLAG else 4
        if at >= len(view):
            break
    if at > len(view):
        raise ProtocolError("truncated lz4 frame")


@cache
def _lz4_block_header(flags: int, size_class: int) -> bytes:
    """The header of a frame of one block: only in a frame is a block's checksum checked."""
    return with_lz4_header_checksum(LZ4_MAGIC + bytes((_LZ4_VERSION | flags, size_class << 4, 0)))


def _read_lz4_header(view: memoryview, at: int, is_format_0: bool) -> tuple[int, int, int]:
    """The position behind the header at `at`, its flags, and its class of block sizes (4 to 7)."""
    frame = view[at:]
    if frame[: len(LZ4_HEADER)] == LZ4_HEADER:
        return at + len(LZ4_HEADER), LZ4_HEADER[4], 4
    fixed = with_lz4_header_checksum(frame[:_LZ4_HEADER_BYTES_MAX])
    flags = frame[4]
    if flags & 0xC0 != _LZ4_VERSION or flags & _LZ4_DICTIONARY_FLAG:
        raise ProtocolError(f"an lz4 frame of the unknown form {flags:#x}")
    if not flags & _LZ4_INDEPENDENT_FLAG:
        raise ProtocolError("an lz4 frame with linked blocks, which Kafka does not support")
    size_class = frame[5] >> 4 & 7
    if size_class < 4:
        raise ProtocolError(f"an lz4 frame with blocks of the unknown size {size_class}")
    end = 7 + (8 if flags & _LZ4_CONTENT_SIZE_FLAG else 0)
    if not is_format_0 and bytes(frame[:end]) != fixed[:end]:
        raise ProtocolError("the checksum of an lz4 frame header does not match")
    return at + end, flags, size_class


def _xerial_pieces(data: Bytes, limit: int) -> Iterator[bytes]:
    """The blocks of snappy-java's framing."""
    view = memoryview(data)
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise ProtocolError("truncated snappy header")
    while at < len(view):
        if len(view) - at < 4:
            raise ProtocolError("truncated snappy block length")
        size = int.from_bytes(view[at : at + 4], signed=True)
        at += 4
        if not 0 < size <= len(view) - at:
            raise ProtocolError(f"snappy block size {size} exceeds the {len(view) - at} bytes left")
        yield from _snappy_pieces(view[at : at + size], limit)
        at += size


def _snappy_pieces(block: memoryview, limit: int) -> Iterator[bytes]:
    """A raw block, in pieces: a large copy would hold the interpreter lock for long."""
    size = snappy_block_size(block, limit)
    if size <= PIECE_BYTES:
        yield decompress_snappy_block(block, limit)
        return
    with mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS) as pages:
        decompress_snappy_block_into(block, pages)
        for at in range(0, size, PIECE_BYTES):
            yield pages[at : at + PIECE_BYTES]


class StreamCompressor:
    """Compresses what it is given in pieces, like `compression.compress` of all of it."""

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self._step = _compressor_of(codec, level)
        self._step.send(None)

    def compress(self, piece: Bytes) -> bytes:
        """The next compressed bytes. They can lag behind."""
        return self._step.send(piece)

    def finish(self) -> bytes:
        """The last compressed bytes."""
        return self._step.send(None)


_Step: TypeAlias = Generator[bytes, Bytes | None, None]


def _compressor_of(codec: Codec, level: int | None) -> _Step:
    match codec:
        case Codec.NONE:
            return _copied()
        case Codec.GZIP:
            return _compressed_by(zlib.compressobj(-1 if level is None else level, wbits=31))
        case Codec.ZSTD:
            zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL if level is None else level)
            return _compressed_by(zstd.compressobj())
        case Codec.LZ4:
            # Harder levels exist for whole frames only.
            if level is not None:
                return _compressed_at_the_end(codec, level)
            return _compressed_blocks(LZ4_HEADER, LZ4_BLOCK_BYTES, compress_lz4_block, LZ4_END)
        case Codec.SNAPPY:
            return _compressed_blocks(XERIAL_HEADER, XERIAL_BLOCK_BYTES, compress_snappy_block, b"")


class _StandardCompressor(Protocol):
    """zlib's and zstandard's."""

    def compress(self, data: Bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _copied() -> _Step:
    piece = yield b""
    while piece is not None:
        piece = yield bytes(piece)
    yield b""


def _compressed_by(compressor: _StandardCompressor) -> _Step:
    piece = yield b""
    while piece is not None:
        piece = yield compressor.compress(piece)
    yield compressor.flush()


def _compressed_at_the_end(codec: Codec, level: int) -> _Step:
    pieces: list[bytes] = []
    piece = yield b""
    while piece is not None:
        pieces.append(bytes(piece))
        piece = yield b""
    yield compress(codec, b"".join(pieces), level=level)


def _compressed_blocks(
    header: bytes, block_bytes: int, compress_block: Callable[[Bytes], bytes], end: bytes
) -> _Step:
    out = [header]
    rest = bytearray()
    piece = yield b""
    while piece is not None:
        rest += piece
        whole = len(rest) - len(rest) % block_bytes
        out += (
            compress_block(bytes(rest[at : at + block_bytes]))
            for at in range(0, whole, block_bytes)
        )
        del rest[:whole]
        piece = yield b"".join(out)
        out = []
    if rest:
        out.append(compress_block(bytes(rest)))
    yield b"".join((*out, end))
