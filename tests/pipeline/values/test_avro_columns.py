"""Avro types as columns."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import parse_schema

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.avro_columns import TOP_LEVEL_COLUMN, Converter, avro_columns

UTC_MICROS = pa.timestamp("us", tz="UTC")


def columns(schema: object) -> tuple[pa.Schema, Converter]:
    named: dict[str, dict[object, object]] = {}
    return avro_columns(parse_schema(schema, named_schemas=named), named)  # type: ignore[arg-type]  # any JSON


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "value", "kind", "expected"),
    [
        ("int", 1, pa.int32(), 1),
        ("long", 1, pa.int64(), 1),
        ("float", 1.5, pa.float32(), 1.5),
        ("double", 1.5, pa.float64(), 1.5),
        ("boolean", True, pa.bool_(), True),
        ("string", "a", pa.string(), "a"),
        ("bytes", b"a", pa.binary(), b"a"),
        ("null", None, pa.null(), None),
        ({"type": "enum", "name": "E", "symbols": ["P"]}, "P", pa.string(), "P"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "array", "items": "int"}, [1], pa.list_(pa.int32()), [1]),
        (
            {"type": "map", "values": ["null", "long"]},
            {"k": 1, "n": None},
            pa.map_(pa.string(), pa.int64()),
            [("k", 1), ("n", None)],
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            Decimal("1.5"),
            pa.decimal128(9, 2),
            Decimal("1.5"),
        ),
        (logical("int", "date"), date(2026, 1, 1), pa.date32(), date(2026, 1, 1)),
        (logical("int", "time-millis"), time(0, 0, 1, 2000), pa.int32(), 1002),
        (logical("long", "time-micros"), time(1, 0, 0, 5), pa.int64(), 3_600_000_005),
        (
            logical("long", "timestamp-millis"),
            datetime(2026, 1, 1, tzinfo=UTC),
            UTC_MICROS,
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
        (logical("long", "timestamp-millis"), 1000, UTC_MICROS, 1_000_000),
        (logical("long", "timestamp-micros"), 1000, UTC_MICROS, 1000),
        (
            logical("long", "local-timestamp-micros"),
            datetime(2026, 1, 1),
            pa.timestamp("us"),
            datetime(2026, 1, 1),
        ),
        ("bytes", "\u00ff", pa.binary(), b"\xff"),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            "\u00ff",
            pa.decimal128(9, 2),
            Decimal("-0.01"),
        ),
        (logical("string", "uuid"), UUID(int=1), pa.string(), str(UUID(int=1))),
        (logical("string", "of-somebody"), "x", pa.string(), "x"),
        (["null", "string"], None, pa.string(), None),
        (["int", "long"], 2**40, pa.int64(), 2**40),
        (["null", "float", "double"], 0.5, pa.float64(), 0.5),
        (["null"], None, pa.null(), None),
    ],
)
def test_types(schema: object, value: object, kind: pa.DataType, expected: object) -> None:
    found, convert = columns(schema)
    assert found == pa.schema([pa.field(TOP_LEVEL_COLUMN, kind)])
    assert convert(value) == (expected,)


CITY = [{"name": "city", "type": "string"}]
RECORD = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "at", "type": {"type": "record", "name": "Place", "fields": CITY}},
        {"name": "to", "type": ["null", "Place"]},
    ],
}


def test_a_record_gives_its_fields_and_may_name_a_type_twice() -> None:
    found, convert = columns(RECORD)
    assert found.names == ["at", "to"]
    assert convert({"at": {"city": "a"}, "to": ("shop.Place", {"city": "b"})}) == (("a",), ("b",))
    assert convert({"at": {"city": "a"}, "to": None}) == (("a",), None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("text", ("text", None, None, None, None, None)),
        (7, (None, 7, None, None, None, None)),
        (True, (None, None, True, None, None, None)),
        (("n.E", "P"), (None, None, None, "P", None, None)),
        (("n.B", {"x": 3}), (None, None, None, None, (3,), None)),
        ({"x": 4}, (None, None, None, None, (4,), None)),
        ([1], (None, None, None, None, None, [1])),
    ],
)
def test_a_union_of_several_types_is_a_struct_of_members(value: object, expected: object) -> None:
    enum = {"type": "enum", "name": "n.E", "symbols": ["P"]}
    record = {"type": "record", "name": "n.B", "fields": [{"name": "x", "type": "int"}]}
    array = {"type": "array", "items": "int"}
    found, convert = columns(["null", "string", "int", "boolean", enum, record, array])
    kind = found.field(0).type
    assert [field.name for field in kind] == [f"member{index}" for index in range(6)]
    assert convert(value) == (expected,)


def test_a_record_within_itself_is_no_table() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    with pytest.raises(PipelineError, match="next is Node within Node"):
        columns(node)


def test_a_decimal_of_too_many_digits_is_told() -> None:
    with pytest.raises(PipelineError, match="decimal of 40 digits; tables have at most 38"):
        columns(logical("bytes", "decimal", precision=40, scale=2))


def test_a_record_without_fields_is_told() -> None:
    with pytest.raises(PipelineError, match="a has no fields"):
        columns({"type": "record", "name": "a", "fields": []})
