"""Formats of records: types, versions, tombstones and malformed bytes."""

import msgspec
import pytest

from odradek.coordinator.record_serde import TEXT_LENGTH_MAX, RecordFormat, RecordSerde, SchemaValue
from odradek.protocol.errors import ProtocolError
from odradek.protocol.schema import array, int16, int32, string, struct


class Fruit(msgspec.Struct, frozen=True):
    name: str
    weights: tuple[int, ...] = ()
    colour: int = -1


class FruitRecord(msgspec.Struct, frozen=True):
    garden: str
    row: int
    value: Fruit | None


class GardenRecord(msgspec.Struct, frozen=True):
    garden: str
    value: Fruit | None


@struct
class _FruitKey:
    garden: str = string()
    row: int = int16()


@struct
class _GardenKey:
    garden: str = string()


@struct
class _FruitValue:
    name: str = string()
    weights: list[int] = array(int32)
    colour: int = int32(default=-1, since=1, tag=3, ignorable=True)


def value(version: int) -> SchemaValue:
    return SchemaValue("FruitValue", _FruitValue, Fruit, version=version, version_max=1)


def serde(version: int = 1) -> RecordSerde:
    return RecordSerde(
        "__fruit",
        (
            RecordFormat(7, FruitRecord, _FruitKey, value(version), older_types=(5, 6)),
            RecordFormat(8, GardenRecord, _GardenKey, value(version)),
        ),
    )


APPLE = FruitRecord("g", 2, Fruit("apple", (3, 4), 9))
KEY = b"\x00\x07\x00\x01g\x00\x02"


def test_a_key_starts_with_its_type_and_a_value_with_its_version() -> None:
    assert serde().encode(APPLE) == (
        KEY,
        b"\x00\x01\x06apple\x03\x00\x00\x00\x03\x00\x00\x00\x04\x01\x03\x04\x00\x00\x00\x09",
    )
    assert serde().decode(*serde().encode(APPLE)) == APPLE


def test_a_key_of_one_field_is_decoded() -> None:
    record = GardenRecord("ga", Fruit("pear"))
    assert serde().decode(*serde().encode(record)) == record


def test_a_value_is_written_in_the_given_version() -> None:
    older = serde().encode(APPLE, 0)
    assert older == serde(version=0).encode(APPLE)
    assert serde().decode(*older) == FruitRecord("g", 2, Fruit("apple", (3, 4)))


def test_a_tombstone_has_no_value() -> None:
    assert serde().encode(FruitRecord("g", 2, None)) == (KEY, None)
    assert serde().decode(KEY, None) == FruitRecord("g", 2, None)


def test_older_types_are_read_and_others_ignored() -> None:
    assert serde().decode(b"\x00\x05" + KEY[2:], None) == FruitRecord("g", 2, None)
    assert serde().decode(b"\x00\x09" + KEY[2:], None) is None


def test_bytes_after_a_value_are_ignored() -> None:
    key, octets = serde().encode(APPLE)
    assert octets is not None
    assert serde().decode(key, octets + b"later") == APPLE


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="FruitValue version 2; this release reads 0 to 1"):
        serde().decode(KEY, b"\x00\x02")


@pytest.mark.parametrize(
    "octets", [b"", b"\x00", b"\x00\x01", b"\x00\x01\x06app", b"\x00\x01\x02\xff"]
)
def test_an_error_names_the_topic(octets: bytes) -> None:
    with pytest.raises(ProtocolError, match="__fruit"):
        serde().decode(KEY, octets)


def test_texts_up_to_the_limit_fit_into_a_record() -> None:
    serde().encode(FruitRecord("\U0001f34e" * (TEXT_LENGTH_MAX), 0, None))
    with pytest.raises(ProtocolError, match="fits into no record"):
        serde().encode(FruitRecord("x" * 32_768, 0, None))
