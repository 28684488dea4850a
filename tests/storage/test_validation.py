"""Refused batches, their error codes, and the order of the checks."""

import random
from collections.abc import Callable

import pytest

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Record,
    build_batch,
    encode_batch,
    read_header,
)
from odradek.storage.client_batches import prepare
from odradek.storage.log_append import LogAppend
from odradek.storage.settings import LogSettings, TimestampType
from odradek.storage.validation import BatchRejectedError, split
from tests.support.stores import NOW_MS, batch_of


def refusal(
    batch: bytes, request_version: int = 13, **settings: object
) -> BatchRejectedError | None:
    append = LogAppend(memoryview(bytearray(batch)), 0, len(batch), request_version=request_version)
    try:
        # named by the tests
        for _ in prepare(append, LogSettings(**settings), NOW_MS):  # type: ignore[arg-type]
            pass
    except BatchRejectedError as refused:
        return refused
    return None


def code_of(batch: bytes, request_version: int = 13, **settings: object) -> ErrorCode:
    refused = refusal(batch, request_version, **settings)
    return ErrorCode.NONE if refused is None else refused.code


def damaged(batch: bytes, at: int = -1) -> bytes:
    changed = bytearray(batch)
    changed[at] ^= 0xFF
    return bytes(changed)


def test_a_valid_batch_is_accepted() -> None:
    for codec in Codec:
        assert code_of(batch_of(5, codec=codec)) is ErrorCode.NONE


def test_a_change_of_any_byte_fails_the_crc() -> None:
    batch = batch_of(3, producer_id=1, producer_epoch=0, base_sequence=0)
    for at in range(17, len(batch)):
        # Some fields are looked at before the CRC; none lets a changed byte pass.
        assert code_of(damaged(batch, at)) is not ErrorCode.NONE, f"byte {at}"


def test_size_is_checked_before_the_crc_and_the_codec_before_both() -> None:
    batch = batch_of(1, size=500)
    assert code_of(damaged(batch)) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(damaged(batch), max_message_bytes=100) is ErrorCode.MESSAGE_TOO_LARGE
    zstd = batch_of(1, size=5_000, codec=Codec.ZSTD)
    assert code_of(zstd, 6, max_message_bytes=10) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_the_limit_on_size_is_inclusive() -> None:
    batch = batch_of(1, size=500)
    assert code_of(batch, max_message_bytes=len(batch)) is ErrorCode.NONE
    assert code_of(batch, max_message_bytes=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_needs_version_7_of_produce() -> None:
    batch = batch_of(2, codec=Codec.ZSTD)
    assert code_of(batch, 6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code_of(batch, 7) is ErrorCode.NONE


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_compression_type_is_rejected(number: int) -> None:
    assert code_of(batch_of(attributes=0)) is ErrorCode.NONE
    changed = bytearray(batch_of())
    changed[22] |= number
    assert code_of(bytes(changed)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_the_base_offset_must_be_zero_since_version_3() -> None:
    records = [Record(7, NOW_MS, b"k", b"v")]
    batch = build_batch(records, base_offset=7)
    assert code_of(batch) is ErrorCode.INVALID_RECORD
    assert code_of(batch, 2) is ErrorCode.NONE


@pytest.mark.parametrize("flag", [CONTROL, CONTROL | TRANSACTIONAL])
def test_clients_cannot_write_control_batches(flag: int) -> None:
    batch = batch_of(producer_id=1, producer_epoch=0, base_sequence=0, attributes=flag)
    assert code_of(batch) is ErrorCode.INVALID_RECORD


def test_clients_cannot_claim_log_append_time_without_timestamps() -> None:
    assert code_of(batch_of(attributes=LOG_APPEND_TIME)) is ErrorCode.NONE
    none = batch_of(timestamp=-1, attributes=LOG_APPEND_TIME)
    assert code_of(none) is ErrorCode.INVALID_TIMESTAMP


def test_record_count_and_offsets_must_agree() -> None:
    records = [Record(0, NOW_MS, b"k", b"v"), Record(4, NOW_MS, b"k", b"v")]
    assert code_of(build_batch(records)) is ErrorCode.INVALID_RECORD
    assert code_of(build_batch([])) is ErrorCode.INVALID_RECORD


def test_a_producer_id_needs_a_sequence_and_a_transaction_a_producer_id() -> None:
    assert code_of(batch_of(producer_id=1, producer_epoch=0)) is ErrorCode.INVALID_RECORD
    assert code_of(batch_of(attributes=TRANSACTIONAL)) is ErrorCode.INVALID_RECORD


def test_a_compacted_topic_rejects_records_without_keys_by_index() -> None:
    records = [Record(i, NOW_MS, key, b"v") for i, key in enumerate([b"a", None, b"b", None])]
    for codec in (Codec.NONE, Codec.LZ4):
        refused = refusal(build_batch(records, codec=codec), cleanup_compact=True)
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_RECORD
        assert [index for index, _ in refused.record_errors] == [1, 3]
        assert code_of(build_batch(records, codec=codec)) is ErrorCode.NONE


@pytest.mark.parametrize("codec", Codec)
def test_each_rejected_record_has_its_reasons(codec: Codec) -> None:
    records = [
        Record(0, NOW_MS, b"k", b"v"),
        Record(1, NOW_MS, None, b"v"),
        Record(2, NOW_MS - 100, b"k", None),
        Record(3, NOW_MS + 100, b"", None),
        Record(4, -1, b"k", None),
    ]
    bounds = {"message_timestamp_before_max_ms": 99, "message_timestamp_after_max_ms": 99}
    rejected = refusal(build_batch(records, codec=codec), cleanup_compact=True, **bounds)
    assert rejected is not None
    assert rejected.code is ErrorCode.INVALID_TIMESTAMP
    timestamp = "The timestamp is out of the range that the topic accepts."
    assert rejected.record_errors == (
        (1, "Compacted topic cannot accept message without key."),
        (2, timestamp),
        (3, timestamp),
    )


def test_the_offsets_of_a_compacted_topics_records_must_be_consecutive() -> None:
    batch = bytearray(build_batch([Record(index, NOW_MS, b"", b"") for index in range(3)]))
    size = (len(batch) - HEADER_BYTES) // 3
    batch[HEADER_BYTES + size + 3] = 4  # the offset delta of the second record: 2
    spoiled = bytes(encode_batch(read_header(batch), batch[HEADER_BYTES:]))
    rejected = refusal(spoiled, cleanup_compact=True)
    assert rejected is not None
    assert rejected.code is ErrorCode.INVALID_RECORD
    assert rejected.record_errors == ((1, "The offsets inside the batch are not consecutive."),)


def test_timestamps_must_be_within_the_topics_bounds() -> None:
    day_ms = 86_400_000
    bounds = {"message_timestamp_before_max_ms": day_ms, "message_timestamp_after_max_ms": 1_000}
    inside = [NOW_MS - day_ms, NOW_MS, NOW_MS + 1_000]
    assert code_of(batch_of(3, timestamps=inside), **bounds) is ErrorCode.NONE
    assert code_of(batch_of(1, timestamp=-1), **bounds) is ErrorCode.NONE
    early = refusal(batch_of(3, timestamps=[NOW_MS - day_ms - 1, NOW_MS, NOW_MS]), **bounds)
    late = refusal(batch_of(3, timestamps=[NOW_MS, NOW_MS, NOW_MS + 1_001]), **bounds)
    assert early is not None
    assert late is not None
    assert early.code is late.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in early.record_errors] == [0]
    assert [index for index, _ in late.record_errors] == [2]


def test_timestamps_of_a_log_append_time_topic_do_not_matter() -> None:
    batch = batch_of(1, timestamp=NOW_MS + 10**10)
    assert code_of(batch) is ErrorCode.INVALID_TIMESTAMP
    append_time = TimestampType.LOG_APPEND_TIME
    assert code_of(batch, message_timestamp_type=append_time) is ErrorCode.NONE


def test_a_batch_whose_records_cannot_be_read_is_invalid() -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v" * 50)])
    gzip_in_name_only = with_crc(lambda data: data.__setitem__(22, 1), batch)
    assert code_of(gzip_in_name_only) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("deltas", [(0, 2), (1, 1), (0, 0)])
def test_offsets_inside_a_batch_must_count_up(deltas: tuple[int, int]) -> None:
    """A record's offset delta is its fourth byte."""
    batch = bytearray(build_batch([Record(i, NOW_MS, b"k", b"v") for i in range(2)]))
    size = (len(batch) - 61) // 2
    for index, delta in enumerate(deltas):
        batch[61 + index * size + 3] = delta * 2  # zigzag
    changed = with_crc(lambda data: None, bytes(batch))
    assert code_of(changed) is ErrorCode.INVALID_RECORD


def with_crc(change: Callable[[bytearray], None], batch: bytes) -> bytes:
    data = bytearray(batch)
    change(data)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("seed", range(200))
def test_random_bytes_are_rejected(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(batch_of(3) + batch_of(2, codec=Codec.GZIP))
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    del data[chance.randrange(20, len(data)) :]
    view = memoryview(data)
    try:
        for at, size, _ in split(view, 0, len(view)):
            refusal(bytes(view[at : at + size]), cleanup_compact=True, compression_type="lz4")
    except BatchRejectedError:
        pass  # Anything else that is raised fails the test.
