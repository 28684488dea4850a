"""Decompression and compression piece by piece, for batches whose size nobody knows before.

What a byte of a batch becomes is up to its sender: 3 KB of zstd can be 100 MB. Here no piece is
larger than `PIECE_BYTES`, so that a caller can stop between two of them, and memory is bounded. Two
formats have no pieces: a snappy block, and an lz4 frame with linked blocks or checksums. They are
decompressed as a whole, to at most 22 and 255 times their size.

Malformed data raises ProtocolError and nothing else.
"""

import zlib
from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Final, Protocol, TypeAlias

import zstandard

from odradek.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    LZ4_BLOCK_BYTES,
    LZ4_END,
    LZ4_HEADER,
    LZ4_STORED,
    SNAPPY_RATIO_MAX,
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    ZSTD_LEVEL,
    Bytes,
    Codec,
    compress,
    compress_lz4_block,
    compress_snappy_block,
    decompress,
    decompress_lz4_block,
    decompress_snappy_block,
)
from odradek.protocol.errors import ProtocolError

PIECE_BYTES: Final = 64 << 10

_LZ4_RATIO_MAX: Final = 255

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
            raise ProtocolError(f"the decompressed data exceeds {limit} bytes")
        yield piece


def first_piece_bytes_max(codec: Codec, data: Bytes) -> int:
    """What the first piece can have: more than PIECE_BYTES where the format has no pieces."""
    if codec is Codec.SNAPPY:
        return SNAPPY_RATIO_MAX * len(data)
    if codec is Codec.LZ4 and not _has_plain_lz4_blocks(data):
        return _LZ4_RATIO_MAX * len(data)
    return PIECE_BYTES


def _has_plain_lz4_blocks(data: Bytes) -> bool:
    return bytes(data[: len(LZ4_HEADER)]) == LZ4_HEADER


def _pieces(codec: Codec, data: Bytes, limit: int, is_format_0: bool) -> Iterator[bytes]:
    if codec is Codec.NONE:
        view = memoryview(data)
        return (bytes(view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES))
    if codec is Codec.GZIP:
        return _gzip_pieces(data)
    if codec is Codec.ZSTD:
        return _zstd_pieces(data)
    if codec is Codec.LZ4 and _has_plain_lz4_blocks(data):
        return _lz4_pieces(data)
    if codec is Codec.SNAPPY and bytes(data[:8]) == XERIAL_MAGIC:
        return _xerial_pieces(data, limit)
    return iter((decompress(codec, data, limit=limit, is_format_0=is_format_0),))


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


def _lz4_pieces(data: Bytes) -> Iterator[bytes]:
    """The blocks of a frame as Kafka's Java client and librdkafka write it: independent, of at most
    64 KiB, without checksums."""
    view = memoryview(data)
    at = len(LZ4_HEADER)
    block = bytearray(LZ4_BLOCK_BYTES)
    whole = memoryview(block)
    while True:
        if at + 4 > len(view):
            raise ProtocolError("truncated lz4 frame")
        (length,) = _UINT32.unpack_from(view, at)
        at += 4
        if not length:
            break
        stored = length & LZ4_STORED
        end = at + (length & ~LZ4_STORED)
        if end > len(view):
            raise ProtocolError("truncated lz4 frame")
        if stored:
            if end - at > LZ4_BLOCK_BYTES:
                raise ProtocolError(f"an lz4 block of {end - at} bytes")
            yield bytes(view[at:end])
        else:
            size = decompress_lz4_block(view[at:end], block)
            yield bytes(whole[:size])
        at = end
    if at != len(view):
        # A second frame, which is rare.
        yield decompress(Codec.LZ4, view[at:])


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
        yield decompress_snappy_block(view[at : at + size], limit, limit)
        at += size


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
