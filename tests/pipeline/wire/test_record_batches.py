"""Headers, checksums and compression of batches, against those that the broker's code writes."""

import zlib

import cramjam
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire import record_batches
from odradek.pipeline.wire.record_batches import (
    HEADER_BYTES,
    CorruptBatch,
    Decompressor,
    batches_between,
    check_crc,
    is_abort_marker,
)
from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.records import LOG_APPEND_TIME, TRANSACTIONAL, Record, build_batch
from tests.support.poison_batches import raw_batch
from tests.support.reference_codecs import aiokafka_codec, aiokafka_legacy, kafka_codec

PLAIN = b"the quick brown fox jumps over the lazy dog " * 500


def batch_of(count: int, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytes:
    return build_batch(
        [Record(base_offset + index, 1000 + index, b"key", b"value", ()) for index in range(count)],
        base_offset=base_offset,
        codec=codec,
    )


def test_headers_say_what_was_written() -> None:
    first = batch_of(3, 10)
    second = build_batch(
        [Record(20, 5, None, b"v", ())],
        base_offset=20,
        last_offset=24,
        attributes=TRANSACTIONAL | LOG_APPEND_TIME,
        producer_id=77,
        max_timestamp=99,
    )
    data = b"before" + first + second
    one, two = batches_between(data, 6, len(data))
    assert (one.at, one.end, two.at, two.end) == (6, 6 + len(first), 6 + len(first), len(data))
    assert (one.base_offset, one.next_offset, one.record_count) == (10, 13, 3)
    assert (one.base_timestamp, one.max_timestamp) == (1000, 1002)
    assert one.is_whole
    assert (one.is_transactional, one.is_control, one.is_log_append_time) == (False, False, False)
    assert (two.base_offset, two.next_offset, two.record_count) == (20, 25, 1)
    assert (two.producer_id, two.max_timestamp) == (77, 99)
    assert two.is_transactional
    assert two.is_log_append_time
    assert not two.is_whole


def test_a_cut_batch_is_left_out() -> None:
    data = batch_of(2) + batch_of(2, 2)
    for size in range(len(data)):
        found = batches_between(data, 0, size)
        assert len(found) == (size >= len(data) // 2)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_named(magic: int) -> None:
    builder = aiokafka_legacy.LegacyRecordBatchBuilder(magic, 0, 1000)
    builder.append(0, timestamp=5, key=b"k", value=b"v", headers=[])
    data = bytes(builder.build())
    with pytest.raises(PipelineError, match=f"message format {magic}"):
        batches_between(data, 0, len(data))


def test_impossible_headers_are_refused() -> None:
    data = bytearray(batch_of(1))
    data[8:12] = (20).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="offset 0"):
        batches_between(bytes(data), 0, len(data))


def test_every_bit_behind_the_checksum_counts() -> None:
    data = batch_of(2)
    (batch,) = batches_between(data, 0, len(data))
    check_crc(data, batch)
    for at in range(21, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(CorruptBatch, match="checksum"):
            check_crc(bytes(changed), batch)


@pytest.mark.parametrize("kind", ControlType)
def test_markers(kind: ControlType) -> None:
    marker = EndTransactionMarker(kind, 300)
    data = build_end_transaction_batch(
        marker, timestamp_ms=2**40, producer_id=5, producer_epoch=1, base_offset=9
    )
    (batch,) = batches_between(data, 0, len(data))
    assert batch.is_control
    assert is_abort_marker(data, batch) == (kind is ControlType.ABORT)


def test_a_cut_marker_is_corrupt() -> None:
    data = raw_batch(b"\x10\x00", 1, base_timestamp=0)
    (batch,) = batches_between(data, 0, len(data))
    with pytest.raises(CorruptBatch, match="cut"):
        is_abort_marker(data, batch)


@pytest.mark.parametrize("codec", Codec)
def test_all_codecs(codec: Codec) -> None:
    data = b"..." + batch_of(500, codec=codec) + batch_of(3, codec=codec)
    plain = batch_of(500)
    decompressor = Decompressor()
    big, small = batches_between(data, 3, len(data))
    found, start, end = decompressor.records_of(data, big)
    assert found[start:end] == plain[HEADER_BYTES:]
    found, start, end = decompressor.records_of(data, small)
    assert found[start:end] == batch_of(3)[HEADER_BYTES:]
    if codec is Codec.NONE:
        assert found is data


def compressed_batch(codec: Codec, body: bytes) -> bytes:
    """A batch whose records are these bytes, of whatever compressed them."""
    without = bytearray(raw_batch(b"", 1, base_timestamp=0))
    without[21:23] = int(codec).to_bytes(2, "big")
    without[8:12] = (HEADER_BYTES - 12 + len(body)).to_bytes(4, "big")
    return bytes(without) + body


def records_of(codec: Codec, body: bytes) -> bytes:
    data = compressed_batch(codec, body)
    (batch,) = batches_between(data, 0, len(data))
    found, start, end = Decompressor().records_of(data, batch)
    return found[start:end]


@pytest.mark.parametrize("codecs", [kafka_codec, aiokafka_codec], ids=["kafka-python", "aiokafka"])
def test_what_other_clients_compress(codecs: object) -> None:
    encode = {
        Codec.GZIP: "gzip_encode",
        Codec.SNAPPY: "snappy_encode",
        Codec.LZ4: "lz4_encode",
    }
    for codec, name in encode.items():
        assert records_of(codec, bytes(getattr(codecs, name)(PLAIN))) == PLAIN


def test_snappy_without_the_framing_of_java() -> None:
    assert records_of(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN))) == PLAIN


def test_gzip_of_several_members() -> None:
    body = zlib.compress(PLAIN, wbits=31) + zlib.compress(b"more", wbits=31)
    assert records_of(Codec.GZIP, body) == PLAIN + b"more"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_garbage_and_cut_bytes_are_corrupt(codec: Codec) -> None:
    data = batch_of(500, codec=codec)
    whole = data[HEADER_BYTES:]
    for body in (b"garbage", whole[: len(whole) // 2], b"\xff" * 100):
        with pytest.raises(CorruptBatch, match="cannot be decompressed"):
            records_of(codec, body)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bombs_are_refused(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "DECOMPRESSED_BYTES_MAX", 100_000)
    compressors = {
        Codec.GZIP: lambda plain: zlib.compress(plain, wbits=31),
        Codec.SNAPPY: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
        Codec.LZ4: lambda plain: bytes(cramjam.lz4.compress(plain)),
        Codec.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain)),
    }
    with pytest.raises(CorruptBatch, match="cannot be decompressed"):
        records_of(codec, compressors[codec](bytes(200_000)))
    assert records_of(codec, compressors[codec](bytes(99_000))) == bytes(99_000)


def test_unknown_compression() -> None:
    data = compressed_batch(Codec.ZSTD, b"x")
    data = data[:22] + b"\x07" + data[23:]
    (batch,) = batches_between(data, 0, len(data))
    with pytest.raises(CorruptBatch, match="unknown compression"):
        Decompressor().records_of(data, batch)
