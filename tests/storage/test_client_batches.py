"""Batches of clients before they are appended: poison, bombs, compression types, old formats."""

import random
import time

import pytest

from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ErrorCode
from odradek.protocol.legacy_records import _message
from odradek.protocol.records import (
    CONTROL,
    LOG_APPEND_TIME,
    Record,
    build_batch,
    compression_of,
    is_crc_valid,
    iter_records,
    read_header,
    unpack_header,
)
from odradek.storage import client_batches
from odradek.storage.client_batches import prepare
from odradek.storage.log_append import LogAppend
from odradek.storage.settings import LogSettings, TimestampType
from odradek.storage.validation import BatchRejectedError
from tests.support.poison_batches import BODIES, GOOD_BODIES, raw_batch, raw_record
from tests.support.stores import NOW_MS, batch_of

HOUR_MS = 3_600_000
SETTINGS = LogSettings()
COMPACTED = LogSettings(cleanup_compact=True)


def append_of(batch: bytes, version: int = 13) -> LogAppend:
    return LogAppend(memoryview(bytearray(batch)), 0, len(batch), request_version=version)


def prepared(batch: bytes, settings: LogSettings = SETTINGS, version: int = 13) -> bytes:
    """What is appended instead of the batch. Raises BatchRejectedError."""
    append = append_of(batch, version)
    for _ in prepare(append, settings, NOW_MS):
        pass
    assert append.is_prepared
    return bytes(append.arena[append.start : append.start + append.length])


def refusal(
    batch: bytes, settings: LogSettings = SETTINGS, version: int = 13
) -> BatchRejectedError | None:
    try:
        prepared(batch, settings, version)
    except BatchRejectedError as rejected:
        return rejected
    return None


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", BODIES)
def test_records_with_a_fault_are_refused_whatever_the_codec(name: str, codec: Codec) -> None:
    body = BODIES[name]
    batch = raw_batch(b"".join(body.records), body.record_count, base_timestamp=NOW_MS, codec=codec)
    for settings in (SETTINGS, LogSettings(message_timestamp_type=TimestampType.LOG_APPEND_TIME)):
        refused = refusal(batch, settings)
        if name in GOOD_BODIES:
            assert refused is None
        else:
            assert refused is not None
            assert refused.code is ErrorCode.INVALID_RECORD
            assert refused.message


def test_the_faulty_record_is_named() -> None:
    cases = {
        "offset deltas 0, 2, 1": [1, 2],
        "offset deltas 1, 2, 3": [0, 1, 2],
        "record length too large": [1],
        "value ends before the record": [0],
        "bytes of 255": [0],
        "claims one more": [],
    }
    for name, expected in cases.items():
        body = BODIES[name]
        batch = raw_batch(b"".join(body.records), body.record_count, base_timestamp=NOW_MS)
        refused = refusal(batch)
        assert refused is not None
        assert [index for index, _ in refused.record_errors] == expected, name


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("claimed", [-1, NOW_MS - 50_000, NOW_MS + 500, NOW_MS + 50 * HOUR_MS])
def test_the_max_timestamp_is_that_of_the_records(codec: Codec, claimed: int) -> None:
    records = b"".join(raw_record(index, delta) for index, delta in enumerate((0, 70, -3)))
    batch = raw_batch(records, 3, base_timestamp=NOW_MS, max_timestamp=claimed, codec=codec)
    stored = prepared(batch)
    assert read_header(stored).max_timestamp == NOW_MS + 70
    assert is_crc_valid(memoryview(stored), 0, len(stored))
    assert stored[61:] == batch[61:]
    right = raw_batch(records, 3, base_timestamp=NOW_MS, max_timestamp=NOW_MS + 70, codec=codec)
    assert prepared(right) == right


def test_a_batch_without_timestamps_keeps_having_none() -> None:
    batch = batch_of(3, timestamp=-1)
    assert prepared(batch) == batch
    below = raw_batch(raw_record(0), 1, base_timestamp=-5)
    assert read_header(prepared(below)).max_timestamp == -1


@pytest.mark.parametrize("codec", Codec)
def test_a_timestamp_in_the_records_is_refused_where_the_header_hides_it(codec: Codec) -> None:
    records = raw_record(0) + raw_record(1, 3 * HOUR_MS)
    refused = refusal(raw_batch(records, 2, base_timestamp=NOW_MS, codec=codec))
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.record_errors] == [1]
    # A delta that leaves the 64 bits of a timestamp.
    far = raw_batch(raw_record(0, 2**63 - 1), 1, base_timestamp=NOW_MS, codec=codec)
    refused = refusal(far)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    unbounded = LogSettings(message_timestamp_after_max_ms=2**63 - 1)
    refused = refusal(far, unbounded)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TIMESTAMP


def test_the_faults_of_a_record_are_reported_like_those_of_kafka() -> None:
    records = raw_record(0) + raw_record(1, key=None) + raw_record(2, 9 * HOUR_MS)
    refused = refusal(raw_batch(records, 3, base_timestamp=NOW_MS), COMPACTED)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.record_errors] == [1, 2]


TINY = b"\x0c\0\0\0\x01\x01\0"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_small_batch_of_many_records_takes_many_steps(codec: Codec) -> None:
    batch = raw_batch(TINY * 300_000, 300_000, base_timestamp=NOW_MS, codec=codec)
    steps = prepare(append_of(batch), SETTINGS, NOW_MS)
    costs: list[int] = []
    with pytest.raises(BatchRejectedError):
        costs.extend(steps)
    assert len(costs) >= 30
    # After one look at 64 KiB the caller may stop.
    assert max(costs[1:]) < 20_000_000


def test_a_batch_may_unfold_to_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_batches, "UNFOLDED_BYTES_MAX", 1_000_000)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        for size, expected in ((999_000, None), (1_100_000, ErrorCode.MESSAGE_TOO_LARGE)):
            batch = build_batch([Record(0, NOW_MS, None, bytes(size))], codec=codec)
            refused = refusal(batch)
            assert (refused and refused.code) == expected, (codec, size)


def test_a_large_value_is_not_read() -> None:
    settings = LogSettings(max_message_bytes=200 << 20)
    batch = build_batch([Record(i, NOW_MS, None, bytes(20 << 20)) for i in range(3)])
    append = append_of(batch)
    began = time.process_time()
    assert len(list(prepare(append, settings, NOW_MS))) <= 6
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("compression_type", "codec"),
    [("gzip", Codec.GZIP), ("snappy", Codec.SNAPPY), ("lz4", Codec.LZ4), ("zstd", Codec.ZSTD),
     ("uncompressed", Codec.NONE)],
)  # fmt: skip
def test_a_batch_gets_the_topics_compression_type(compression_type: str, codec: Codec) -> None:
    settings = LogSettings(compression_type=compression_type)
    records = [Record(i, NOW_MS + i, b"k", b"some text " * 300) for i in range(200)]
    for sent in Codec:
        batch = build_batch(records, codec=sent, max_timestamp=NOW_MS)
        stored = prepared(batch, settings)
        header = read_header(stored)
        assert compression_of(header.attributes) is codec
        assert header.max_timestamp == NOW_MS + 199
        assert is_crc_valid(memoryview(stored), 0, len(stored))
        assert list(iter_records(stored)) == records


def test_compressing_anew_ends_at_the_largest_message() -> None:
    settings = LogSettings(compression_type="uncompressed", max_message_bytes=100_000)
    batch = build_batch([Record(0, NOW_MS, None, bytes(90 << 20))], codec=Codec.ZSTD)
    steps: list[int] = []
    with pytest.raises(BatchRejectedError) as raised:
        steps.extend(prepare(append_of(batch), settings, NOW_MS))
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(steps) < 5


def recompressed(batch: bytes, codec: Codec, settings: LogSettings) -> bytes:
    return prepared(batch, LogSettings(
        compression_type=codec.name.lower(),
        compression_gzip_level=settings.compression_gzip_level,
        compression_lz4_level=settings.compression_lz4_level,
        compression_zstd_level=settings.compression_zstd_level,
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        (Codec.GZIP, LogSettings(compression_gzip_level=1), LogSettings(compression_gzip_level=9)),
        (Codec.LZ4, LogSettings(), LogSettings(compression_lz4_level=12)),
        (
            Codec.ZSTD,
            LogSettings(compression_zstd_level=1),
            LogSettings(compression_zstd_level=19),
        ),
    ],
)
def test_batches_are_recompressed_at_the_topics_level(
    codec: Codec, low: LogSettings, high: LogSettings
) -> None:
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefgh", k=5)) for _ in range(300)]
    records = [Record(i, NOW_MS, b"k", b" ".join(chance.choices(words, k=60))) for i in range(100)]
    batch = build_batch(records)
    sizes = []
    for settings in (low, high):
        changed = recompressed(batch, codec, settings)
        assert unpack_header(changed).batch_length + 12 == len(changed)
        assert list(iter_records(changed)) == records
        sizes.append(len(changed))
    assert sizes[1] < sizes[0] < len(batch)


# -- formats 0 and 1 -------------------------------------------------------------------------------


def message_set(count: int, codec: Codec = Codec.NONE, magic: int = 1) -> bytes:
    inner = b"".join(
        _message(index, magic, 0, Record(index, NOW_MS, b"k", b"value")) for index in range(count)
    )
    if codec is Codec.NONE:
        return inner
    value = compress(codec, inner, is_format_0=magic == 0)
    return _message(count - 1, magic, codec, Record(0, NOW_MS, None, value))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_becomes_a_batch(codec: Codec, magic: int) -> None:
    stored = prepared(message_set(1_000, codec, magic), version=2)
    header = unpack_header(stored)
    assert compression_of(header.attributes) is codec
    assert (header.record_count, header.last_offset_delta) == (1_000, 999)
    assert is_crc_valid(memoryview(stored), 0, len(stored))
    assert [(r.offset, r.key, r.value) for r in iter_records(stored)] == [
        (index, b"k", b"value") for index in range(1_000)
    ]


def test_a_message_set_is_checked_like_a_batch() -> None:
    without_key = _message(0, 1, 0, Record(0, NOW_MS, None, b"v"))
    late = _message(0, 1, 0, Record(0, NOW_MS + 9 * HOUR_MS, b"k", b"v"))
    cases = [
        (without_key, COMPACTED, ErrorCode.INVALID_RECORD),
        (late, SETTINGS, ErrorCode.INVALID_TIMESTAMP),
        (without_key[:-1], SETTINGS, ErrorCode.CORRUPT_MESSAGE),
        (without_key[:20] + b"\xff" + without_key[21:], SETTINGS, ErrorCode.CORRUPT_MESSAGE),
    ]
    for data, settings, expected in cases:
        refused = refusal(data, settings, version=2)
        assert refused is not None
        assert refused.code is expected


def test_an_old_format_needs_an_old_version() -> None:
    refused = refusal(message_set(5), version=3)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_conversion_ends_at_the_largest_message(codec: Codec) -> None:
    """It does not unfold the other 99 % of the set."""
    settings = LogSettings(max_message_bytes=2_000)
    data = message_set(1, Codec.NONE)
    many = data * 50_000
    if codec is not Codec.NONE:
        chance = random.Random(1)
        noise = b"".join(
            _message(index, 1, 0, Record(index, NOW_MS, None, chance.randbytes(8)))
            for index in range(20_000)
        )
        many = _message(0, 1, codec, Record(0, NOW_MS, None, compress(codec, noise)))
        settings = LogSettings(max_message_bytes=len(many) + 1_000)
        many = many + many
    steps: list[int] = []
    with pytest.raises(BatchRejectedError) as raised:
        steps.extend(prepare(append_of(many, 2), settings, NOW_MS))
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(steps) < 150


def test_a_wrapper_that_exceeds_the_largest_message_is_not_unfolded() -> None:
    data = message_set(5_000, Codec.GZIP)
    refused = refusal(data, LogSettings(max_message_bytes=len(data) - 1), version=2)
    assert refused is not None
    assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
    assert f"size is {len(data)} bytes" in refused.message


def test_clients_may_not_write_control_records() -> None:
    refused = refusal(batch_of(2, attributes=CONTROL))
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("compression_type", ["producer", "lz4"])
def test_the_flag_log_append_time_of_a_client_is_cleared(
    codec: Codec, compression_type: str
) -> None:
    settings = LogSettings(compression_type=compression_type)
    plain = batch_of(3, codec=codec)
    flagged = batch_of(3, codec=codec, attributes=LOG_APPEND_TIME)
    assert flagged != plain
    assert prepared(flagged, settings) == prepared(plain, settings)


@pytest.mark.parametrize(
    ("timestamp_type", "timestamp"),
    [(TimestampType.CREATE_TIME, -1), (TimestampType.LOG_APPEND_TIME, NOW_MS)],
)
def test_the_flag_log_append_time_is_refused_where_it_would_stay(
    timestamp_type: TimestampType, timestamp: int
) -> None:
    batch = batch_of(2, timestamp=timestamp, attributes=LOG_APPEND_TIME)
    refused = refusal(batch, LogSettings(message_timestamp_type=timestamp_type))
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.record_errors] == [0]
