"""End-transaction markers, and how two other clients read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
    parse_control_record,
    read_control_batch,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import (
    CONTROL,
    Record,
    build_batch,
    is_crc_valid,
    iter_records,
    read_header,
)
from tests.support.reference_codecs import aiokafka_memory, kafka_memory

NOW_MS = 1_700_000_000_000


def marker_batch(marker: EndTransactionMarker) -> bytes:
    return build_end_transaction_batch(
        marker,
        timestamp_ms=NOW_MS,
        producer_id=7_000,
        producer_epoch=3,
        base_offset=41,
        partition_leader_epoch=2,
    )


@pytest.mark.parametrize("type_", ControlType)
def test_a_marker_is_one_transactional_control_record_without_a_sequence(
    type_: ControlType,
) -> None:
    marker = EndTransactionMarker(type_, coordinator_epoch=9)
    batch = marker_batch(marker)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert is_crc_valid(memoryview(batch), 0, len(batch))
    assert (header.base_offset, header.partition_leader_epoch, header.record_count) == (41, 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7_000, 3, -1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)
    assert read_control_batch(memoryview(batch), header) == marker


def test_a_marker_has_the_bytes_of_kafkas_documentation() -> None:
    (record,) = iter_records(marker_batch(EndTransactionMarker(ControlType.COMMIT, 9)))
    assert record == Record(41, NOW_MS, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x09")


def test_other_clients_read_the_marker() -> None:
    for type_ in ControlType:
        batch = marker_batch(EndTransactionMarker(type_, 9))
        theirs = kafka_memory.MemoryRecords(batch).next_batch()
        assert theirs.is_control_batch
        assert theirs.is_transactional
        (record,) = theirs
        assert (record.abort, record.commit) == (type_ == 0, type_ == 1)
        assert aiokafka_memory.MemoryRecords(batch).next_batch().is_control_batch


@settings(derandomize=True, deadline=None, database=None)
@given(st.sampled_from(ControlType), st.integers(-1, (1 << 31) - 1))
def test_any_marker_survives_a_round_trip(type_: ControlType, coordinator_epoch: int) -> None:
    marker = EndTransactionMarker(type_, coordinator_epoch)
    batch = marker_batch(marker)
    assert read_control_batch(batch, read_header(batch)) == marker


def test_appended_fields_of_newer_versions_are_ignored() -> None:
    record = Record(0, 0, b"\x00\x01\x00\x00more", b"\x00\x01\x00\x00\x00\x05\x00")
    assert parse_control_record(record) == EndTransactionMarker(ControlType.ABORT, 5)


def test_a_control_record_of_another_type_is_not_a_marker() -> None:
    assert parse_control_record(Record(0, 0, b"\x00\x00\x00\x02", b"a leader change")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (b"\x00\x00\x00", bytes(6)),
        (b"\xff\xff\x00\x01", bytes(6)),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", bytes(5)),
        (b"\x00\x00\x00\x01", b"\xff\xff" + bytes(4)),
    ],
)
def test_a_malformed_marker_is_a_protocol_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        parse_control_record(Record(0, 0, key, value))


def test_a_control_batch_has_exactly_one_record() -> None:
    record = Record(0, 0, b"\x00\x00\x00\x01", bytes(6))
    for records, attributes in [
        ([], CONTROL),
        ([record, record._replace(offset=1)], CONTROL),
        ([record], 0),
    ]:
        batch = build_batch(records, attributes=attributes)
        with pytest.raises(ProtocolError):
            read_control_batch(batch, read_header(batch))


@settings(derandomize=True, deadline=None, database=None)
@given(st.none() | st.binary(max_size=12), st.none() | st.binary(max_size=12))
def test_random_bytes_are_a_marker_or_none_or_a_protocol_error(
    key: bytes | None, value: bytes | None
) -> None:
    try:
        marker = parse_control_record(Record(0, 0, key, value))
    except ProtocolError:
        return
    assert marker is None or marker.type in ControlType
