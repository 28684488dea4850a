"""The codecs piece by piece: against those that take everything at once, and malformed data."""

import os
import random
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.compression import Codec, compress, decompress
from odradek.protocol.errors import ProtocolError
from odradek.protocol.piecewise_compression import (
    PIECE_BYTES,
    StreamCompressor,
    decompress_pieces,
    step_bytes_max,
)

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
SAMPLES = [
    b"x",
    b"the quick brown fox " * 500,
    random.Random(1).randbytes(5_000),
    bytes(32 * 1024),
    b"ab" * (32 * 1024) + b"c",
    random.Random(2).randbytes(70_000) + bytes(1_000_000),
]


def joined(codec: Codec, data: bytes, **options: int) -> bytes:
    return b"".join(decompress_pieces(codec, data, **options))  # type: ignore[arg-type]  # limit


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_the_pieces_are_what_was_compressed(codec: Codec, sample: bytes) -> None:
    compressed = compress(codec, sample)
    pieces = list(decompress_pieces(codec, compressed))
    assert b"".join(pieces) == sample
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert step_bytes_max(codec, compressed) >= PIECE_BYTES


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("level", [None, 1, 9])
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_what_is_compressed_in_pieces_can_be_read(
    codec: Codec, level: int | None, sample: bytes
) -> None:
    compressor = StreamCompressor(codec, level)
    parts = [compressor.compress(sample[at : at + 999]) for at in range(0, len(sample), 999)]
    compressed = b"".join((*parts, compressor.finish()))
    assert decompress(codec, compressed) == sample
    assert joined(codec, compressed) == sample


@pytest.mark.parametrize("codec", COMPRESSING)
def test_data_must_be_complete(codec: Codec) -> None:
    whole = compress(codec, os.urandom(3_000) + bytes(200_000))
    for size in (0, 1, 7, 8, 17, 2_000, len(whole) - 5, len(whole) - 1):
        with pytest.raises(ProtocolError):
            joined(codec, whole[:size])
    with pytest.raises(ProtocolError):
        joined(codec, whole + b"\x00" * 9)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_limit_is_kept_between_two_pieces(codec: Codec) -> None:
    compressed = compress(codec, bytes(3_000_000))
    assert len(joined(codec, compressed, limit=3_000_000)) == 3_000_000
    pieces = decompress_pieces(codec, compressed, limit=1_000_000)
    with pytest.raises(ProtocolError, match="exceeds 1000000 bytes"):
        for _ in pieces:
            pass


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300))
def test_garbage_is_a_protocol_error(codec: Codec, data: bytes) -> None:
    try:
        expected: bytes | None = decompress(codec, data)
    except ProtocolError:
        expected = None
    try:
        assert joined(codec, data) == expected
    except ProtocolError:
        assert expected is None


@given(
    st.sampled_from(COMPRESSING),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_data_is_refused_or_read_alike(
    codec: Codec, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(compress(codec, b"the quick brown fox " * 200 + bytes(100_000)))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        pieces = joined(codec, bytes(data))
    except ProtocolError:
        return
    assert pieces == decompress(codec, bytes(data))


def test_frames_and_members_may_follow_each_other() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        assert joined(codec, compress(codec, b"one ") + compress(codec, b"two")) == b"one two"
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    assert joined(Codec.ZSTD, skippable + compress(Codec.ZSTD, b"text")) == b"text"


def test_frames_of_other_writers_are_read() -> None:
    sample = os.urandom(5_000) + bytes(300_000)
    for options in ({"write_checksum": True}, {"write_content_size": False}):
        for level in (1, 22):
            writer = zstandard.ZstdCompressor(level=level, **options)  # type: ignore[arg-type]
            streamed = writer.compressobj()
            frame = streamed.compress(sample) + streamed.flush()
            assert (
                joined(Codec.ZSTD, frame) == joined(Codec.ZSTD, writer.compress(sample)) == sample
            )
    for checksum in (False, True):
        assert joined(Codec.LZ4, lz4_frame(sample, content_checksum=checksum)) == sample
    others: list[dict[str, int]] = [{"block_checksum": 1}, {"block_size": 7}, {"store_size": 1}]
    for other in others:
        frame = lz4.frame.compress(sample, block_linked=False, **other)
        assert joined(Codec.LZ4, frame) == sample
        assert joined(Codec.LZ4, frame * 2) == sample * 2
    checked = bytearray(lz4.frame.compress(sample, block_linked=False, block_checksum=True))
    checked[100] ^= 1
    with pytest.raises(ProtocolError):
        joined(Codec.LZ4, bytes(checked))
    assert joined(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(sample))) == sample
    assert joined(Codec.GZIP, zlib.compress(sample, wbits=31)) == sample


def lz4_frame(sample: bytes, **options: bool) -> bytes:
    writer = cramjam.lz4.Compressor(**({"block_linked": False} | options))
    writer.compress(sample)
    return bytes(writer.finish())


def test_linked_lz4_blocks_are_refused_as_in_kafka() -> None:
    with pytest.raises(ProtocolError, match="linked"):
        joined(Codec.LZ4, lz4_frame(bytes(100_000), block_linked=True))


def test_the_header_checksum_of_an_lz4_frame_is_checked_but_in_format_0() -> None:
    frame = compress(Codec.LZ4, b"text" * 100, is_format_0=True)
    assert joined(Codec.LZ4, frame, is_format_0=True) == b"text" * 100
    with pytest.raises(ProtocolError, match="checksum"):
        joined(Codec.LZ4, frame)


def test_a_decompressor_that_failed_is_not_used_again() -> None:
    good = compress(Codec.ZSTD, b"text" * 100)
    bad = good[:-8] + bytes(8)
    for _ in range(3):
        with pytest.raises(ProtocolError):
            joined(Codec.ZSTD, bad)
        assert joined(Codec.ZSTD, good) == b"text" * 100
    unfinished = decompress_pieces(Codec.ZSTD, compress(Codec.ZSTD, bytes(300_000)))
    next(unfinished)
    assert joined(Codec.ZSTD, good) == b"text" * 100
    assert sum(map(len, unfinished)) == 300_000 - PIECE_BYTES
