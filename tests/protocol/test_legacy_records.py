"""Message sets of formats 0 and 1, compared with those of two other clients."""

import random
from collections.abc import Callable, Sequence
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.legacy_records import _message, down_convert
from odradek.protocol.records import (
    CONTROL,
    LOG_APPEND_TIME,
    Record,
    build_batch,
    compression_of,
    is_crc_valid,
    iter_records,
    read_header,
    set_log_append_time,
)
from odradek.protocol.sliced_work import finish
from odradek.protocol.up_conversion import up_convert
from tests.support.message_sets import Message, iter_messages
from tests.support.reference_codecs import (
    aiokafka_legacy,
    aiokafka_memory,
    kafka_legacy,
    kafka_memory,
)

NOW_MS = 1_700_000_000_000
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]

RECORDS = [
    Record(0, NOW_MS, b"key", b"value"),
    Record(1, NOW_MS - 5_000, None, b"v" * 300),
    Record(2, NOW_MS + 1, b"", b""),
    Record(3, NOW_MS + 9, b"k", None),
]

Write = Callable[[Sequence[Record], int, Codec], bytes]
Read = Callable[[bytes], list[Record]]


def write_with_kafka_python(records: Sequence[Record], magic: int, codec: Codec) -> bytes:
    builder = kafka_legacy.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def write_with_aiokafka(records: Sequence[Record], magic: int, codec: Codec) -> bytes:
    builder = aiokafka_legacy.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def read_with_kafka_python(data: bytes) -> list[Record]:
    return read_with(kafka_memory.MemoryRecords(data))


def read_with_aiokafka(data: bytes) -> list[Record]:
    return read_with(aiokafka_memory.MemoryRecords(data))


def read_with(memory: kafka_memory.MemoryRecords) -> list[Record]:
    records = []
    while (batch := memory.next_batch()) is not None:
        assert batch.validate_crc()
        records += [
            Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value)
            for r in batch
        ]
    return records


WRITERS: list[Write] = [write_with_kafka_python, write_with_aiokafka]
READERS: list[Read] = [read_with_kafka_python, read_with_aiokafka]


def as_format(records: Sequence[Record], magic: int) -> list[Record]:
    """The records in an old format: without headers, and in format 0 without timestamps."""
    return [
        record._replace(headers=(), timestamp=record.timestamp if magic == 1 else -1)
        for record in records
    ]


def as_records(messages: Sequence[Message]) -> list[Record]:
    return [Record(m.offset, m.timestamp, m.key, m.value) for m in messages]


def skip_what_they_lack(magic: int, codec: Codec, twin: Write | Read) -> None:
    if (magic, codec) == (0, Codec.LZ4):
        if "aiokafka" in twin.__name__:
            pytest.skip("aiokafka knows no LZ4 in format 0")
        pytest.importorskip("xxhash", reason="kafka-python needs it for LZ4 in format 0")


def converted(buffers: list[bytes | bytearray | memoryview], magic: int, offset: int) -> bytes:
    return finish(down_convert(buffers, magic, offset, bytes_max=1 << 20))


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("write", WRITERS)
def test_sets_of_other_clients_are_read_and_up_converted(
    write: Write, magic: int, codec: Codec
) -> None:
    skip_what_they_lack(magic, codec, write)
    data = memoryview(write(RECORDS, magic, codec))
    assert as_records(list(iter_messages(data))) == as_format(RECORDS, magic)
    (batch,) = up_convert(data)
    header = read_header(batch)
    assert is_crc_valid(memoryview(batch), 0, len(batch))
    assert compression_of(header.attributes) is codec
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 3, 4)
    assert list(iter_records(batch)) == as_format(RECORDS, magic)


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("read", READERS)
def test_other_clients_read_down_converted_sets(read: Read, magic: int, codec: Codec) -> None:
    skip_what_they_lack(magic, codec, read)
    records = [
        record._replace(offset=70 + 2 * record.offset, headers=(("h", b"x"),)) for record in RECORDS
    ]
    batch = build_batch(records, base_offset=69, last_offset=80, codec=codec)
    assert read(converted([batch], magic, 0)) == as_format(records, magic)


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_down_and_up_conversion_is_a_round_trip(magic: int, codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec)
    data = converted([batch], magic, 0)
    assert as_records(list(iter_messages(data))) == as_format(RECORDS, magic)
    assert up_convert(data) == [build_batch(as_format(RECORDS, magic), codec=codec)]


@settings(derandomize=True, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 50),
            st.integers(0, (1 << 62)),
            st.none() | st.binary(max_size=50),
            st.none() | st.binary(max_size=50),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(OLD_CODECS),
    st.sampled_from([0, 1]),
)
def test_any_records_with_any_gaps_keep_their_offsets(
    rows: list[tuple[int, int, bytes | None, bytes | None]], codec: Codec, magic: int
) -> None:
    records = []
    offset = 0
    for step, timestamp, key, value in rows:
        offset += step
        records.append(Record(offset, timestamp, key, value))
    data = converted([build_batch(records, codec=codec)], magic, 0)
    assert as_records(list(iter_messages(data))) == as_format(records, magic)


def test_several_batches_become_one_set_without_control_batches() -> None:
    first = build_batch(RECORDS, base_offset=0)
    marker = build_batch(
        [Record(4, NOW_MS, b"\x00\x00\x00\x01", bytes(6))], base_offset=4, attributes=CONTROL
    )
    second = build_batch([Record(5, NOW_MS, None, b"x")], base_offset=5, codec=Codec.GZIP)
    data = converted([memoryview(first + marker), second], 1, 0)
    assert [message.offset for message in iter_messages(data)] == [0, 1, 2, 3, 5]


def test_records_below_the_first_offset_are_left_out() -> None:
    plain = build_batch(RECORDS)
    assert [m.offset for m in iter_messages(converted([plain], 1, 2))] == [2, 3]
    packed = build_batch(RECORDS, codec=Codec.GZIP)
    assert [m.offset for m in iter_messages(converted([packed], 1, 2))] == [2, 3]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_large_batch_is_converted_in_parts(codec: Codec) -> None:
    """Each fetch continues where the former ended, and works in slices."""
    records = [Record(offset, NOW_MS, b"k", b"v" * 66) for offset in range(1_000)]
    batch = build_batch(records, codec=codec)
    offset, parts = 0, 0
    while offset < 1_000:
        work = down_convert([batch], 1, offset, bytes_max=250 * 101)
        messages = list(iter_messages(finish(work)))
        assert [m.offset for m in messages] == [*range(offset, offset + len(messages))]
        assert len(messages) == 250
        offset += len(messages)
        parts += 1
    assert parts == 4
    plain = build_batch(records)
    assert sum(task is None for task in down_convert([plain], 1, 0, bytes_max=1 << 20)) >= 5


def test_messages_before_a_batch_of_zstd_are_returned() -> None:
    packed = build_batch([Record(4, NOW_MS, None, b"x")], base_offset=4, codec=Codec.ZSTD)
    data = converted([build_batch(RECORDS), packed], 1, 0)
    assert [m.offset for m in iter_messages(data)] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("read", READERS)
def test_log_append_time_is_kept_in_format_1(read: Read, codec: Codec) -> None:
    batch = bytearray(build_batch(RECORDS, codec=codec))
    set_log_append_time(memoryview(batch), 0, NOW_MS + 42)
    data = converted([batch], 1, 0)
    assert {record.timestamp for record in read(data)} == {NOW_MS + 42}
    messages = list(iter_messages(data))
    assert {(m.timestamp, m.is_log_append_time) for m in messages} == {(NOW_MS + 42, True)}


def test_an_empty_batch_gives_no_message() -> None:
    for codec in OLD_CODECS:
        empty = build_batch([], base_offset=3, last_offset=9, codec=codec)
        assert converted([empty], 1, 0) == b""


def test_zstd_is_rejected_with_an_error_code() -> None:
    with pytest.raises(ApiError) as refusal:
        converted([build_batch(RECORDS, codec=Codec.ZSTD)], 1, 0)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_an_empty_set_gives_no_batch() -> None:
    assert up_convert(b"") == []
    assert converted([], 0, 0) == b""


def test_wrappers_and_plain_messages_become_one_batch() -> None:
    plain = write_with_aiokafka(RECORDS[:2], 1, Codec.NONE)
    packed = write_with_aiokafka(RECORDS, 1, Codec.GZIP)
    (batch,) = up_convert(plain + packed)
    assert compression_of(read_header(batch).attributes) is Codec.GZIP
    assert [record.offset for record in iter_records(batch)] == list(range(6))
    assert [record.key for record in iter_records(batch)] == [
        record.key for record in RECORDS[:2] + RECORDS
    ]


def test_inner_offsets_of_format_1_are_relative_to_the_wrapper() -> None:
    inner = b"".join(_message(index, 1, 0, record) for index, record in enumerate(RECORDS))
    wrapper = Record(1_003, NOW_MS, None, compress(Codec.GZIP, inner))
    data = _message(1_003, 1, Codec.GZIP, wrapper)
    assert [m.offset for m in iter_messages(data)] == [1_000, 1_001, 1_002, 1_003]


def test_lz4_of_format_0_is_read_with_its_header_checksum() -> None:
    inner = b"".join(_message(index, 0, 0, record) for index, record in enumerate(RECORDS))
    value = compress(Codec.LZ4, inner, is_format_0=True)
    data = _message(3, 0, Codec.LZ4, Record(3, -1, None, value))
    assert as_records(list(iter_messages(data))) == as_format(RECORDS, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_every_truncated_set_is_a_protocol_error(magic: int) -> None:
    data = write_with_aiokafka(RECORDS[:1], magic, Codec.NONE)
    for end in range(1, len(data)):
        with pytest.raises(ProtocolError):
            up_convert(data[:end])


@pytest.mark.parametrize("magic", [0, 1])
def test_every_changed_byte_after_the_offset_is_a_protocol_error(magic: int) -> None:
    data = bytearray(write_with_aiokafka(RECORDS[:1], magic, Codec.NONE))
    for at in range(8, len(data)):
        data[at] ^= 0x55
        with pytest.raises(ProtocolError):
            up_convert(data)
        data[at] ^= 0x55
    assert len(up_convert(data)) == 1


def packed(magic: int, codec: int, value: bytes | None) -> bytes:
    return _message(0, magic, codec, Record(0, NOW_MS, None, value))


@pytest.mark.parametrize(
    "data",
    [
        packed(1, Codec.GZIP, None),
        packed(1, Codec.GZIP, compress(Codec.GZIP, b"")),
        packed(1, Codec.GZIP, compress(Codec.GZIP, b"no message set at all, only text")),
        packed(1, Codec.GZIP, b"no gzip"),
        packed(1, Codec.ZSTD, compress(Codec.ZSTD, packed(1, 0, b"x"))),
        packed(1, 5, b"x"),
        packed(1, Codec.GZIP, compress(Codec.GZIP, packed(0, 0, b"another format"))),
        packed(0, Codec.GZIP, compress(Codec.GZIP, packed(1, 0, b"another format"))),
        packed(
            1,
            Codec.GZIP,
            compress(Codec.GZIP, packed(1, Codec.GZIP, compress(Codec.GZIP, packed(1, 0, b"x")))),
        ),
        build_batch(RECORDS),  # format 2 has no place in a message set
    ],
)
def test_malformed_sets_are_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        up_convert(data)


def test_the_limit_is_for_all_wrappers_together() -> None:
    value = compress(Codec.GZIP, packed(1, 0, bytes(5_000)))
    data = packed(1, Codec.GZIP, value) * 3
    assert len(list(iter_messages(data, limit=16_000))) == 3
    with pytest.raises(ProtocolError):
        list(iter_messages(data, limit=15_000))


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_mutated_sets_are_read_or_are_a_protocol_error(magic: int, codec: Codec) -> None:
    """The CRC is set after each mutation, so that the mutated fields are parsed."""
    chance = random.Random(40 + magic)
    inner = converted([build_batch(RECORDS)], magic, 0)
    refused = 0
    for _ in range(500):
        changed = bytearray(inner)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        value = compress(codec, changed, is_format_0=magic == 0)
        if codec is not Codec.NONE:
            mutable = bytearray(value)
            if chance.random() < 0.5:
                mutable[chance.randrange(len(mutable))] ^= 1 << chance.randrange(8)
            changed = bytearray(packed(magic, codec, bytes(mutable)))
        try:
            up_convert(changed, limit=100_000)
        except ProtocolError:
            refused += 1
    assert refused > 300


@settings(derandomize=True, deadline=None, database=None)
@given(st.binary(max_size=100))
def test_random_bytes_are_a_protocol_error(data: bytes) -> None:
    if data:
        with pytest.raises(ProtocolError):
            up_convert(data)


@settings(derandomize=True, deadline=None, database=None)
@given(st.sampled_from([0, 1]), st.binary(max_size=60), st.integers(0, 15))
def test_random_bytes_with_a_right_crc_are_a_message_or_a_protocol_error(
    magic: int, body: bytes, attributes: int
) -> None:
    rest = bytes((magic, attributes)) + body
    data = bytes(8) + (len(rest) + 4).to_bytes(4, "big") + crc32(rest).to_bytes(4, "big") + rest
    try:
        messages = list(iter_messages(data, limit=10_000))
    except ProtocolError:
        return
    assert messages[0].magic == magic
    assert messages[0].is_log_append_time == (magic == 1 and attributes & LOG_APPEND_TIME != 0)
