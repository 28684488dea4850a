"""The codecs, compared with other implementations of the same framings, and malformed data."""

import gzip
import random
import struct
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.compression import (
    Codec,
    compress,
    decompress,
    with_lz4_header_checksum,
    xxhash32_short,
)
from odradek.protocol.errors import ProtocolError
from tests.support.reference_codecs import aiokafka_codec, kafka_codec

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]

# Text that compresses, noise that does not, nothing, and lengths around the block sizes.
SAMPLES = [
    b"",
    b"x",
    b"the quick brown fox " * 500,
    random.Random(1).randbytes(5_000),
    bytes(32 * 1024),
    b"ab" * (32 * 1024) + b"c",
    random.Random(2).randbytes(70_000) + bytes(100_000),
]


def twin_decoders(codec: Codec) -> list[object]:
    """The decoders of other clients, where they are installed."""
    name = codec.name.lower()
    twins = [getattr(aiokafka_codec, f"{name}_decode")]
    if getattr(kafka_codec, f"has_{name}")():
        twins.append(getattr(kafka_codec, f"{name}_decode"))
    return twins


def twin_encoders(codec: Codec) -> list[object]:
    """The encoders of other clients, where they are installed."""
    name = codec.name.lower()
    twins = [getattr(aiokafka_codec, f"{name}_encode")]
    if getattr(kafka_codec, f"has_{name}")():
        twins.append(getattr(kafka_codec, f"{name}_encode"))
    return twins


def lz4_frame(*, flags: int, block: bytes, count: int) -> bytes:
    """An LZ4 frame of equal compressed blocks of up to 4 MiB each."""
    blocks = (struct.pack("<I", len(block)) + block) * count
    frame = b"\x04\x22\x4d\x18" + bytes((flags, 0x70, 0)) + blocks + bytes(4)
    return with_lz4_header_checksum(frame)


def zstd_bomb(blocks: int) -> bytes:
    """A frame of run-length blocks: each four bytes decompress to 128 KiB."""
    size = 128 * 1024
    run = ((size << 3) | (1 << 1)).to_bytes(3, "little") + b"\x00"
    last = ((size << 3) | (1 << 1) | 1).to_bytes(3, "little") + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x50" + run * (blocks - 1) + last


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("index", range(len(SAMPLES)))
def test_compressed_data_is_decompressed(codec: Codec, index: int) -> None:
    sample = SAMPLES[index]
    for data in (sample, bytearray(sample), memoryview(b"--" + sample)[2:]):
        assert decompress(codec, compress(codec, data), limit=len(sample)) == sample


@settings(derandomize=True, deadline=None, database=None)
@given(st.sampled_from(Codec), st.binary(max_size=2_000), st.integers(1, 50))
def test_any_bytes_survive_a_round_trip(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("index", range(1, len(SAMPLES)))
def test_other_clients_decompress_our_data(codec: Codec, index: int) -> None:
    sample = SAMPLES[index]
    for decode in twin_decoders(codec):
        assert callable(decode)
        assert bytes(decode(compress(codec, sample))) == sample


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("index", range(1, len(SAMPLES)))
def test_data_of_other_clients_is_decompressed(codec: Codec, index: int) -> None:
    sample = SAMPLES[index]
    for encode in twin_encoders(codec):
        assert callable(encode)
        assert decompress(codec, bytes(encode(sample))) == sample


def test_snappy_is_written_framed_and_read_framed_or_raw() -> None:
    sample = SAMPLES[2]
    framed = compress(Codec.SNAPPY, sample)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(sample))) == sample


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    frame = compress(Codec.LZ4, SAMPLES[-1])
    assert frame[:7] == bytes.fromhex("04224d18604082")
    assert xxhash32_short(frame[4:6]) >> 8 & 0xFF == frame[6]


def test_lz4_with_linked_blocks_is_read() -> None:
    frame_module = pytest.importorskip("lz4.frame")
    sample = SAMPLES[2] * 20
    frame = frame_module.compress(sample, block_linked=True, content_checksum=True)
    assert decompress(Codec.LZ4, frame) == sample


def test_lz4_of_format_0_is_read_with_either_header_checksum() -> None:
    sample = SAMPLES[2]
    frame = compress(Codec.LZ4, sample, is_format_0=True)
    # The hash over magic and descriptor instead of the descriptor alone (KAFKA-3160).
    assert frame[6] == xxhash32_short(frame[:6]) >> 8 & 0xFF
    assert frame[6] != compress(Codec.LZ4, sample)[6]
    assert decompress(Codec.LZ4, frame, is_format_0=True) == sample
    assert decompress(Codec.LZ4, compress(Codec.LZ4, sample), is_format_0=True) == sample
    with pytest.raises(ProtocolError):
        decompress(Codec.LZ4, frame)


def test_a_format_0_frame_with_a_content_size_gets_its_header_checksum() -> None:
    frame_module = pytest.importorskip("lz4.frame")
    sample = SAMPLES[2]
    frame = bytearray(frame_module.compress(sample, store_size=True))
    right = frame[14]
    frame[14] ^= 0xFF
    assert with_lz4_header_checksum(frame)[14] == right
    assert decompress(Codec.LZ4, frame, is_format_0=True) == sample


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)]
)
def test_xxhash32_has_the_published_values(data: bytes, expected: int) -> None:
    assert xxhash32_short(data) == expected


def test_gzip_members_are_one_stream() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_the_largest_result(codec: Codec) -> None:
    data = compress(codec, bytes(100_000))
    assert decompress(codec, data, limit=100_000) == bytes(100_000)
    with pytest.raises(ProtocolError):
        decompress(codec, data, limit=99_999)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_data_is_a_protocol_error(codec: Codec) -> None:
    data = compress(codec, SAMPLES[2])
    for end in [*range(min(len(data), 30)), len(data) // 2, len(data) - 1]:
        if codec is Codec.SNAPPY and end == 16:
            continue  # the frame of no blocks at all
        with pytest.raises(ProtocolError):
            decompress(codec, data[:end], limit=1_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_mutated_data_gives_at_most_the_limit_or_a_protocol_error(codec: Codec) -> None:
    chance = random.Random(20)
    sample = compress(codec, SAMPLES[2] + chance.randbytes(300))
    outcomes = set()
    for _ in range(1_000):
        data = bytearray(sample)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert len(decompress(codec, data, limit=50_000)) <= 50_000
            outcomes.add("read")
        except ProtocolError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize("codec", COMPRESSING)
def test_random_bytes_are_a_protocol_error(codec: Codec) -> None:
    chance = random.Random(21)
    for _ in range(300):
        garbage = b"\xff" + chance.randbytes(chance.randrange(200))
        with pytest.raises(ProtocolError):
            decompress(codec, garbage, limit=1_000_000)


def test_a_snappy_block_with_an_impossible_size_is_a_protocol_error() -> None:
    claim = bytes.fromhex("ffffffff0f") + b"\x00a"  # 4 GiB, then one literal byte
    with pytest.raises(ProtocolError, match="cannot hold"):
        decompress(Codec.SNAPPY, claim, limit=1 << 40)


def test_decompression_bombs_are_rejected_without_using_memory() -> None:
    """Each bomb has 256 MiB or more. The limit is 4 MiB, and the process may grow by 48 MiB."""
    gzip_bomb = zlib.compress(bytes(64 << 20), 9, 31) * 4
    lz4_block = bytes(cramjam.lz4.compress_block(bytes(4 << 20), store_size=False))
    snappy_block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    bombs = {
        Codec.GZIP: gzip_bomb,
        Codec.SNAPPY: b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
        + (struct.pack(">i", len(snappy_block)) + snappy_block) * 256,
        Codec.LZ4: lz4_frame(flags=0x60, block=lz4_block, count=64),
        Codec.ZSTD: zstd_bomb(4096),
    }
    program = """
import resource, sys
from odradek.protocol.compression import Codec, compress, decompress
from odradek.protocol.errors import ProtocolError
lengths = [int(text) for text in sys.argv[1:]]
for codec in Codec:
    decompress(codec, compress(codec, b'loads the codec'))
bombs = [sys.stdin.buffer.read(length) for length in lengths]
pages = int(open('/proc/self/statm').read().split()[0])
allowed = pages * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
for number, bomb in enumerate(bombs, 1):
    try:
        decompress(Codec(number), bomb, limit=4 << 20)
    except ProtocolError:
        print('refused', Codec(number).name)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, *(str(len(bomb)) for bomb in bombs.values())],
        input=b"".join(bombs.values()),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert result.stderr == b""
    assert result.stdout.decode().split("\n")[:-1] == [
        f"refused {codec.name}" for codec in COMPRESSING
    ]


def test_an_idle_process_does_not_load_the_codecs() -> None:
    program = "import sys, odradek.protocol.records; sys.exit('cramjam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, -20, 19)]
)
def test_a_higher_level_compresses_better(codec: Codec, low: int, high: int) -> None:
    text = b"".join(
        b"%d is followed by %d; " % (number, number * number) for number in range(9_000)
    )
    small = compress(codec, text, level=high)
    assert len(small) < len(compress(codec, text, level=low))
    assert decompress(codec, small) == text
