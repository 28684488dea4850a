"""Records of `__transaction_state` in Kafka's formats, byte by byte."""

import msgspec
import pytest

from odradek.coordinator.transaction.records import (
    TransactionRecord,
    by_topic,
    decode,
    encode,
    partitions_of,
)
from odradek.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.errors import ProtocolError

STORED = TransactionRecord(
    "tx",
    TransactionMetadata(
        producer_id=5,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({("a", 1), ("a", 0)}),
        last_update_ms=8,
        start_ms=7,
    ),
)
KEY = b"\x00\x00\x00\x02tx"
V0 = bytes.fromhex(
    "0000"  # version
    "0000000000000005 0003 0000ea60 01"
    "00000001 0001 61 00000002 00000000 00000001"
    "0000000000000008 0000000000000007"
)
V1 = bytes.fromhex(
    "0001"
    "0000000000000005 0003 0000ea60 01"
    "02 02 61 03 00000000 00000001 00"
    "0000000000000008 0000000000000007"
    "02 00 08 0000000000000004 02 02 0002"  # previous producer id, client's version
)


def test_version_0_byte_by_byte() -> None:
    assert encode(STORED, version=0) == (KEY, V0)
    assert decode(KEY, V0) == STORED


def test_version_1_byte_by_byte() -> None:
    known = STORED.transaction
    assert known is not None
    newer = msgspec.structs.replace(known, previous_producer_id=4, client_version=2)
    stored = TransactionRecord("tx", newer)
    assert encode(stored, version=1) == (KEY, V1)
    assert decode(KEY, V1) == stored


def test_an_empty_transaction_has_no_list_of_partitions() -> None:
    known = TransactionMetadata(producer_id=5, producer_epoch=3, timeout_ms=1, last_update_ms=8)
    _, value = encode(TransactionRecord("tx", known), version=0)
    assert value is not None
    assert bytes.fromhex("00 ffffffff") in value
    assert decode(KEY, value) == TransactionRecord("tx", known)


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("version", [0, 1])
def test_records_are_decoded_as_encoded(state: TransactionState, version: int) -> None:
    known = TransactionMetadata(
        producer_id=2**60,
        producer_epoch=32_767,
        timeout_ms=1,
        state=state,
        last_update_ms=1,
        start_ms=2,
        next_producer_id=77 if version else -1,
        client_version=2 if version else 0,
    )
    stored = TransactionRecord("ü", known)
    key, value = encode(stored, version=version)
    assert decode(key, value) == stored


def test_a_tombstone_has_no_value() -> None:
    assert encode(TransactionRecord("tx", None), version=1) == (KEY, None)
    assert decode(KEY, None) == TransactionRecord("tx", None)


def test_keys_of_later_releases_are_ignored() -> None:
    assert decode(b"\x00\x01\x00\x02tx", V0) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY[:-1], V0),
        (KEY, V0[:-1]),
        (KEY, b"\x00\x02" + V0[2:]),
        (KEY, V0[:16] + b"\x09" + V0[17:]),
        (KEY, b"\x00"),
    ],
)
def test_malformed_records_are_errors(key: bytes, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)


def test_an_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(ProtocolError):
        encode(TransactionRecord("x" * 40_000, None), version=0)


def test_partitions_are_grouped_in_order() -> None:
    partitions = frozenset({("b", 0), ("a", 2), ("a", 1)})
    topics = by_topic(partitions)
    assert [(topic.name, topic.partitions) for topic in topics] == [("a", [1, 2]), ("b", [0])]
    assert partitions_of(topics) == partitions
